"""What this package adds to lm-eval; the only module that touches lm-eval's registries.

lm-eval 0.4.13 discovers no plugins, so its modules are completed after they have been imported: at once where they
are loaded already, else by the finder in :mod:`gecs_tasks.startup`. A harness that discovers entry points may have
registered the same names before: a name that is taken is left alone.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final

from gecs_tasks import startup
from gecs_tasks.errors import DataError, GecsError

# Names, not classes, so that nothing heavy loads before a model is asked for. Not EntryPoint objects: 0.4.13 crashes
# when a class is registered beside one.
MODELS: Final[dict[str, str]] = {
    "gecs-bm25": "gecs_tasks.models:BM25Model",
    "gecs-embedding": "gecs_tasks.models:EmbeddingModel",
    "gecs-cross-encoder": "gecs_tasks.models:CrossEncoderModel",
}

_MARK: Final = "_gecs_tasks"  # on what we put into other people's modules, so that it is put there once

logger = logging.getLogger(__name__)


def tasks_path() -> Path:
    """The folder of our task YAMLs.

    Found from this file, not from the installed files: an editable install copies the folder, and that copy goes stale.

    :raises DataError: where the installation has no such folder.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "task_yamls", package.parent / "task_yamls"):  # a wheel's, a checkout's
        if folder.is_dir():
            return folder
    raise DataError(f"{package} has no task_yamls folder inside or beside it: reinstall gecs-tasks")


def activate() -> None:
    """Make lm-eval know our tasks, models and metrics, in this process only."""
    _join_the_harness()
    startup.watch()
    for name in _COMPLETIONS:
        if name in sys.modules:
            complete(sys.modules[name])


def complete(module: ModuleType) -> None:
    """Add what is ours to one of lm-eval's modules, which has just been imported.

    Another module is left as it is. A harness that has changed under us gets a warning and runs without us.
    """
    finish = _COMPLETIONS.get(module.__name__)
    if finish is None:
        return
    _join_the_harness()
    try:
        finish(module)
    except Exception as error:
        logger.warning(
            "gecs-tasks could not complete %s (%s: %s): parts of it are missing. This lm-eval may be too new for it",
            module.__name__,
            type(error).__name__,
            error,
        )


def _add_models(_: ModuleType) -> None:
    # Only now: with a model registered before its own are, the harness would never register its own.
    from lm_eval.api.registry import model_registry

    for name, target in MODELS.items():
        _register(model_registry, name, target)


def _add_metrics(_: ModuleType) -> None:
    from lm_eval.api import registry

    from gecs_tasks.metrics import AGGREGATIONS, METRICS

    for name, aggregation in AGGREGATIONS.items():
        _register(registry.aggregation_registry, name, aggregation)
    for name, metric in METRICS.items():
        _register(registry.metric_registry, name, metric.function)
        _register(registry.metric_agg_registry, name, registry.aggregation_registry.get(metric.aggregation))
        _register(registry.higher_is_better_registry, name, metric.higher_is_better)


def _register(registry: Any, name: str, target: Any) -> None:
    if name not in registry:
        registry.register(name, target=target)


def _add_tasks(module: ModuleType) -> None:
    """Make every ``TaskManager`` that indexes the harness's own tasks index ours as well."""
    manager: Any = module.TaskManager
    plain: Callable[..., None] = manager.__init__
    if hasattr(plain, _MARK):
        return
    signature = inspect.signature(plain)
    missing = {"include_path", "include_defaults"} - set(signature.parameters)
    if missing:
        raise TypeError(f"TaskManager no longer takes {' and '.join(sorted(missing))}")

    @functools.wraps(plain)
    def with_ours(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            plain(self, *args, **kwargs)  # says what is wrong with the call
            raise
        given = bound.arguments.get("include_path")
        if bound.arguments.get("include_defaults", True):
            bound.arguments["include_path"] = _including_ours(given)
        plain(*bound.args, **bound.kwargs)
        self.include_path = given

    setattr(with_ours, _MARK, True)
    manager.__init__ = with_ours


def _including_ours(given: Any) -> Any:
    """The folders to index: ours, then the user's, since the harness lets the later one win.

    :param given: what the user gave as include_path: nothing, a path, or several.
    :return: the same where ours lies in one of them; the harness warns of every task that it meets twice.
    """
    try:
        ours = tasks_path()
    except GecsError as error:
        logger.warning("gecs: %s", error)
        return given
    theirs = list(given) if isinstance(given, (list, tuple)) else [given] if given else []
    if any(ours.is_relative_to(Path(path).resolve()) for path in theirs):
        return given
    return [ours, *theirs]


def _join_the_harness() -> None:
    """Log where the harness logs, at its level; and have a user's error that nobody catches printed in one line."""
    logging.getLogger("gecs_tasks").parent = logging.getLogger("lm_eval")
    previous = sys.excepthook
    if hasattr(previous, _MARK):
        return

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, GecsError):
            print(f"gecs: {error}", file=sys.stderr)
        else:
            previous(kind, error, trace)

    setattr(report, _MARK, True)
    sys.excepthook = report


_COMPLETIONS: Final[dict[str, Callable[[ModuleType], None]]] = {
    "lm_eval.api.metrics": _add_metrics,
    "lm_eval.models": _add_models,
    "lm_eval.tasks.manager": _add_tasks,
}
