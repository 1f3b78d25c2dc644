"""What every test of a real vLLM needs: an environment for its processes, free ports, and servers that are ended.

Run by ``make test-vllm`` in an environment of its own. An engine must start under ``__main__``, since it spawns
processes; so engines run in processes of their own, and nothing here imports vLLM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.conftest import REAL_DATA

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
START_LIMIT = 600  # seconds for an engine to start
_TAIL = 6000  # characters of a log that are shown

_logs: list[Path] = []


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out unless a command line names it: plain ``pytest`` needs no vLLM."""
    folder = config.invocation_params.dir
    named = [(folder / argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(path.is_relative_to(HERE) for path in named) else True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of every log beside a failure."""
    report = yield
    if report.failed:
        report.sections += [(f"the end of {path.name}", tail(path)) for path in _logs if path.is_file()]
    return report


def environment(**variables: str) -> dict[str, str]:
    """The environment of a process with an engine in it: offline, without the user's settings and keys."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GECS_", "OPENAI_", "LMEVAL_"))}
    ours = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; on a GPU it says nothing
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    data = {"GECS_DATA_DIR": REAL_DATA} if REAL_DATA else {}
    return {**kept, **ours, **data, **variables}


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tail(path: Path) -> str:
    """The end of a log."""
    return path.read_text(encoding="utf-8", errors="replace")[-_TAIL:]


def watched(log: Path) -> Path:
    """The same path; from now on its end is shown beside every failure."""
    if log not in _logs:
        _logs.append(log)
    return log


class Process:
    """A process with a group of its own, so that ending it ends what it spawned; its output goes to a log."""

    def __init__(self, command: list[str], log: Path, folder: Path, **variables: str) -> None:
        self.log = watched(log)
        with log.open("ab") as file:
            self.popen = subprocess.Popen(
                command,
                cwd=folder,
                env=environment(**variables),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self, number: signal.Signals = signal.SIGTERM, limit: float = 30) -> None:
        """Signal the group, and after the limit kill it."""
        for each, seconds in ((number, limit), (signal.SIGKILL, limit)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, each)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(seconds)
        with contextlib.suppress(ProcessLookupError):  # what outlived the first process
            os.killpg(self.popen.pid, signal.SIGKILL)


class Server:
    """``vllm serve`` of one model on a port of 127.0.0.1, which can be killed and started again on the same port."""

    def __init__(self, model: str, arguments: tuple[str, ...], log: Path) -> None:
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.log = log
        where = ("--host", "127.0.0.1", "--port", str(self.port))
        self._command = [str(Path(sys.executable).parent / "vllm"), "serve", model, *where, *arguments]
        self._process: Process | None = None

    def start(self) -> None:
        """Start it and wait until it is healthy.

        :raises RuntimeError: with the end of its log, where it ended or took too long.
        """
        self._process = process = Process(self._command, self.log, self.log.parent)
        last = time.monotonic() + START_LIMIT
        while not self.healthy():
            ended = process.popen.poll() is not None
            if ended or time.monotonic() > last:
                self.kill()
                what = f"ended with {process.popen.returncode}" if ended else f"was not healthy in {START_LIMIT} s"
                raise RuntimeError(f"{' '.join(self._command)} {what}:\n{tail(self.log)}")
            time.sleep(0.5)

    def healthy(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=5) as answer:
                return int(answer.status) == 200
        except (urllib.error.URLError, OSError):
            return False

    def answered(self, path: str) -> int:
        """How many requests to a path it answered with 200, over all its starts."""
        return self.log.read_text(encoding="utf-8", errors="replace").count(f'"POST {path} HTTP/1.1" 200')

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        if self._process is not None:
            self._process.end(signal.SIGKILL)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.end()


@contextlib.contextmanager
def serve(model: str, *arguments: str, log: Path) -> Iterator[Server]:
    """A healthy ``vllm serve`` of a model, ended afterwards."""
    server = Server(model, arguments, log)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def run(*command: str, folder: Path, log: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``python`` with arguments in a folder; ``stdout`` has all it printed, ``stderr`` nothing."""
    path = folder / log
    process = Process(
        [sys.executable, *command], path, folder, **{"GECS_CACHE_DIR": str(folder / "cache"), **variables}
    )
    try:
        code = process.popen.wait(START_LIMIT + 240)
    finally:
        process.end(signal.SIGKILL, limit=5)
    return subprocess.CompletedProcess(command, code, path.read_text(encoding="utf-8", errors="replace"), "")


def gecs_run(*arguments: str, folder: Path, log: str = "gecs.log") -> subprocess.CompletedProcess[str]:
    """Run ``gecs run`` as :func:`run` does."""
    return run("-m", "gecs_tasks.cli", "run", *arguments, folder=folder, log=log)
