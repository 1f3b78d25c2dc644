"""``gecs run``: checks what can be checked before a model is loaded, then hands over to lm-eval's own command line."""

from __future__ import annotations

import difflib
import fnmatch
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gecs_tasks import per_query, plugin
from gecs_tasks.benchmark import GROUPS, SUBSETS, TASKS, task_name
from gecs_tasks.errors import GecsError, MissingExtraError, SettingError

logger = logging.getLogger(__name__)

_KEY_NAMES: Final = (
    "api_key",
    "apikey",
    "api_token",
    "auth_token",
    "access_token",
    "hf_token",
    "token",
    "secret",
    "password",
)
# The harness's option that brings each of its optional model types.
_MODEL_EXTRAS: Final = {"torch": "hf", "transformers": "hf", "vllm": "vllm", "tenacity": "api", "tiktoken": "api"}


def run(arguments: Sequence[str]) -> None:
    """Run lm-eval's ``run`` command with our tasks and models registered.

    :param arguments: the arguments of ``lm_eval run``, unchanged.
    :raises GecsError: for what the user can mend; lm-eval's own parser exits for arguments that it does not know.
    """
    plugin.activate()
    from lm_eval._cli import HarnessCLI  # the harness takes seconds to import
    from lm_eval.utils import setup_logging

    setup_logging()
    logging.getLogger("lm_eval.api.task").addFilter(_is_not_a_hint_for_others)
    sys.argv = ["gecs", "run", *arguments]
    cli = HarnessCLI()
    if not arguments:
        cli.parse_args()  # prints the run command's help and exits
    parsed = cli.parse_args()
    settings = _settings(parsed)
    _refuse_keys(settings)
    tasks = _task_list(settings.get("tasks"))
    _check_tasks(tasks)
    _check_model(str(settings.get("model") or "hf"))
    _load_data(tasks)
    _default_per_query(settings)
    try:
        cli.execute(parsed)
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    except ValueError as error:
        if not str(error).startswith("Tasks not found: "):
            raise
        names = str(error).removeprefix("Tasks not found: ").split(", ")
        raise _unknown_tasks(names) from None


def _is_not_a_hint_for_others(record: logging.LogRecord) -> bool:
    # The harness warns at every task with a loader of its own that the loader may take keywords.
    message = record.getMessage()
    return not (message.startswith("gecs_") and "Custom kwargs can be passed" in message)


def _settings(parsed: Namespace) -> dict[str, Any]:
    """The command line's settings over those of its ``--config`` file, as the harness merges them."""
    given = {name: value for name, value in vars(parsed).items() if value or value == 0}
    if not (config := given.get("config")):
        return given
    from lm_eval.config.evaluate_config import EvaluatorConfig

    try:
        return {**EvaluatorConfig.load_yaml_config(config), **given}
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(f"--config: {error}") from None


def _refuse_keys(settings: Mapping[str, Any]) -> None:
    # Model arguments reach every task's metadata in the results file, and the shell's history.
    for option in ("model_args", "metadata"):
        arguments = settings.get(option)
        names = list(arguments) if isinstance(arguments, Mapping) else []
        if isinstance(arguments, str):
            names = [part.split("=", 1)[0].strip() for part in arguments.split(",")]
        for name in names:
            if str(name).lower() in _KEY_NAMES:
                raise SettingError(
                    f"--{option} holds {name!r}, which would be written into the results file: leave it out and set "
                    "the environment variable that the model reads (OPENAI_API_KEY, ANTHROPIC_API_KEY, HF_TOKEN, ...)"
                )


def _task_list(tasks: Any) -> list[str]:
    if tasks is None:
        raise SettingError("no --tasks given; `gecs tasks` lists them, e.g. --tasks gecs_statcode")
    parts = [tasks] if isinstance(tasks, str) else list(tasks)
    return [name for part in parts if isinstance(part, str) for name in part.split(",") if name]


def _check_tasks(names: Iterable[str]) -> None:
    ours = (*TASKS, *GROUPS)
    unknown = [
        name
        for name in names
        if name.startswith("gecs")
        and not name.endswith(".yaml")
        and not fnmatch.filter(ours, name)
        and not Path(name).is_dir()
    ]
    if unknown:
        raise _unknown_tasks(unknown)


def _unknown_tasks(names: Iterable[str]) -> SettingError:
    ours = (*TASKS, *GROUPS)
    described = []
    for name in names:
        near = difflib.get_close_matches(name, ours, n=1)
        described.append(f"{name} (did you mean {near[0]}?)" if near else name)
    return SettingError(
        f"no task is named {', '.join(described)}; `gecs tasks` lists ours, `lm_eval ls tasks` the harness's"
    )


def _check_model(name: str) -> None:
    import lm_eval.models  # noqa: F401  registers the built-in models, and with them ours
    from lm_eval.api.registry import get_model, model_registry

    if name not in model_registry:
        near = difflib.get_close_matches(name, list(model_registry), n=1)
        hint = f"did you mean {near[0]}?" if near else f"ours are {', '.join(plugin.MODELS)}"
        raise SettingError(f"no model type is named {name!r}: {hint} (--model)")
    try:
        get_model(name)
    except ModuleNotFoundError as error:
        raise _missing(error, name) from None


def _missing(error: ModuleNotFoundError, model: str | None = None) -> GecsError:
    package = (error.name or str(error)).split(".")[0]
    extra = _MODEL_EXTRAS.get(package)
    install = f'"lm-eval[{extra}]"' if extra else package
    return MissingExtraError(f"--model {model}" if model else "this run", package, install)


def _load_data(names: Iterable[str]) -> None:
    """Find, fetch and parse the data of our tasks before a model is loaded, which can take minutes."""
    from gecs_tasks.collection import load

    for subset in _subsets(names):
        collection = load(subset)
        found = collection.fingerprint
        logger.info("%s: %d rows from %s (%s), %s", subset, found.rows, found.file, found.origin, found.status)


def _subsets(names: Iterable[str]) -> list[str]:
    """The subsets behind task and group names, in the benchmark's order."""
    wanted: set[str] = set()
    pending = [match for name in names for match in fnmatch.filter((*TASKS, *GROUPS), name)]
    while pending:
        name = pending.pop()
        if name in GROUPS:
            pending.extend(GROUPS[name].members)
        else:
            wanted.add(name)
    return [subset for subset in SUBSETS if any(task_name(subset, family) in wanted for family in ("match", "rank"))]


def _default_per_query(settings: Mapping[str, Any]) -> None:
    """Write per-query files beside the results, unless the user said where they go."""
    output = settings.get("output_path")
    if output and not os.environ.get(per_query.DIRECTORY_VARIABLE):
        path = Path(str(output))
        os.environ[per_query.DIRECTORY_VARIABLE] = str(path.parent if path.suffix == ".json" else path)
