"""Fetching and the cache, against a local server that plays doi.org, Zenodo and the Hub."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gecs_tasks.benchmark import DOI, HubSource, Subset
from gecs_tasks.errors import FetchError
from gecs_tasks.sources import hub, zenodo
from gecs_tasks.sources.fetch import Fetched, cache_dir, cached, fetch

NAME = "test_three.jsonl"
BODY = b"".join(
    b'{"input": "comment %d [CODESPLIT] code", "target": 1, "target_options": ["no_match", "match"]}\n' % n
    for n in range(3)
)
SHA256 = hashlib.sha256(BODY).hexdigest()
REVISION = "0123456789abcdef0123456789abcdef01234567"
THREE = Subset(name="three", title="Three", filename=NAME, language="R", rows=(3, 5), kinds=())


@dataclass(frozen=True)
class Reply:
    """One answer; ``length`` is the Content-Length that it claims, ``hang`` where it stops until the test ends."""

    body: bytes = b""
    status: int = 200
    length: int | None = None
    hang: bool = False


class Server(ThreadingHTTPServer):
    """Answers each path with its replies in turn, the last one again and again; other paths with status 404."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.replies: dict[str, list[Reply]] = {}
        self.asked: list[str] = []
        self.hanging, self.over = threading.Event(), threading.Event()

    def play_zenodo(self, *file: Reply, names: tuple[str, ...] = (NAME,), md5: str | None = None) -> None:
        checksum = "md5:" + (md5 or hashlib.md5(BODY).hexdigest())
        files = [{"key": n, "checksum": checksum, "links": {"self": f"{self.url}/files/{n}"}} for n in names]
        self.replies |= {
            f"/doi/{DOI}": [Reply()],
            "/api/records/8310891": [Reply(json.dumps({"id": 8310891, "files": files}).encode())],
            f"/files/{NAME}": list(file),
        }


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        # Nothing that a test serves is asked for in this way.
        self.send_response(404)
        self.end_headers()

    def end_headers(self) -> None:
        # The Hub's word for a file that is not there; Zenodo's clients do not read it.
        self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("X-Repo-Commit", REVISION)
        super().end_headers()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.server.asked.append(path)
        replies = self.server.replies.get(path, [Reply(b"{}", status=404)])
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if reply.hang and not reply.body:
            self.server.over.wait()
            return
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(reply.body) if reply.length is None else reply.length))
        self.end_headers()
        self.wfile.write(reply.body)
        if reply.hang:
            self.server.hanging.set()
            self.server.over.wait()

    def log_message(self, format: str, *args: object) -> None:
        pass


def point_pooch_at(url: str, replace: Callable[[Any, str, Any], None]) -> None:
    """Send pooch's own requests for doi.org and Zenodo's API to the local server."""
    import pooch.downloaders
    import requests

    def doi_to_url(doi: str, **options: Any) -> str:
        requests.get(f"{url}/doi/{doi}", **options).raise_for_status()
        return "https://zenodo.org/records/8310891"

    replace(pooch.downloaders, "doi_to_url", doi_to_url)
    replace(pooch.downloaders.ZenodoRepository, "base_api_url", f"{url}/api/records")


@pytest.fixture
def cache() -> Path:
    """The test's own cache folder, see conftest.py."""
    return Path(os.environ["GECS_CACHE_DIR"])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(zenodo, "RETRIES", 0)
    point_pooch_at(server.url, monkeypatch.setattr)
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()


def hub_folder(folder: Path, files: dict[str, object]) -> str:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(folder)


