"""The persistent cache of vectors: a second run, or one resumed after ``kill -9``, computes only what is missing.

One SQLite file an identity (a model with all that changes its vectors), which several processes may use at once.
Beside it lie SQLite's ``-wal`` and ``-shm``, an empty ``.opening``, and as ``.broken-<time>`` what was in its place.

SQLite checks the shape of its pages and never their content, so every row has a checksum of ours. A row that fails it
is absent; a file that fails as a whole is moved aside and begun anew. Trouble with the cache costs time and never the
run, except for a folder that was wrong from the start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gecs_tasks.errors import SettingError
from gecs_tasks.folders import make_writable

logger = logging.getLogger(__name__)

_APPLICATION_ID: Final = 0x47654353  # "GeCS" in the file's header
_SCHEMA_VERSION: Final = 1
_SCHEMA: Final = (
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
    "CREATE TABLE meta (identity TEXT NOT NULL, dimension INTEGER, checksum BLOB NOT NULL)",
    "CREATE TABLE vectors (key BLOB NOT NULL UNIQUE, vector BLOB NOT NULL, cut INTEGER, checksum BLOB NOT NULL)",
)
_BUSY_SECONDS: Final = 30.0
_KEYS_A_QUERY: Final = 500  # SQLite before 3.32 takes 999 at most
_FLOAT32: Final = np.dtype("<f4")  # in the file, whatever the machine
_CUTS: Final = {None: b"-", 0: b"0", 1: b"1"}  # as a row has it, and as its checksum does
_REBUILDS: Final = 3  # and then the disk is not worth it
# What an OperationalError says where the surroundings are at fault and the file is not. Python 3.10 has no error codes.
_NOT_DAMAGE: Final = ("locked", "locking", "busy", "full", "disk i/o", "unable to open", "interrupted")
_FAILURES: Final = (sqlite3.Error, UnicodeError)  # the latter where a damaged file's own words are in SQLite's message


class Entry(NamedTuple):
    """A cached vector (read-only where it was read), and whether its text was cut at the model's maximum length."""

    vector: NDArray[np.float32]
    cut: bool | None


class _DamageError(sqlite3.DatabaseError):
    """The file is not the one that this cache wrote."""


