"""``gecs enable``, ``disable`` and ``status``: whether plain ``lm_eval`` knows us in this environment.

Two small files of our own in this environment's site-packages, and nothing in anybody else's folder: a copy of
:mod:`gecs_tasks.startup`, and the file that makes Python call it when it starts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import py_compile
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gecs_tasks import startup
from gecs_tasks.errors import SettingError

_MODULE: Final = "_gecs_tasks_startup"
_PTH: Final = "gecs_tasks_enable.pth"
_START: Final = "gecs_tasks_enable.start"

# Guarded, because site prints a traceback at every start of Python for a line that fails.
_PTH_TEXT: Final = (
    f'import sys; exec("try:\\n from {_MODULE} import install\\n install()\\nexcept Exception:\\n pass")\n'
)
_START_TEXT: Final = f"{_MODULE}:install\n"


@dataclass(frozen=True)
class ActivationStatus:
    """Whether plain ``lm_eval`` knows us in this environment, and why.

    ``stale``: the files are there but not as this version of the package writes them. ``switched_off``: the
    environment variable ``GECS_DISABLE`` is set. ``active_in_process``: this process waits for lm-eval, or has
    completed it. ``reason`` is one line for people.
    """

    enabled: bool
    files: tuple[Path, ...]
    stale: bool
    switched_off: bool
    active_in_process: bool
    reason: str


def enable() -> list[Path]:
    """Write the start-up files into this environment; those of an older version are replaced.

    :return: the files that were written.
    :raises SettingError: where the environment's site-packages cannot be written.
    """
    files = _expected()
    try:
        for path, text in files.items():  # the module first: no start of Python may meet the hook without it
            _write(path, text)
    except OSError as error:
        raise _cannot_write(error) from error
    # Compiled now, for those who may run this environment but not write to it.
    with contextlib.suppress(OSError):
        py_compile.compile(str(_module_file()), quiet=2)
    return list(files)


def disable() -> list[Path]:
    """Remove the start-up files from this environment.

    :return: the files that were removed; none where there are none.
    :raises SettingError: where they cannot be removed.
    """
    module = _module_file()
    compiled = Path(importlib.util.cache_from_source(str(module))).parent
    removed = []
    try:
        # The module last: no start of Python may meet the hook without it.
        for path in (_folder() / _PTH, _folder() / _START, module, *compiled.glob(f"{_MODULE}.*.pyc")):
            if path.exists():
                path.unlink()
                removed.append(path)
    except OSError as error:
        raise _cannot_write(error) from error
    return removed


def status() -> ActivationStatus:
    """Whether plain ``lm_eval`` knows us in this environment, and why."""
    expected = _expected()
    files = tuple(path for path in expected if path.exists())
    enabled = len(files) == len(expected)
    stale = bool(files) and not all(_holds(path, text) for path, text in expected.items())
    switched_off = startup.switched_off()
    if not files:
        reason = f"not enabled in {_folder()}: run gecs enable to make plain lm_eval know the gecs tasks and models"
    elif stale:
        reason = f"{files[-1]} is not complete or from another version of gecs-tasks: run gecs enable again"
    elif switched_off:
        reason = f"enabled by {files[-1]}, but switched off: {startup.SWITCH}={os.environ[startup.SWITCH]} is set"
    else:
        reason = f"enabled by {files[-1]}: plain lm_eval knows the gecs tasks and models"
    return ActivationStatus(enabled, files, stale, switched_off, startup.watching(), reason)


def _folder() -> Path:
    return Path(sysconfig.get_path("purelib"))


def _module_file() -> Path:
    return _folder() / f"{_MODULE}.py"


def _expected() -> dict[Path, str]:
    """The files of an enabled environment with their texts, in the order in which they are to be written."""
    # From 3.15 on (PEP 829) .start files name what to call, and import lines in .pth files are on their way out.
    hook = (_START, _START_TEXT) if sys.version_info >= (3, 15) else (_PTH, _PTH_TEXT)
    return {_module_file(): Path(startup.__file__).read_text(encoding="utf-8"), _folder() / hook[0]: hook[1]}


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


def _write(path: Path, text: str) -> None:
    """Write a file so that nobody ever reads half of it."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")  # not tempfile: others must be able to read it
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _cannot_write(error: OSError) -> SettingError:
    return SettingError(
        f"{_folder()} cannot be written ({error.strerror}): "
        "install lm-eval and gecs-tasks in a virtual environment of your own (python -m venv) and enable them there"
    )