def closed_host() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# --- Zenodo ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sha256", [None, SHA256])
def test_a_good_download_is_cached_with_its_origin(
    server: Server,
    cache: Path,
    sha256: str | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pooch

    caplog.set_level("INFO")
    monkeypatch.setattr(pooch.get_logger(), "handlers", [caplog.handler])  # Its own one writes to stderr.
    subset = dataclasses.replace(THREE, sha256=sha256)
    server.play_zenodo(Reply(BODY))
    assert cached(subset) is None
    fetched = fetch(subset)
    assert fetched == Fetched(cache / NAME, "Zenodo record 10.5281/zenodo.8310891 (md5 verified)")
    assert fetched.path.read_bytes() == BODY
    assert cached(subset) == fetched
    about = json.loads((cache / f"{NAME}.origin.json").read_text())
    assert about.pop("date")[:2] == "20"
    assert about == {
        "origin": fetched.origin,
        "sha256": SHA256,
        "size": len(BODY),
        "rows": 3,
        "checksum": f"md5:{hashlib.md5(BODY).hexdigest()}",
    }
    assert files_in(cache) == [NAME, f"{NAME}.origin.json"]
    assert {record.name.split(".")[0] for record in caplog.records} == {"gecs_tasks"}


FILE, RECORD = f"/files/{NAME}", "/api/records/8310891"
TWO_ROWS = b"".join(BODY.splitlines(keepends=True)[:2])


@pytest.mark.parametrize(
    ("path", "reply", "expected"),
    [
        (FILE, Reply(BODY[:100], length=len(BODY)), "the download broke off before its end"),
        (FILE, Reply(TWO_ROWS), f"expected md5:{hashlib.md5(BODY).hexdigest()} but got "),
        (FILE, Reply(status=404), "HTTP status 404 (Not Found) from 127.0.0.1"),
        (FILE, Reply(status=500), "HTTP status 500 (Internal Server Error) from 127.0.0.1"),
        (FILE, Reply(hang=True), "timeout, nothing from 127.0.0.1"),
        (FILE, Reply(BODY[:100], length=len(BODY), hang=True), "timeout, nothing from the server for 0.5 s"),
        (RECORD, Reply(b'{"message": "gone"}', status=410), "HTTP status 410 (Gone) from 127.0.0.1"),
        (RECORD, Reply(b"<html>", status=503), "HTTP status 503 (Service Unavailable) from 127.0.0.1"),
        (RECORD, Reply(b"<html>maintenance</html>"), "the record's answer is not JSON"),
        (RECORD, Reply(b'{"id": 8310891}'), "the record's answer holds no list of files"),
        (RECORD, Reply(b"[]"), "the record's answer holds no list of files"),
        (RECORD, Reply(b'{"files": []}'), f"the record does not hold {NAME}; it lists nothing"),
        (RECORD, Reply(hang=True), "timeout, nothing from 127.0.0.1"),
        (f"/doi/{DOI}", Reply(status=404), "HTTP status 404 (Not Found) from 127.0.0.1"),
    ],
)
def test_a_failed_download_says_why_and_leaves_nothing(
    server: Server, cache: Path, path: str, reply: Reply, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reply.hang:
        monkeypatch.setattr(zenodo, "TIMEOUT", (10.0, 0.5))
    server.play_zenodo(Reply(BODY))
    server.replies[path] = [reply]
    with pytest.raises(FetchError) as caught:
        fetch(THREE)
    message = str(caught.value)
    assert message.startswith(f"no source delivered {NAME} (subset three). Zenodo record {DOI}: ")
    assert expected in message
    assert f"Set GECS_DATA_DIR to a folder that holds {NAME} (the released file of doi:{DOI})" in message
    assert "\n" not in message
    assert files_in(cache) == []
    assert cached(THREE) is None


def test_a_record_without_the_file_is_listed(server: Server) -> None:
    server.play_zenodo(names=("test_ruby.jsonl", "test_adv.jsonl"))
    with pytest.raises(
        FetchError, match=r"does not hold test_three\.jsonl; it lists test_adv\.jsonl, test_ruby\.jsonl\."
    ):
        fetch(THREE)


def test_an_unreachable_server_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    host = closed_host()
    point_pooch_at(f"http://{host}", monkeypatch.setattr)
    with pytest.raises(FetchError, match=rf"no connection to {host} \(offline\?\)"):
        fetch(THREE)


def test_a_bad_setting_of_requests_is_not_blamed_on_the_cache(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "no-such-bundle")
    point_pooch_at(f"https://{closed_host()}", monkeypatch.setattr)
    with pytest.raises(FetchError, match=rf"Zenodo record {DOI}: .*CA certificate bundle.*no-such-bundle"):
        fetch(THREE)


def test_a_broken_download_is_tried_again_and_a_refusal_is_not(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zenodo, "RETRIES", 1)
    server.play_zenodo(Reply(BODY[:100], length=len(BODY)), Reply(BODY))
    assert fetch(THREE).path.read_bytes() == BODY
    assert server.asked.count(FILE) == 2
    server.play_zenodo(Reply(status=404), Reply(BODY))
    with pytest.raises(FetchError, match="HTTP status 404"):
        fetch(THREE)
    assert server.asked.count(FILE) == 3


def test_another_row_count_is_refused_with_both_numbers(server: Server, cache: Path) -> None:
    server.play_zenodo(Reply(TWO_ROWS), md5=hashlib.md5(TWO_ROWS).hexdigest())
    with pytest.raises(FetchError, match="its file has 2 rows, expected 3 or 5"):
        fetch(THREE)
    assert files_in(cache) == []


def test_another_sha256_is_refused_with_both_digests(server: Server, cache: Path) -> None:
    server.play_zenodo(Reply(BODY))
    with pytest.raises(FetchError, match=f"its file has sha256 {SHA256}, expected {'0' * 64}"):
        fetch(dataclasses.replace(THREE, sha256="0" * 64))
    assert files_in(cache) == []


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False), (None, False)])
def test_progress_goes_to_stderr(
    server: Server, progress: bool | None, shown: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    server.play_zenodo(Reply(BODY))
    fetch(THREE, progress=progress)
    out, err = capfd.readouterr()
    assert out == ""
    assert ("100%" in err) is shown


# --- The cache ------------------------------------------------------------------------------------------------------


def test_the_cache_dir(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert cache_dir() == cache
    monkeypatch.setenv("GECS_CACHE_DIR", "~/somewhere")
    assert cache_dir() == Path.home() / "somewhere"
    monkeypatch.delenv("GECS_CACHE_DIR")
    assert cache_dir().parts[-1] == "gecs-tasks"


def alter(data: Path, sidecar: Path) -> None:
    data.write_bytes(BODY.replace(b"comment 1", b"comment 7"))


def cut(data: Path, sidecar: Path) -> None:
    data.write_bytes(BODY[:-1])


def lose(data: Path, sidecar: Path) -> None:
    sidecar.unlink()


def garble(data: Path, sidecar: Path) -> None:
    sidecar.write_bytes(b'{"origin": \xff')


def empty(data: Path, sidecar: Path) -> None:
    sidecar.write_text("[]")


def forge(data: Path, sidecar: Path) -> None:
    alter(data, sidecar)
    sidecar.write_text(json.dumps({"origin": "?", "sha256": hashlib.sha256(data.read_bytes()).hexdigest()}))


@pytest.mark.parametrize(
    ("damage", "warning"),
    [
        (alter, f"but {SHA256} was fetched"),
        (cut, f"but {SHA256} was fetched"),
        (lose, f"it has no {NAME}.origin.json beside it, so no fetch of it completed"),
        (garble, "it cannot be checked"),
        (empty, f"{NAME}.origin.json does not state its origin and sha256"),
        (forge, f"but the released file has {SHA256}"),
    ],
)
def test_a_damaged_cache_is_not_used_and_fetched_again(
    server: Server, damage: Callable[[Path, Path], None], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    subset = dataclasses.replace(THREE, sha256=SHA256)
    server.play_zenodo(Reply(BODY))
    fetched = fetch(subset)
    damage(fetched.path, fetched.path.with_name(f"{NAME}.origin.json"))
    assert cached(subset) is None
    (record,) = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "gecs_tasks.sources.fetch")
    assert f"not using the cached {fetched.path}, to be fetched again: " in record.getMessage()
    assert warning in record.getMessage()
    assert fetch(subset) == fetched == cached(subset)
    assert fetched.path.read_bytes() == BODY


def test_a_cache_that_cannot_be_written_is_named(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GECS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    server.play_zenodo(Reply(BODY))
    assert cached(THREE) is None
    with pytest.raises(FetchError) as caught:
        fetch(THREE)
    assert str(caught.value) == (
        f"cannot write to the cache folder {tmp_path}/file/cache (Not a directory): make it writable, or set "
        "GECS_CACHE_DIR to a folder that is"
    )


def test_a_fetch_that_ends_before_its_sidecar_is_not_trusted(server: Server, cache: Path) -> None:
    server.play_zenodo(Reply(BODY))
    (cache / f"{NAME}.origin.json" / "in the way").mkdir(parents=True)
    with pytest.raises(FetchError, match="cannot write to the cache folder"):
        fetch(THREE)
    assert (cache / NAME).read_bytes() == BODY
    assert cached(THREE) is None


def test_two_fetches_at_once_leave_one_whole_file(server: Server, cache: Path) -> None:
    server.play_zenodo(Reply(BODY))
    start = threading.Barrier(2)

    def run() -> Fetched:
        start.wait()
        return fetch(THREE)

    with ThreadPoolExecutor(2) as pool:
        first, second = (future.result() for future in [pool.submit(run), pool.submit(run)])
    assert first == second == cached(THREE)
    assert first.path.read_bytes() == BODY
    assert files_in(cache) == [NAME, f"{NAME}.origin.json"]


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
import test_fetch
test_fetch.point_pooch_at(sys.argv[2], setattr)
test_fetch.fetch(test_fetch.THREE)
"""


def test_a_killed_download_is_not_trusted(server: Server, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    server.play_zenodo(Reply(BODY[:100], length=len(BODY), hang=True))
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(Path(__file__).parent), server.url])
    try:
        assert server.hanging.wait(60), "the download never began"
    finally:
        process.kill()
        process.wait()
    (remains,) = cache.iterdir()
    assert remains.name.startswith(".partial-")
    assert cached(THREE) is None
    assert caplog.records == []
    server.play_zenodo(Reply(BODY))
    assert fetch(THREE) == cached(THREE)
    assert remains.exists()  # Its download might still run, for all that this one can tell.
    os.utime(remains, (0, 0))
    fetch(THREE)
    assert files_in(cache) == [NAME, f"{NAME}.origin.json"]


# --- The Hub --------------------------------------------------------------------------------------------------------


def test_the_hub_stands_in_for_zenodo(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = [BODY.decode().splitlines()[0], BODY.decode().splitlines()[2]]
    readme = "---\nconfigs:\n- config_name: ruby\n  data_files:\n  - split: test\n    path: ruby/test-*\n---\n"
    repo = hub_folder(tmp_path / "hub", {"README.md": readme, "ruby/.keep": ""})
    table = pa.table(
        {"func_documentation_tokens": [["comment", "0"], ["comment", "2"]], "func_code_tokens": [["code"]] * 2}
    )
    pq.write_table(table, tmp_path / "hub" / "ruby" / "test-00000-of-00001.parquet")
    subset = dataclasses.replace(THREE, rows=(2,), hub=HubSource(repo, "codesearchnet", "ruby", "test"))
    server.play_zenodo(Reply(status=500))
    fetched = fetch(subset, progress=True)
    assert fetched.origin == f"Hugging Face Hub {repo} (rebuilt from its raw rows)"
    assert fetched.path.read_text("utf-8").splitlines() == lines
    assert cached(subset) == fetched
    assert "2/2" in capfd.readouterr().err


def test_every_source_that_fails_is_named(server: Server, tmp_path: Path, cache: Path) -> None:
    repo = hub_folder(tmp_path / "hub", {"test.json": [{"Comment": "a", "Kode": "b"}]})
    server.play_zenodo(Reply(status=404))
    source = HubSource(repo, "statcodesearch", None, "test")
    for changed, expected in [
        (source, "raw row 0 (from 0) lacks column Code; found columns Comment, Kode; expected Comment, Code."),
        (dataclasses.replace(source, split="train"), "ValueError: Bad split: train. Available splits: ['test']."),
    ]:
        with pytest.raises(FetchError) as caught:
            fetch(dataclasses.replace(THREE, hub=changed))
        assert str(caught.value) == (
            f"no source delivered {NAME} (subset three). "
            f"Zenodo record {DOI}: HTTP status 404 (Not Found) from {server.url[7:]}. "
            f"Hugging Face Hub {repo}: {expected} "
            f"Set GECS_DATA_DIR to a folder that holds {NAME} (the released file of doi:{DOI}), or try again "
            "with network"
        )
    assert files_in(cache) == []


def test_a_hub_out_of_reach_is_a_clear_line(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    source = HubSource("someone/rows", "statcodesearch", None, "test")
    subset = dataclasses.replace(THREE, released=False, hub=source)
    server.replies["/api/datasets/someone/rows"] = [Reply(b"{}", status=503)]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    for endpoint, expected in [
        (f"http://{closed_host()}", "Hub someone/rows: no connection (offline?): "),
        (server.url, "Hub someone/rows: HTTP status 503."),
    ]:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        with pytest.raises(FetchError) as caught:
            fetch(subset)
        assert expected in str(caught.value)
        assert "Zenodo" not in str(caught.value)
    assert server.asked == ["/api/datasets/someone/rows"]
    server.replies["/api/datasets/someone/rows"] = [Reply(hang=True)]
    monkeypatch.setattr(hub, "TIMEOUT", 0.3)
    with pytest.raises(FetchError, match=r"Hub someone/rows: timeout, no answer within 0\.3 s"):
        fetch(subset)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FetchError, match="Hub someone/rows: offline mode is on: unset HF_HUB_OFFLINE"):
        fetch(subset)


FROM_HUB = """
import dataclasses, sys
sys.path.insert(0, sys.argv[1])
from test_fetch import THREE, HubSource, fetch
source = HubSource("someone/rows", "statcodesearch", None, "test")
print(fetch(dataclasses.replace(THREE, released=False, hub=source)).origin)
"""


def test_rows_stream_from_the_hub_at_one_revision(server: Server, cache: Path, tmp_path: Path) -> None:
    about, moved_on = (
        Reply(json.dumps({"id": "someone/rows", "sha": sha, "siblings": []}).encode()) for sha in (REVISION, "f" * 40)
    )
    rows = json.dumps([{"Comment": f"comment {n}", "Code": "code"} for n in range(3)]).encode()
    listed = [{"type": "file", "path": "test.json", "size": len(rows), "oid": "0" * 40}]
    server.replies = {
        "/api/datasets/someone/rows": [about, moved_on],
        f"/api/datasets/someone/rows/revision/{REVISION}": [about],
        f"/api/datasets/someone/rows/tree/{REVISION}": [Reply(json.dumps(listed).encode())],
        f"/datasets/someone/rows/resolve/{REVISION}/test.json": [Reply(rows, status=206)],
    }
    # The Hub's address is read when its library is imported, hence a process of its own.
    settings = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", FROM_HUB, str(Path(__file__).parent)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "Hugging Face Hub someone/rows@0123456 (rebuilt from its raw rows)\n", done.stderr
    assert (cache / NAME).read_bytes() == BODY