class VectorCache:
    """Vectors by text, in a file. Threads may share one; a process that was forked opens its own.

    Its ``path`` is the file, ``degraded`` why nothing is stored any more (None while all is well), ``bad_rows`` how
    many rows failed their checksum when read, ``refused`` how many vectors were not stored: those with NaN or infinity,
    or of another dimension than the file's.

    :param folder: made where it does not exist.
    :param identity: everything that changes a vector, JSON-serialisable; another identity is another file.
    :raises SettingError: where the folder cannot be made or written.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        folder = folder.expanduser()
        self._identity = json.dumps(dict(identity), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        self._key = hashlib.sha256(self._identity).digest()
        self.path: Final = folder / f"vectors-{self._key.hex()[:16]}.sqlite"
        self.degraded: str | None = None
        self.bad_rows = 0
        self.refused = 0
        self._warned: set[str] = set()
        self._threads = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None  # which file the connection is to
        self._rebuilds = 0
        try:
            make_writable(folder)
        except OSError as error:
            raise SettingError(
                f"cache_dir is {str(folder)!r}, which cannot be written ({error.strerror}): give a folder that can be, "
                "or leave cache_dir out to compute every vector again"
            ) from None
        self._open()

    def get(self, keys: Sequence[str]) -> dict[str, Entry]:
        """The entries of those texts that are there, each bit for bit as it was put."""
        found: dict[str, Entry] = {}
        with self._threads:
            if connection := self._current():
                try:
                    self._read(connection, keys, found)
                except _FAILURES as error:
                    if self._mend(error):
                        self.put(found)  # each passed its checksum, and the caller will not put it again
        return found

    def put(self, entries: Mapping[str, Entry]) -> None:
        """Store entries, all or none, in place of those of the same texts. ``kill -9`` loses nothing that was put.

        :raises ValueError: where a vector is not one-dimensional, or is empty.
        """
        rows = self._rows(entries)
        with self._threads:
            while rows and self.degraded is None and (connection := self._current()):
                try:
                    return self._write(connection, rows)
                except _FAILURES as error:
                    self._mend(error)

    def close(self) -> None:
        """Close the file; nothing is found or stored afterwards."""
        with self._threads:
            if self._connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.close()
                self._connection = None

    def __enter__(self) -> VectorCache:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _rows(self, entries: Mapping[str, Entry]) -> dict[bytes, Entry]:
        rows = {}
        for text, (given, cut) in entries.items():
            vector = np.ascontiguousarray(given, dtype=_FLOAT32)
            if np.ndim(given) != 1 or not vector.size:
                raise ValueError(f"a vector of shape {np.shape(given)}: expected one dimension, not empty")
            if np.isfinite(vector).all():
                rows[_digest(text)] = Entry(vector, cut)
        self.refused += len(entries) - len(rows)
        return rows

    def _checksum(self, *parts: bytes | memoryview) -> bytes:
        # Keyed by the identity: a row that finds its way into another model's file is worth nothing there.
        state = hashlib.blake2b(digest_size=16, key=self._key)
        for part in parts:
            state.update(part)
        return state.digest()

    def _read(self, connection: sqlite3.Connection, texts: Sequence[str], found: dict[str, Entry]) -> None:
        dimension = self._dimension(connection)
        remaining = iter(texts)
        while dimension is not None and (chunk := {_digest(text): text for text in islice(remaining, _KEYS_A_QUERY)}):
            marks = ",".join("?" * len(chunk))
            query = f"SELECT key, vector, cut, checksum FROM vectors WHERE key IN ({marks})"
            for digest, vector, cut, checksum in connection.execute(query, list(chunk)):
                sound = digest in chunk and isinstance(vector, bytes) and len(vector) == dimension * _FLOAT32.itemsize
                if not sound or cut not in _CUTS or checksum != self._checksum(digest, _CUTS[cut], vector):
                    self.bad_rows += 1
                    self._warn_once("damaged rows count as absent")
                    continue
                # A view of SQLite's bytes and no copy, except on a big-endian machine.
                array = np.frombuffer(vector, _FLOAT32).astype(np.float32, copy=False)
                found[chunk[digest]] = Entry(array, None if cut is None else bool(cut))

    def _write(self, connection: sqlite3.Connection, rows: Mapping[bytes, Entry]) -> None:
        with connection:  # rolled back at any exception
            connection.execute("BEGIN IMMEDIATE")
            dimension = self._dimension(connection)
            if dimension is None:
                dimension = next(iter(rows.values())).vector.size
                update = "UPDATE meta SET dimension = ?, checksum = ?"
                connection.execute(update, (dimension, self._checksum(b"%d" % dimension)))
            fitting = {digest: entry for digest, entry in rows.items() if entry.vector.size == dimension}
            connection.executemany(
                "INSERT OR REPLACE INTO vectors (key, vector, cut, checksum) VALUES (?, ?, ?, ?)",
                ((d, v.data, cut, self._checksum(d, _CUTS[cut], v.data)) for d, (v, cut) in fitting.items()),
            )
        if len(fitting) < len(rows):
            self.refused += len(rows) - len(fitting)
            self._warn_once(f"its vectors have {dimension} dimensions, and no others are stored")

    def _dimension(self, connection: sqlite3.Connection) -> int | None:
        """The length of the file's vectors, None while there are none; checks that the file is this identity's."""
        rows = connection.execute("SELECT identity, dimension, checksum FROM meta").fetchall()
        if [row[0] for row in rows] != [self._identity]:
            raise _DamageError("it was made for another model or other settings")
        dimension = rows[0][1]
        if isinstance(dimension, int | None) and rows[0][2] == self._checksum(b"%d" % (dimension or 0)):
            return dimension
        raise _DamageError("its description of itself is damaged")

    def _current(self) -> sqlite3.Connection | None:
        """The connection to the file that is at the path now: another process may have begun it anew."""
        if self._connection is not None and self.degraded is None and _file_id(self.path) != self._opened:
            self._open()
        return self._connection

    def _mend(self, error: Exception) -> bool:
        """Begin a damaged file anew, which is true; store nothing more where something else is wrong."""
        mended = self.degraded is None and self._rebuilds < _REBUILDS and _is_damage(error, self.path)
        if mended:
            self._rebuilds += 1
            self._open(error)
        else:
            self._degrade(error)
        return mended

    def _open(self, damage: Exception | None = None) -> None:
        """Open the file, or make it; ``damage`` is what was wrong with the one that was open, if anything."""
        self.close()
        try:
            # Only one process at a time: none may meet the file half made, or without its log. The lock is SQLite's own
            # on an empty file: it works wherever the cache does and ends with its process.
            with contextlib.closing(sqlite3.connect(f"{self.path}.opening", timeout=_BUSY_SECONDS)) as lock:
                lock.execute("BEGIN EXCLUSIVE")
                for again in (False, True):
                    # At first, another file than the one that was found damaged is another process's new one.
                    if damage is not None and (again or _file_id(self.path) == self._opened):
                        self._move_aside(damage)
                    try:
                        return self._connect()
                    except _FAILURES as error:
                        self.close()
                        if again or not _is_damage(error, self.path):
                            raise
                        damage = error
        except (*_FAILURES, OSError) as error:
            self._degrade(error)

    def _connect(self) -> None:
        exists = os.path.lexists(self.path)
        if exists and not (self.path.is_file() and self.path.stat().st_size):
            raise _DamageError("it is empty or not a file")
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self._connection, self._opened = connection, _file_id(self.path)
        connection.text_factory = bytes  # a damaged row may claim to be text, and need not be UTF-8
        if not exists:
            self._create(connection)
        # With a write-ahead log this syncs at checkpoints alone, not at every transaction. A killed process loses
        # nothing by it, since what it wrote is the system's; a power cut loses the last transactions, and no more.
        connection.execute("PRAGMA synchronous = NORMAL")
        marks = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        if marks != [_APPLICATION_ID, _SCHEMA_VERSION]:
            raise _DamageError(f"it is another program's or version's ({marks[0]:#x}, {marks[1]})")
        self._dimension(connection)

    def _create(self, connection: sqlite3.Connection) -> None:
        # Readers and a writer without waiting for each other. It needs shared memory, which a network file system may
        # not have: there the default journal stays, whose transactions are as safe and sync each.
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = WAL")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES (?, NULL, ?)", (self._identity.decode(), self._checksum(b"0")))

    def _move_aside(self, damage: Exception) -> None:
        aside = f"{self.path}.broken-{time.strftime('%Y-%m-%dT%H-%M-%S')}.{time.time_ns() // 1000 % 1_000_000:06d}"
        # The file last: a log that it left behind would be taken for the new one's.
        for suffix in ("-wal", "-shm", "-journal", ""):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").rename(f"{aside}{suffix}")
        logger.warning("vector cache %s: begun anew: %s; what was there is now %s", self.path, damage, aside)

    def _degrade(self, why: Exception) -> None:
        self.degraded = self.degraded or str(why)
        self._warn_once(f"nothing more is stored and the run continues: {self.degraded}")

    def _warn_once(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("vector cache %s: %s", self.path, what)


def _is_damage(error: Exception, path: Path) -> bool:
    """Whether the file is at fault, rather than the disk, the rights or another process that keeps it busy."""
    text = str(error).lower()
    if "readonly" in text:  # its header says so, or it was moved aside just now
        return os.access(path, os.W_OK)
    if isinstance(error, sqlite3.OperationalError):
        return not any(words in text for words in _NOT_DAMAGE)
    return isinstance(error, sqlite3.DatabaseError | UnicodeError) and not isinstance(error, sqlite3.ProgrammingError)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _file_id(path: Path) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        return (status := path.stat()).st_dev, status.st_ino
    return None
