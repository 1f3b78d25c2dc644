"""Importing the package loads nothing heavy, and its public names are one list."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gecs_tasks

HEAVY = ("torch", "transformers", "datasets", "lm_eval", "scipy", "sklearn", "pyarrow", "pandas", "bm25s", "pooch")


@pytest.mark.parametrize(
    "module",
    ["gecs_tasks", "gecs_tasks.benchmark", "gecs_tasks.cli", "gecs_tasks.collection", "gecs_tasks.metrics"],
)
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_itself_loads_not_even_numpy() -> None:
    code = "import sys, gecs_tasks; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_public_list() -> None:
    assert sorted(gecs_tasks.__all__) == [
        "Collection",
        "Fingerprint",
        "GecsError",
        "PairBatch",
        "PairScorer",
        "SUBSETS",
        "__version__",
        "candidate_pools",
        "draw_digest",
        "gold_ranks",
        "load",
        "matching_negatives",
    ]
    for name in gecs_tasks.__all__:
        assert getattr(gecs_tasks, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        gecs_tasks.nothing  # noqa: B018
