"""Throwaway Python environments, for what must not happen in the suite's own: Python's start, lm-eval's registries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gecs_tasks

REPOSITORY = Path(gecs_tasks.__file__).parents[1]


@dataclass(frozen=True)
class Environment:
    """A Python environment of its own, with this one's packages and, by ``package.pth``, gecs-tasks."""

    python: Path
    site: Path

    def run(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GECS_", "PYTHON", "LMEVAL_"))}
        return subprocess.run(
            [str(self.python), "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            cwd=self.site.parent,  # with -c the working folder is importable, and this checkout must not be
            env={**kept, "PYTHONDONTWRITEBYTECODE": "1", **variables},
            check=False,
        )

    def told(self, code: str, **variables: str) -> Any:
        """What a script printed as JSON; it has to succeed and to say nothing else."""
        done = self.run(code, **variables)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return json.loads(done.stdout)

    def enable(self) -> None:
        done = self.run("from gecs_tasks.activation import enable; enable()")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def files(self) -> set[str]:
        return {str(path.relative_to(self.site)) for path in self.site.rglob("*") if path.is_file()}

    @contextmanager
    def borrowed(self) -> Iterator[Environment]:
        """The environment for one test: not enabled, gecs-tasks importable; what the test leaves there is removed."""
        (self.site / "package.pth").write_text(f"{REPOSITORY}\n")
        yield self
        for path in (*self.site.glob("*gecs_tasks*"), *self.site.glob("__pycache__/*")):
            path.unlink()


def new_environment(folder: Path) -> Environment:
    """Make an environment that borrows the packages of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    # Plain path lines: the .pth files over there are not read, so that an enabled developer's environment is no matter.
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "borrowed.pth").write_text("\n".join(packages) + "\n")
    return Environment(python, site)
