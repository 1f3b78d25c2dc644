"""Installs gecs-tasks as users do, and runs the harness's own command from another folder.

Minutes and a package index are needed, so the name keeps plain ``pytest`` from collecting this: ``make test-install``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pytest

import gecs_tasks

REPOSITORY = Path(gecs_tasks.__file__).parents[1]
RUN = ("--model", "gecs-bm25", "--tasks", "gecs_demo", "--output_path", "out")

How = Literal["wheel", "editable", "wheel beside an editable lm-eval"]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would, with nothing of this project or its tests in the environment."""
    ours = ("GECS_", "PYTHONPATH", "PYTHONHOME", "LMEVAL_", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        command,
        cwd=folder,
        env={**kept, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf_home")},
        capture_output=True,
        text=True,
        check=False,
    )


def done(command: list[str], folder: Path) -> str:
    """What a command that has to succeed printed on stdout."""
    finished = run(command, folder)
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


def numbers(folder: Path) -> str:
    """Every figure of a run's results file, as text, so that NaN equals NaN and nothing is rounded."""
    (path,) = (folder / "out").rglob("results_*.json")
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert {"gecs_demo_match", "gecs_demo_rank"} <= set(results)
    assert 0 < results["gecs_demo_rank"]["mrr,none"] <= 1
    return json.dumps(results, sort_keys=True, indent=1)


def files(*folders: Path) -> set[Path]:
    return {path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts}


@dataclass(frozen=True)
class Environment:
    """A fresh virtual environment."""

    folder: Path

    def program(self, name: str) -> str:
        return str(self.folder / ("Scripts" if os.name == "nt" else "bin") / name)

    def pip(self, *arguments: str) -> None:
        done([self.program("python"), "-m", "pip", *arguments, "--quiet"], self.folder)

    def python(self, code: str) -> tuple[int, str, str]:
        finished = run([self.program("python"), "-c", code], self.folder / "elsewhere")
        return finished.returncode, finished.stdout.strip(), finished.stderr

    def site(self) -> Path:
        return Path(self.python("import sysconfig; print(sysconfig.get_path('purelib'))")[1])


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("wheel")
    done([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(REPOSITORY)], folder)
    (built,) = folder.glob("*.whl")
    return str(built)


@pytest.fixture(scope="session")
def lm_eval_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm_eval")
    wanted = f"lm-eval=={version('lm-eval')}"
    done([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "lm-eval", wanted], folder)
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder)
    (source,) = (path.parent for path in folder.glob("*/pyproject.toml"))
    return source


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The figures of ``gecs run`` in the environment of these tests."""
    folder = tmp_path_factory.mktemp("expected")
    done([sys.executable, "-m", "gecs_tasks.cli", "run", *RUN], folder)
    return numbers(folder)


@pytest.fixture(params=["wheel", "editable", "wheel beside an editable lm-eval"])
def how(request: pytest.FixtureRequest) -> How:
    chosen: How = request.param
    return chosen


@pytest.fixture
def environment(how: How, wheel: str, lm_eval_source: Path, tmp_path: Path) -> Environment:
    folder = tmp_path / "environment"
    done([sys.executable, "-m", "venv", str(folder)], tmp_path)
    fresh = Environment(folder)
    if how == "wheel":
        fresh.pip("install", wheel)
    elif how == "editable":
        fresh.pip("install", "-e", str(REPOSITORY))
    else:
        fresh.pip("install", "-e", str(lm_eval_source), wheel)
    return fresh


def test_plain_lm_eval_in_an_enabled_environment(
    how: How, environment: Environment, lm_eval_source: Path, expected: str, tmp_path: Path
) -> None:
    lm_eval, gecs = environment.program("lm_eval"), environment.program("gecs")
    silent = (0, "", "")

    where = environment.python("import lm_eval; print(lm_eval.__file__)")[1]
    assert (str(lm_eval_source) in where) is (how == "wheel beside an editable lm-eval")
    assert environment.python("import importlib.util as u; print(u.find_spec('torch'))") == (0, "None", "")
    before = files(environment.site(), lm_eval_source)

    done([gecs, "enable"], tmp_path)
    assert len(files(environment.site(), lm_eval_source) - before) == 2
    assert environment.python("pass") == silent
    enabled = tmp_path / "enabled"
    table = done([lm_eval, *RUN], enabled)
    assert "|mrr" in table.replace(" ", "")
    assert numbers(enabled) == expected

    # without the extras: what to install is said in one line
    for model, extra in (("gecs-embedding", "sentence-transformers"), ("gecs-cross-encoder", "cross-encoder")):
        arguments = ["run", "--model", model, "--model_args", "pretrained=some/model", "--tasks", "gecs_demo"]
        missing = run([gecs, *arguments], tmp_path / "missing")
        assert missing.returncode == 2
        assert missing.stderr.splitlines()[-1].endswith(f'not installed: pip install "gecs-tasks[{extra}]"')
        assert "Traceback" not in missing.stderr

    done([gecs, "disable"], tmp_path)
    assert files(environment.site(), lm_eval_source) == before
    assert environment.python("pass") == silent
    failed = run([lm_eval, "--model", "dummy", "--tasks", "gecs_demo"], tmp_path / "disabled")
    assert failed.returncode != 0
    assert "Tasks not found: gecs_demo" in failed.stdout + failed.stderr

    done([gecs, "enable"], tmp_path)
    environment.pip("uninstall", "--yes", "gecs-tasks")
    assert environment.python("pass") == silent
    assert environment.python("import lm_eval.models, lm_eval.api.metrics") == silent
