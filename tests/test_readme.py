"""The README's console transcripts: every command is run, and every line shown is in what it prints."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gecs_tasks import activation
from tests.conftest import REAL_DATA

ROOT = Path(__file__).parent.parent


class Step(NamedTuple):
    command: str
    output: list[str]


def transcripts() -> list[list[Step]]:
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return [list(steps(block.splitlines())) for block in blocks]


def steps(lines: list[str]) -> Iterator[Step]:
    step: Step | None = None
    for line in lines:
        if line.startswith("$ "):
            if step:
                yield step
            step = Step(line[2:], [])
        elif step and line.strip():
            step.output.append(line)
    if step:
        yield step


@pytest.fixture
def _leave_nothing_enabled() -> Iterator[None]:
    was_enabled = activation.status().enabled
    yield
    if not was_enabled:
        activation.disable()


@pytest.mark.usefixtures("_leave_nothing_enabled")
@pytest.mark.parametrize("transcript", transcripts(), ids=lambda steps: steps[0].command)
def test_transcript(transcript: list[Step], tmp_path: Path) -> None:
    # as in a shell: the suite itself may be run by make, whose flags would be handed down
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    environment = {**inherited, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    needs_data = any("gecs_statcode" in step.command for step in transcript)
    if needs_data and not REAL_DATA:
        pytest.skip("needs real benchmark files: set GECS_DATA_DIR")
    if needs_data:
        environment["GECS_DATA_DIR"] = REAL_DATA
    for command, shown in transcript:
        at_root = command.startswith("make ")  # these are said of a checkout
        if at_root and Path(sys.executable).parent != ROOT / ".venv/bin":
            pytest.skip("make uses the checkout's .venv, and this is another environment")
        done = subprocess.run(
            shlex.split(command), cwd=ROOT if at_root else tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert shows(shown, [line.rstrip() for line in done.stdout.splitlines() if line.strip()])


def shows(shown: list[str], printed: list[str]) -> bool:
    """Whether the lines shown are all that was printed, but for what ``...`` stands for; make's own echo aside."""
    printed = [line for line in printed if not line.startswith((".venv/bin/", "make: "))]
    if not shown:
        return True
    blocks: list[list[str]] = [[]]
    for line in shown:
        if line == "...":
            blocks.append([])
        else:
            blocks[-1].append(line.rstrip())
    return re.search(
        ".*".join(re.escape("\n".join(block)) for block in blocks), "\n".join(printed), re.DOTALL
    ) is not None and ("..." in shown or len(shown) == len(printed))


def test_what_counts_as_shown() -> None:
    assert shows(["a", "b"], ["a", "b"])
    assert not shows(["a"], ["a", "b"])
    assert not shows(["b", "a"], ["a", "b"])
    assert shows(["...", "b", "..."], ["a", "b", "c"])
    assert not shows(["...", "a", "c"], ["a", "b", "c"])


def test_links_within_the_project_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"
