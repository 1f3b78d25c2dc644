"""Fetching a subset into the user's cache: from Zenodo, else rebuilt from the Hugging Face Hub.

A file counts as cached only together with its sidecar, ``<filename>.origin.json``, which is written last and names
the file's digest and origin. So neither a download that was killed nor a file that was altered is ever used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, NamedTuple

import platformdirs

from gecs_tasks.benchmark import DOI, Subset
from gecs_tasks.errors import DataError, FetchError
from gecs_tasks.sources import hub, zenodo

logger = logging.getLogger(__name__)

CACHE_DIR_VARIABLE: Final = "GECS_CACHE_DIR"
_PARTIAL: Final = ".partial-"
_PARTIAL_AGE_S: Final = 24 * 3600


class Fetched(NamedTuple):
    """A fetched file and, for people, where it came from."""

    path: Path
    origin: str


class _Measured(NamedTuple):
    sha256: str
    size: int
    rows: int


class _Delivery(NamedTuple):
    """What a source says of the file that it wrote; ``checksum`` is Zenodo's own."""

    origin: str
    checksum: str | None = None


class _Source(NamedTuple):
    name: str
    deliver: Callable[[Path], _Delivery]


def cache_dir() -> Path:
    """The folder that fetched files go to: ``GECS_CACHE_DIR``, or the user's cache folder where that is not set."""
    value = os.environ.get(CACHE_DIR_VARIABLE)
    return Path(value).expanduser() if value else Path(platformdirs.user_cache_dir("gecs-tasks"))


def cached(subset: Subset) -> Fetched | None:
    """Find a subset's file in the cache, if an earlier fetch completed and the file is still what was fetched.

    :return: the file, or None where it has to be fetched; a file that is there and not trusted is logged as a
        warning that says why.
    """
    path = cache_dir() / subset.filename
    try:
        if not path.is_file():
            return None
        origin, doubt = _examine(path, subset)
    except (OSError, ValueError) as error:
        origin, doubt = "", f"it cannot be checked ({error})"
    if doubt is None:
        return Fetched(path, origin)
    logger.warning("not using the cached %s, to be fetched again: %s", path, doubt)
    return None


def fetch(subset: Subset, *, progress: bool | None = None) -> Fetched:
    """Fetch a subset into the cache, whatever the cache holds of it: from Zenodo, else from the Hugging Face Hub.

    Several processes may do so at once: each downloads into a folder of its own and puts a whole file in place.

    :param progress: whether to show a progress bar on stderr; None for one if stderr is a terminal.
    :return: the file, its digest and row count checked wherever they are known.
    :raises FetchError: where no source delivers the file, saying for each what happened, or where the cache cannot
        be written.
    """
    folder = cache_dir()
    show = sys.stderr.isatty() if progress is None else progress
    failures = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        for source in _sources(subset, show):
            with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=folder, ignore_cleanup_errors=True) as scratch:
                path = Path(scratch) / subset.filename
                try:
                    delivery = source.deliver(path)
                    measured = _measure(path)
                    _check(measured, subset)
                except DataError as error:
                    logger.info("%s did not deliver %s: %s", source.name, subset.filename, error)
                    failures.append(f"{source.name}: {error}.")
                    continue
                return _install(path, folder, delivery, measured)
    except OSError as error:
        raise FetchError(
            f"cannot write to the cache folder {folder} ({error.strerror or error}): make it writable, or set "
            f"{CACHE_DIR_VARIABLE} to a folder that is"
        ) from error
    raise FetchError(_no_source(subset, failures))


def _sources(subset: Subset, progress: bool) -> Iterator[_Source]:
    if subset.released:

        def from_zenodo(path: Path) -> _Delivery:
            checksum = zenodo.download(path.name, path.parent, progress=progress)
            return _Delivery(f"Zenodo record {DOI} (md5 verified)", checksum)

        yield _Source(f"Zenodo record {DOI}", from_zenodo)
    source = subset.hub
    if source is not None:
        # Of the record's files only the row count is known here for most subsets: do not claim more than was checked.
        verified = "sha256 verified" if subset.sha256 else "rebuilt from its raw rows"

        def from_hub(path: Path) -> _Delivery:
            total = subset.rows[0] if subset.rows else None
            repo = hub.download(source, path, total=total, progress=progress)
            return _Delivery(f"Hugging Face Hub {repo} ({verified})")

        yield _Source(f"Hugging Face Hub {source.repo}", from_hub)


