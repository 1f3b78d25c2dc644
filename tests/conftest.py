"""Fixtures shared by the suite. Real data is found through GECS_DATA_DIR; tests that need it skip without it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REAL_DATA = str(Path(os.environ["GECS_DATA_DIR"]).resolve()) if os.environ.get("GECS_DATA_DIR") else ""

# No test may reach a hub.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every test starts without the user's settings, and with a cache of its own."""
    for name in list(os.environ):
        if name.startswith("GECS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GECS_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of real benchmark files, in effect for the test."""
    if not REAL_DATA or not Path(REAL_DATA).is_dir():
        pytest.skip("needs real benchmark files: set GECS_DATA_DIR")
    monkeypatch.setenv("GECS_DATA_DIR", str(Path(REAL_DATA).resolve()))
    return Path(REAL_DATA).resolve()


@pytest.fixture
def evaluate(monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """Run tasks on a model through the harness's own front door, returning its results."""
    # Three seconds a run on the versions of everything installed, which no figure depends on.
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)

    def run(model: Any, tasks: str, **settings: Any) -> dict[str, Any]:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager

        from gecs_tasks import plugin

        plugin.activate()
        # Our tasks alone: indexing the harness's own thousands takes seconds. The metadata is what its CLI makes of it.
        metadata = {**settings.get("model_args", {}), **settings.pop("metadata", {})}
        manager = TaskManager(include_path=str(plugin.tasks_path()), include_defaults=False, metadata=metadata)
        settings = {"model_args": {}, "log_samples": False, "bootstrap_iters": 100, **settings}
        results: dict[str, Any] = simple_evaluate(model=model, tasks=tasks.split(","), task_manager=manager, **settings)
        return results

    return run
