"""``gecs status``: what a user pastes into a bug report."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

import gecs_tasks
from gecs_tasks import activation, plugin
from gecs_tasks.benchmark import RELEASED, SUBSETS
from gecs_tasks.errors import DataError
from gecs_tasks.sources import fetch
from gecs_tasks.sources.locate import DATA_DIR_VARIABLE, data_dir, locate

_PACKAGES: Final = ("lm_eval", "numpy", "datasets", "bm25s", "torch", "transformers", "sentence-transformers", "vllm")

# What each model needs beyond the base install: module to import, and what to install where it is missing.
_NEEDS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "gecs-bm25": (("bm25s", "bm25s"),),
    "gecs-embedding": (("sentence_transformers", '"gecs-tasks[sentence-transformers]"'),),
    "gecs-cross-encoder": (("transformers", '"gecs-tasks[cross-encoder]"'), ("torch", '"gecs-tasks[cross-encoder]"')),
}


def status_lines() -> Iterator[str]:
    """The report, a line at a time."""
    yield f"gecs-tasks {gecs_tasks.__version__}, Python {platform.python_version()} on {platform.platform()}"
    yield f"  {sys.executable}"
    yield ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    yield ""
    yield "Ways in"
    yield "  gecs run ...                       always"
    yield f"  lm_eval --include_path ...         {plugin.tasks_path()}"
    yield f"  lm_eval --tasks gecs_... (plain)   {activation.status().reason}"
    yield ""
    yield "Data"
    yield f"  cache: {fetch.cache_dir()}"
    try:
        yield f"  {DATA_DIR_VARIABLE}: {data_dir() or 'not set'}"
    except DataError as error:
        yield f"  {error}"
    else:
        for name in RELEASED:
            yield f"  {name:<12}{_where(name)}"
    yield ""
    yield "Models of ours"
    for model in plugin.MODELS:
        yield f"  {model:<18}{_loadable(model)}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _where(subset: str) -> str:
    try:
        found = locate(SUBSETS[subset], download=False)
    except DataError as error:
        return str(error)
    return f"{found.path} ({found.origin})" if found else "not here: downloaded when a task needs it"


def _loadable(model: str) -> str:
    missing = dict.fromkeys(install for module, install in _NEEDS.get(model, ()) if find_spec(module) is None)
    return f"needs: pip install {' '.join(missing)}" if missing else "can load"