def _no_source(subset: Subset, failures: list[str]) -> str:
    if not failures:
        return (
            f"no source is known for {subset.filename} (subset {subset.name}): it is not part of the Zenodo record "
            f"{DOI} and names no Hugging Face Hub repository. Set GECS_DATA_DIR to a folder that holds "
            f"{subset.filename}"
        )
    released = f" (the released file of doi:{DOI})" if subset.released else ""
    return (
        f"no source delivered {subset.filename} (subset {subset.name}). {' '.join(failures)} Set GECS_DATA_DIR to a "
        f"folder that holds {subset.filename}{released}, or try again with network"
    )


def _check(measured: _Measured, subset: Subset) -> None:
    """Hold a delivered file against what is known of the released one.

    :raises FetchError: where it differs.
    """
    if subset.rows and measured.rows not in subset.rows:
        expected = " or ".join(str(rows) for rows in subset.rows)
        raise FetchError(f"its file has {measured.rows} rows, expected {expected}")
    if subset.sha256 is not None and measured.sha256 != subset.sha256:
        raise FetchError(f"its file has sha256 {measured.sha256}, expected {subset.sha256}")


def _measure(path: Path) -> _Measured:
    digest, size, rows = hashlib.sha256(), 0, 0
    with path.open("rb") as file:
        for line in file:
            digest.update(line)
            size += len(line)
            rows += 1
    return _Measured(digest.hexdigest(), size, rows)


def _install(path: Path, folder: Path, delivery: _Delivery, measured: _Measured) -> Fetched:
    """Put a checked file in place and its sidecar after it, so that an interruption leaves nothing that is trusted."""
    target = folder / path.name
    sidecar = path.with_name(_sidecar(target).name)
    about = {
        "origin": delivery.origin,
        "sha256": measured.sha256,
        "size": measured.size,
        "rows": measured.rows,
        "checksum": delivery.checksum,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    sidecar.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    for source in (path, sidecar):
        # Downloads are private to their user by default; a cache may be shared.
        source.chmod(0o644)
        with source.open("rb+") as file:
            os.fsync(file.fileno())
        source.replace(folder / source.name)
    logger.info("fetched %s: %s", target, delivery.origin)
    return Fetched(target, delivery.origin)


def _examine(path: Path, subset: Subset) -> tuple[str, str | None]:
    """Hold a cached file against its sidecar.

    :return: its origin, and what is wrong with it or None.
    :raises OSError: where either cannot be read.
    :raises ValueError: where the sidecar is not JSON.
    """
    sidecar = _sidecar(path)
    if not sidecar.is_file():
        return "", f"it has no {sidecar.name} beside it, so no fetch of it completed"
    about = json.loads(sidecar.read_text(encoding="utf-8"))
    fields = [about.get(field) if isinstance(about, dict) else None for field in ("origin", "sha256")]
    if not all(isinstance(field, str) for field in fields):
        return "", f"{sidecar.name} does not state its origin and sha256"
    origin, sha256 = map(str, fields)
    found = _measure(path).sha256
    if found != sha256:
        return origin, f"it has sha256 {found}, but {sha256} was fetched"
    if subset.sha256 not in (None, found):
        return origin, f"it has sha256 {found}, but the released file has {subset.sha256}"
    return origin, None


def _sidecar(path: Path) -> Path:
    return path.with_name(f"{path.name}.origin.json")


def _sweep(folder: Path) -> None:
    """Remove what downloads that were killed have left behind, once none of them can still be running."""
    for remains in folder.glob(f"{_PARTIAL}*"):
        with contextlib.suppress(FileNotFoundError):  # where another process removes them first
            if time.time() - remains.stat().st_mtime > _PARTIAL_AGE_S:
                shutil.rmtree(remains, ignore_errors=True)
