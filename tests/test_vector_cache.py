"""The cache of vectors: whatever happens to its file, what it returns is exactly what was put, or nothing."""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from gecs_tasks.errors import SettingError
from gecs_tasks.scorers import cache as module
from gecs_tasks.scorers.cache import Entry, VectorCache

IDENTITY = {"model": "a/model", "revision": None, "max_length": 256}
MALFORMED = sqlite3.DatabaseError("database disk image is malformed")


def vector(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def entry(number: int, dimension: int = 64) -> Entry:
    """The same for the same number, in every process."""
    made = np.random.default_rng(number).normal(size=dimension).astype(np.float32)
    return Entry(made, [None, False, True][number % 3])


def entries(count: int, start: int = 0) -> dict[str, Entry]:
    return {f"text {number}": entry(number) for number in range(start, start + count)}


EVERY = entries(300)


def check(found: Mapping[str, Entry], expected: Mapping[str, Entry] = EVERY) -> int:
    """Each that was found is exactly right; returns how many were."""
    for text, (got, cut) in found.items():
        assert (got.dtype.name, got.tobytes()) == ("float32", expected[text].vector.tobytes())
        assert cut is expected[text].cut
    return len(found)


def filled(folder: Path, content: Mapping[str, Entry] = EVERY) -> Path:
    with VectorCache(folder, IDENTITY) as cache:
        cache.put(content)
    assert not list(folder.glob("*-wal"))  # closed: everything is in the one file
    return cache.path


def broken(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.broken-*") if not path.name.endswith(("-wal", "-shm"))]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def child(code: str, *arguments: object, **settings: Any) -> subprocess.Popen[str]:
    program = "import sys\nfrom pathlib import Path\nfrom tests.test_vector_cache import *\n" + code
    command = [sys.executable, "-c", program, *map(str, arguments)]
    root = Path(__file__).parents[1]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)


# What is put is what is found


def test_a_second_opening_finds_the_same_bits(tmp_path: Path) -> None:
    put = {
        "": Entry(vector(1.5, -0.0), True),
        "a\nb\0c": Entry(vector(1e-45, 3.4e38), False),  # the smallest and nearly the largest number
        "Schätzung 数据": Entry(vector(-1e-40, 0.1), None),
    }
    with VectorCache(tmp_path / "new" / "folder", IDENTITY) as cache:
        cache.put(put)
    with VectorCache(tmp_path / "new" / "folder", dict(reversed(IDENTITY.items()))) as cache:
        found = cache.get([*put, "absent", ""])
        assert check(found, put) == 3
        assert cache.degraded is None
        assert (cache.bad_rows, cache.refused) == (0, 0)
    with pytest.raises(ValueError, match="read-only"):
        found[""].vector[0] = 2


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 20))
def test_any_texts_and_vectors_come_back(data: st.DataObject, dimension: int) -> None:
    made = st.builds(Entry, arrays(np.float32, dimension, elements=numbers), st.sampled_from([None, False, True]))
    first, second = (data.draw(st.dictionaries(texts, made, max_size=6)) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        for put in (first, second):
            with VectorCache(Path(folder), IDENTITY) as cache:
                cache.put(put)
        with VectorCache(Path(folder), IDENTITY) as cache:
            expected = {**first, **second}
            assert check(cache.get([*expected, "\uffff absent"]), expected) == len(expected)


def test_another_identity_is_another_file(tmp_path: Path) -> None:
    path = filled(tmp_path)
    with VectorCache(tmp_path, {**IDENTITY, "max_length": 512}) as other:
        assert other.path != path
        assert other.get(list(EVERY)) == {}
    assert len(list(tmp_path.glob("vectors-*.sqlite"))) == 2


def test_many_keys(tmp_path: Path) -> None:
    """100,000 texts of which each third is there, asked for with copies."""
    put = {f"text {number}": Entry(vector(number, -number), None) for number in range(0, 100_000, 3)}
    with VectorCache(tmp_path, IDENTITY) as cache:
        cache.put(put)
        asked = [f"text {number}" for number in range(100_000)]
        assert check(cache.get(asked + asked[:5]), put) == len(put) == 33_334


def test_vectors_that_are_no_vectors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with VectorCache(tmp_path, IDENTITY) as cache:
        cache.put({"nan": Entry(vector(1, np.nan), None), "inf": Entry(vector(-np.inf, 1), None)})
        cache.put({"right": Entry(vector(1, 2), None), "nan": Entry(vector(np.nan, 1), None)})
        assert cache.refused == 3
        cache.put({"all": Entry(vector(np.nan, np.nan), None), "three": Entry(vector(1, 2, 3), None)})
        cache.put({"three": Entry(vector(1, 2, 3), None), "also right": Entry(vector(3, 4), None)})
        assert cache.refused == 6
        assert sorted(cache.get(["nan", "inf", "all", "three", "right", "also right"])) == ["also right", "right"]
        assert cache.degraded is None
        with pytest.raises(ValueError, match=r"shape \(1, 2\): expected one dimension"):
            cache.put({"matrix": Entry(np.ones((1, 2), np.float32), None)})
        with pytest.raises(ValueError, match=r"shape \(0,\)"):
            cache.put({"empty": Entry(vector(), None)})
    assert [text.split(": ")[1] for text in warnings(caplog)] == [
        "its vectors have 2 dimensions, and no others are stored"
    ]


def test_a_vector_that_is_not_contiguous(tmp_path: Path) -> None:
    matrix = np.arange(6, dtype=np.float32).reshape(3, 2)
    with VectorCache(tmp_path, IDENTITY) as cache:
        cache.put({"column": Entry(matrix[:, 1], True)})
        assert cache.get(["column"])["column"].vector.tolist() == [1, 3, 5]


def test_threads_share_a_cache(tmp_path: Path) -> None:
    with VectorCache(tmp_path, IDENTITY) as cache:

        def work(start: int) -> None:
            for number in range(start, start + 75):
                cache.put(entries(1, number))
                check(cache.get(list(EVERY)))

        threads = [threading.Thread(target=work, args=(start,)) for start in range(0, 300, 75)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert check(cache.get(list(EVERY))) == 300


# A killed process, and several at once


def test_kill_9_loses_nothing_that_was_put(tmp_path: Path) -> None:
    code = """
with VectorCache(Path(sys.argv[1]), IDENTITY) as cache:
    for number in range(100_000):
        cache.put(entries(8, 8 * number))
        print(number, flush=True)
"""
    for round_, lines in enumerate([1, 40, 90]):
        folder = tmp_path / str(round_)
        with child(code, folder) as process:
            assert process.stdout is not None
            printed = [int(process.stdout.readline()) for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
            printed += [int(line) for line in process.stdout if line.endswith("\n")]
        assert process.returncode == -signal.SIGKILL
        expected = entries(8 * (printed[-1] + 1))
        with VectorCache(folder, IDENTITY) as cache:
            assert check(cache.get(list(expected)), expected) == len(expected) >= 8 * lines
            cache.put(entries(8, len(expected)))
        assert broken(folder) == []


@pytest.mark.parametrize("torn", [False, True])
def test_processes_that_write_at_once_lose_nothing(tmp_path: Path, torn: bool) -> None:
    """Three write every second text in common; where the file is torn, the first to see it makes the new one."""
    if torn:
        path = filled(tmp_path)
        path.write_bytes(path.read_bytes()[:10_000])
    code = """
print("ready", flush=True); sys.stdin.readline()
with VectorCache(Path(sys.argv[1]), IDENTITY) as cache:
    for number in range(40):
        cache.put(entries(8, 4 * (number + 40 * int(sys.argv[2]))))
    assert cache.degraded is None, cache.degraded
"""
    writers = [child(code, tmp_path, number, stdin=subprocess.PIPE) for number in range(3)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    notes = "".join(writer.communicate()[1] for writer in writers)
    assert notes.count("begun anew") == torn, notes
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    expected = entries(4 * 120 + 4)
    with VectorCache(tmp_path, IDENTITY) as cache:
        assert check(cache.get(list(expected)), expected) == len(expected)
    assert len(broken(tmp_path)) == torn


def test_a_file_that_another_process_began_anew(tmp_path: Path) -> None:
    """What the first puts after that is in the new file, and closing the first leaves the new one's log alone."""
    filled(tmp_path)
    first = VectorCache(tmp_path, IDENTITY)
    assert check(first.get(list(EVERY))) == 300
    for suffix in ("-wal", "-shm", ""):
        Path(f"{first.path}{suffix}").rename(f"{first.path}.broken-then{suffix}")
    second = VectorCache(tmp_path, IDENTITY)
    second.put(entries(10))
    first.put(entries(10, 10))
    assert check(first.get(list(EVERY))) == check(second.get(list(EVERY))) == 20
    first.close()
    assert check(second.get(list(EVERY))) == 20
    second.close()
    with VectorCache(tmp_path, IDENTITY) as third:
        assert check(third.get(list(EVERY))) == 20


def test_a_process_that_still_has_the_old_file_open(tmp_path: Path) -> None:
    """SQLite deletes the log by its name at closing, which by then is the new file's: it must notice."""
    filled(tmp_path)
    old = VectorCache(tmp_path, IDENTITY)
    old.put(entries(10, 300))
    for suffix in ("-wal", "-shm", ""):
        Path(f"{old.path}{suffix}").rename(f"{old.path}.broken-then{suffix}")
    with child("c = VectorCache(Path(sys.argv[1]), IDENTITY)\nc.put(EVERY)\nos.kill(os.getpid(), 9)", tmp_path) as new:
        new.wait()
    assert list(tmp_path.glob("*.sqlite-wal"))
    old.close()
    with VectorCache(tmp_path, IDENTITY) as cache:
        assert check(cache.get(list(EVERY))) == 300


# A damaged file


@pytest.mark.parametrize("kept", [0, 1, 15, 16, 99, 100, 512, 4095, 4096, 4097, 8192, 20_000, 0.5, 0.9])
def test_a_torn_file(tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: float) -> None:
    path = filled(tmp_path)
    content = path.read_bytes()
    torn = content[: int(kept * len(content)) if 0 < kept < 1 else int(kept)]
    path.write_bytes(torn)
    with VectorCache(tmp_path, IDENTITY) as cache:
        found = cache.get(list(EVERY))
        assert check(found) < 300
        cache.put({text: EVERY[text] for text in EVERY if text not in found})
        assert cache.degraded is None
    assert [path.read_bytes() for path in broken(tmp_path)] == [torn]
    assert len(warnings(caplog)) == 1
    assert "begun anew" in warnings(caplog)[0]
    with VectorCache(tmp_path, IDENTITY) as cache:
        check(cache.get(list(EVERY)))
        cache.put(EVERY)
        assert check(cache.get(list(EVERY))) == 300


def test_a_file_torn_within_its_last_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SQLite fills such a page with zeros and says nothing; the rows do not pass, and are put again."""
    path = filled(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with VectorCache(tmp_path, IDENTITY) as cache:
        found = cache.get(list(EVERY))
        assert check(found) == 299
        cache.put({text: EVERY[text] for text in EVERY if text not in found})
        assert check(cache.get(list(EVERY))) == 300
    assert [text.split(": ")[1] for text in warnings(caplog)] == ["damaged rows count as absent"]


@pytest.mark.parametrize("seed", range(10))
def test_overwritten_bytes(tmp_path: Path, seed: int) -> None:
    """Thirty files a seed: from one byte to a thousand, anywhere, and in the first page, where the schema is."""
    path = filled(tmp_path)
    content = path.read_bytes()
    generator = random.Random(seed)
    for _ in range(30):
        damaged = bytearray(content)
        extent = generator.choice([len(content), 4096])
        for _ in range(generator.choice([1, 2, 10, 100, 1000])):
            damaged[generator.randrange(extent)] ^= generator.randrange(1, 256)
        for file in tmp_path.iterdir():
            file.unlink()
        path.write_bytes(damaged)
        with VectorCache(tmp_path, IDENTITY) as cache:
            found = cache.get(list(EVERY))
            check(found)
            cache.put({text: EVERY[text] for text in EVERY if text not in found})
            check(cache.get(list(EVERY)))
            assert cache.degraded is None
        with VectorCache(tmp_path, IDENTITY) as cache:
            check(cache.get(list(EVERY)))


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(50_000))


def foreign_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE vectors (key, vector, cut, checksum)")
    connection.close()


def statement(*statements: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        connection = sqlite3.connect(filled(path.parent), isolation_level=None)
        for text in statements:
            connection.execute(text)
        connection.close()

    return make


def byte(offset: int, value: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        content = bytearray(filled(path.parent).read_bytes())
        content[offset] = value
        path.write_bytes(content)

    return make


def name_that_is_not_utf8(path: Path) -> None:
    content = filled(path.parent).read_bytes()
    assert content.count(b"vectorsvectors") == 1
    path.write_bytes(content.replace(b"vectorsvectors", b"v\xffctorsvectors"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (garbage, "file is not a database"),
        (Path.touch, "it is empty or not a file"),
        (Path.mkdir, "it is empty or not a file"),
        (lambda path: path.symlink_to("nowhere"), "it is empty or not a file"),
        (foreign_database, r"another program's or version's \(0x0, 0\)"),
        (statement("PRAGMA application_id = 7"), r"another program's or version's \(0x7, 1\)"),
        (statement("PRAGMA user_version = 2"), r"another program's or version's \(0x47654353, 2\)"),
        (statement("""UPDATE meta SET identity = '{"model":"another"}'"""), "another model or other settings"),
        (statement("DELETE FROM meta"), "another model or other settings"),
        (statement("UPDATE meta SET dimension = 32"), "its description of itself is damaged"),
        (statement("UPDATE meta SET dimension = 'x'"), "its description of itself is damaged"),
        (statement("DROP TABLE vectors"), "no such table: vectors"),
        (name_that_is_not_utf8, "can't decode byte 0xff"),
        (byte(18, 3), "attempt to write a readonly database"),  # a version of the format that SQLite does not write
        (byte(100, 99), "malformed"),
    ],
)
def test_a_file_that_is_not_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None], said: str
) -> None:
    path = filled(tmp_path)
    path.unlink()
    make(path)
    with VectorCache(tmp_path, IDENTITY) as cache:
        check(cache.get(list(EVERY)))
        cache.put(EVERY)
        assert check(cache.get(list(EVERY))) == 300
        assert cache.degraded is None
    assert len(warnings(caplog)) == 1
    assert re.search(rf"{path}: begun anew: .*{said}", warnings(caplog)[0])
    with VectorCache(tmp_path, IDENTITY) as cache:
        assert check(cache.get(list(EVERY))) == 300


def test_a_log_that_is_not_ours(tmp_path: Path) -> None:
    path = filled(tmp_path)
    Path(f"{path}-wal").write_bytes(random.Random(0).randbytes(50_000))
    Path(f"{path}-shm").write_bytes(random.Random(1).randbytes(32_768))
    with VectorCache(tmp_path, IDENTITY) as cache:
        check(cache.get(list(EVERY)))
        cache.put(EVERY)
        assert check(cache.get(list(EVERY))) == 300


@pytest.mark.parametrize("seed", range(10))
def test_a_damaged_log_after_a_kill(tmp_path: Path, seed: int) -> None:
    code = "c = VectorCache(Path(sys.argv[1]), IDENTITY)\nc.put(EVERY)\nos.kill(os.getpid(), 9)"
    with child(code, tmp_path) as process:
        process.wait()
    (log,) = tmp_path.glob("*.sqlite-wal")
    content = bytearray(log.read_bytes())
    generator = random.Random(seed)
    for _ in range(generator.choice([1, 100])):
        content[generator.randrange(len(content))] ^= generator.randrange(1, 256)
    log.write_bytes(content[: generator.choice([len(content), len(content) // 2])])
    with VectorCache(tmp_path, IDENTITY) as cache:
        check(cache.get(list(EVERY)))
        cache.put(EVERY)
        assert check(cache.get(list(EVERY))) == 300


@pytest.mark.parametrize("first", ["get", "put"])
def test_a_file_that_is_damaged_while_it_is_open(tmp_path: Path, caplog: pytest.LogCaptureFixture, first: str) -> None:
    path = filled(tmp_path)
    with VectorCache(tmp_path, IDENTITY) as cache:
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xaa" * (path.stat().st_size - 4096))
        if first == "get":
            assert cache.get(list(EVERY)) == {}
        cache.put(EVERY)
        assert check(cache.get(list(EVERY))) == 300
    assert len(warnings(caplog)) == len(broken(tmp_path)) == 1


def test_what_a_damaged_file_still_gave_is_in_the_new_one(tmp_path: Path) -> None:
    """The caller puts only what it did not get, and the next run must find both."""
    path = filled(tmp_path)
    content = bytearray(path.read_bytes())
    page = content.index(EVERY["text 150"].vector.tobytes()) // 4096 * 4096
    content[page : page + 4096] = bytes(4096)
    path.write_bytes(content)
    with VectorCache(tmp_path, IDENTITY) as cache:
        found = cache.get(list(EVERY))
        assert 0 < check(found) < 300
        cache.put({text: EVERY[text] for text in EVERY if text not in found})
    with VectorCache(tmp_path, IDENTITY) as cache:
        assert check(cache.get(list(EVERY))) == 300


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE vectors SET vector = zeroblob(length(vector)) WHERE rowid = 7",
        "UPDATE vectors SET vector = substr(vector, 1, 100) WHERE rowid = 7",
        "UPDATE vectors SET vector = 3.5 WHERE rowid = 7",
        "UPDATE vectors SET vector = CAST(x'ff' AS TEXT) WHERE rowid = 7",
        "UPDATE vectors SET cut = 1 - coalesce(cut, 0) WHERE rowid = 7",
        "UPDATE vectors SET cut = 'yes' WHERE rowid = 7",
        "UPDATE vectors SET checksum = 0 WHERE rowid = 7",
        "UPDATE vectors SET vector = (SELECT vector FROM vectors WHERE rowid = 8) WHERE rowid = 7",
    ],
)
def test_a_damaged_row_is_absent_until_it_is_put_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    statement(damage)(tmp_path / "any")
    with VectorCache(tmp_path, IDENTITY) as cache:
        missing = EVERY.keys() - cache.get(list(EVERY)).keys()
        assert missing == {"text 6"}
        assert check(cache.get(["text 5", "text 6", "text 7"])) == 2
        assert cache.bad_rows == 2
        cache.put({"text 6": EVERY["text 6"]})
        assert check(cache.get(list(EVERY))) == 300
        assert cache.bad_rows == 2
    assert [text.split(": ")[1] for text in warnings(caplog)] == ["damaged rows count as absent"]
    assert broken(tmp_path) == []


def test_a_row_of_another_dimension_or_another_file(tmp_path: Path) -> None:
    path = filled(tmp_path)
    other = VectorCache(tmp_path, {"model": "another"})
    other.put({"foreign": entry(0), "text 0": entry(1)})
    other.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"ATTACH '{other.path}' AS other")
    connection.execute("INSERT OR REPLACE INTO vectors SELECT * FROM other.vectors")
    with VectorCache(tmp_path, IDENTITY) as cache:
        short = vector(1, 2)
        digest = module._digest("short")
        row = (digest, short.tobytes(), None, cache._checksum(digest, b"-", short.data))
        connection.execute("INSERT INTO vectors VALUES (?, ?, ?, ?)", row)
        connection.close()
        assert sorted(cache.get(["foreign", "text 0", "short", "text 1"])) == ["text 1"]
        assert cache.bad_rows == 3


@pytest.mark.parametrize("operation", ["_read", "_write"])
def test_a_disk_that_damages_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    def fail(*_: object) -> None:
        raise MALFORMED

    with VectorCache(tmp_path, IDENTITY) as cache:
        monkeypatch.setattr(cache, operation, fail)
        for _ in range(6):
            assert cache.get(["a"]) == {}
            cache.put({"a": entry(0)})
        assert cache.degraded == "database disk image is malformed"
    assert len(broken(tmp_path)) == 3
    assert [("begun anew" in text, "nothing more is stored" in text) for text in warnings(caplog)] == [
        *[(True, False)] * 3,
        (False, True),
    ]


# A disk that is full, a folder that is not to be written, a file that is busy


def test_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with VectorCache(tmp_path, IDENTITY) as cache:
        cache.put(EVERY)
        assert cache._connection is not None
        (pages,) = cache._connection.execute("PRAGMA page_count").fetchone()
        cache._connection.execute(f"PRAGMA max_page_count = {pages + 3}")
        cache.put(entries(100, 300))
        assert cache.degraded == "database or disk is full"
        assert check(cache.get(list(entries(500)))) == 300
        cache.put(entries(1, 300))
        assert check(cache.get(list(entries(500)))) == 300
    assert len(warnings(caplog)) == 1
    assert "nothing more is stored and the run continues: database or disk is full" in warnings(caplog)[0]
    with VectorCache(tmp_path, IDENTITY) as cache:  # with room again
        assert check(cache.get(list(EVERY))) == 300
        cache.put(entries(100, 300))
        assert len(cache.get(list(entries(500)))) == 400


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits of this kind")
@pytest.mark.parametrize("limit", [0, 1000, 30_000, 100_000, 200_000])
def test_files_that_cannot_grow(tmp_path: Path, limit: int) -> None:
    """The system itself refuses to write beyond the limit, from the first byte of a new file on."""
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
with VectorCache(Path(sys.argv[1]), IDENTITY) as cache:
    put = 0
    while cache.degraded is None:
        put += 10
        cache.put(entries(10, put - 10))
    for _ in range(3):
        cache.put(entries(10))
    print(max(put - 10, 0), check(cache.get(list(EVERY))), cache.degraded)
"""
    with child(code, tmp_path, limit) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    stored, found, reason = output.split(maxsplit=2)
    assert reason in ("disk I/O error\n", "database or disk is full\n", "unable to open database file\n")
    assert errors.count("nothing more is stored") == 1
    assert found in (stored, "0")
    with VectorCache(tmp_path, IDENTITY) as cache:
        assert check(cache.get(list(EVERY))) == int(stored)
        cache.put(EVERY)
        assert check(cache.get(list(EVERY))) == 300


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SettingError, match=rf"^cache_dir is '{folder}', which cannot be written \(.*\): give a"):
            VectorCache(folder, IDENTITY)


def test_a_file_that_can_only_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite is told so, since the superuser may write everything."""
    path = filled(tmp_path)
    connect = sqlite3.connect

    def read_only(name: object, **settings: Any) -> sqlite3.Connection:
        made: sqlite3.Connection
        made = connect(f"{path.as_uri()}?mode=ro", uri=True, **settings) if name == path else connect(str(name))
        return made

    monkeypatch.setattr(sqlite3, "connect", read_only)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with VectorCache(tmp_path, IDENTITY) as cache:
        for number in range(300, 303):
            cache.put(entries(1, number))
        assert cache.degraded == "attempt to write a readonly database"
        assert check(cache.get(list(EVERY))) == 300
    assert len(warnings(caplog)) == 1
    assert broken(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="has no such locks")
def test_a_file_system_without_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network: SQLite's dot-file locks have none, so there is no write-ahead log."""
    connect = sqlite3.connect

    def dotfile(name: object, **settings: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = connect(f"{Path(str(name)).as_uri()}?vfs=unix-dotfile", uri=True, **settings)
        return made

    monkeypatch.setattr(sqlite3, "connect", dotfile)
    with VectorCache(tmp_path, IDENTITY) as one, VectorCache(tmp_path, IDENTITY) as two:
        assert one._connection is not None
        assert one._connection.execute("PRAGMA journal_mode").fetchone() == (b"delete",)
        for number in range(0, 300, 20):
            one.put(entries(10, number))
            two.put(entries(10, number + 10))
        assert check(one.get(list(EVERY))) == check(two.get(list(EVERY))) == 300
        assert one.degraded is two.degraded is None


@pytest.mark.parametrize("busy", ["file", "lock"])
def test_a_process_that_keeps_the_file_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, busy: str
) -> None:
    """It is waited for, and then the run goes on without storing."""
    path = filled(tmp_path)
    monkeypatch.setattr(module, "_BUSY_SECONDS", 0.05)
    other = sqlite3.connect(path if busy == "file" else f"{path}.opening", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with VectorCache(tmp_path, IDENTITY) as cache:
        cache.put(entries(1, 300))
        assert cache.degraded == "database is locked"
        assert check(cache.get(list(EVERY))) == (300 if busy == "file" else 0)
    other.close()
    assert len(warnings(caplog)) == 1
    assert broken(tmp_path) == []
    with VectorCache(tmp_path, IDENTITY) as cache:
        assert check(cache.get(list(EVERY))) == 300
