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
from gecs_tasks.benchmark import FAMILIES, GROUPS, SUBSETS, TASKS, task_name
from gecs_tasks.errors import GecsError, MissingExtraError, SettingError
from gecs_tasks.secrets import secret_names

logger = logging.getLogger(__name__)

# The harness's extra that brings each package its model types need.
_MODEL_EXTRAS: Final = {"torch": "hf", "transformers": "hf", "vllm": "vllm", "tenacity": "api", "tiktoken": "api"}
_MAPPINGS: Final = ("model_args", "metadata", "gen_kwargs", "wandb_args", "trackio_args", "hf_hub_log_args")


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
    try:
        parsed = cli.parse_args()  # without arguments it prints the run command's help and exits
    except ValueError as error:  # of an argument that looks like JSON and is none
        raise SettingError(str(error)) from None
    settings = _settings(parsed)
    _refuse_secrets(settings)
    tasks = _resolve(_task_list(settings.get("tasks")))
    model = str(settings.get("model") or "hf")
    _check_options(settings)
    _check_model(model)
    _load_data(tasks, settings.get("samples"))
    _default_per_query(settings)
    parsed.tasks = tasks
    if model in plugin.MODELS:
        _name_the_model(parsed, settings, model)
    try:
        cli.execute(parsed)
    except ModuleNotFoundError as error:
        raise _missing(error, model) from None
    except ValueError as error:
        if not str(error).startswith("Tasks not found: "):
            raise
        raise _unknown_tasks(str(error).removeprefix("Tasks not found: ").split(", ")) from None


def _is_not_a_hint_for_others(record: logging.LogRecord) -> bool:
    # The harness warns at every task with a loader of its own that the loader may take keywords.
    message = record.getMessage()
    return not (message.startswith("gecs_") and "Custom kwargs can be passed" in message)


def _settings(parsed: Namespace) -> dict[str, Any]:
    """The command line's settings over those of its ``--config`` file, as the harness merges and checks them."""
    import yaml
    from lm_eval.config.evaluate_config import EvaluatorConfig

    given = {name: value for name, value in vars(parsed).items() if (value or value == 0) and name != "func"}
    try:
        config = EvaluatorConfig.load_yaml_config(given["config"]) if given.get("config") else {}
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise SettingError(f"--config: {' '.join(str(error).split())}") from None
    return {**config, **given}


def _check_options(settings: Mapping[str, Any]) -> None:
    """What the harness itself would say in a traceback."""
    limit, output = settings.get("limit"), settings.get("output_path")
    if limit is not None and not (isinstance(limit, (int, float)) and limit > 0):
        raise SettingError(f"--limit is {limit}: expected a number of documents, or a share of them below 1")
    if limit is not None and settings.get("samples"):
        raise SettingError("--limit and --samples exclude each other: give one of them")
    if (settings.get("log_samples") or settings.get("predict_only")) and not output:
        raise SettingError("--log_samples and --predict_only write files: add --output_path")
    if output and Path(str(output)).is_file() and Path(str(output)).suffix != ".json":
        raise SettingError(f"--output_path {output} is a file: give a directory, or a name that ends in .json")
    for option in ("model_args", "metadata"):
        ours = [name for name in ("gecs", "gecs_subset") if name in (settings.get(option) or {})]
        if ours:
            raise SettingError(f"--{option} holds {ours[0]!r}, which a task sets for itself: choose it by --tasks")


def _refuse_secrets(settings: Mapping[str, Any]) -> None:
    # Model arguments reach every task's metadata in the results file, and all of these reach the shell's history.
    for option in _MAPPINGS:
        for name in secret_names(settings.get(option)):
            raise SettingError(
                f"--{option} holds {name!r}, which could end up in the results file: leave it out and set the "
                "environment variable that is read for it (OPENAI_API_KEY, ANTHROPIC_API_KEY, HF_TOKEN, ...)"
            )


def _task_list(tasks: Any) -> list[str]:
    parts = [tasks] if isinstance(tasks, str) else list(tasks or [])
    if not all(isinstance(part, str) for part in parts):
        raise SettingError(f"tasks are {parts!r}: expected names")
    names = [name.strip() for part in parts for name in part.split(",") if name.strip()]
    if not names:
        raise SettingError("no --tasks given; `gecs tasks` lists them, e.g. --tasks gecs_statcode")
    return names


def _resolve(names: Iterable[str]) -> list[str]:
    """Our names with wildcards resolved and each task wanted once; other names as they are.

    The harness refuses a task that it meets twice, as in two groups: a group or task that another one holds wholly is
    left out, which changes nothing.

    :raises SettingError: for names that look ours and are not, and for groups of which each holds a part of the other.
    """
    ours: dict[str, frozenset[str]] = {}
    others, unknown = [], []
    for name in names:
        matches = fnmatch.filter((*TASKS, *GROUPS), name) if name.startswith("gecs") else []
        ours.update((match, frozenset(_leaves(match))) for match in matches)
        if not matches:
            others.append(name)
            if name.startswith("gecs") and not name.endswith(".yaml") and not Path(name).is_dir():
                unknown.append(name)
    if unknown:
        raise _unknown_tasks(unknown)
    kept: dict[str, frozenset[str]] = {}
    for name in sorted(ours, key=lambda name: -len(ours[name])):
        holder = next((other for other in kept if ours[name] <= kept[other]), None)
        clash = next((other for other in kept if ours[name] & kept[other]), None)
        if holder:
            logger.info("%s is run as a part of %s", name, holder)
        elif clash:
            raise SettingError(
                f"{name} and {clash} share some tasks, and the harness runs a task once: name tasks or smaller groups"
            )
        else:
            kept[name] = ours[name]
    return [*(name for name in ours if name in kept), *others]


def _leaves(name: str) -> list[str]:
    return [leaf for member in GROUPS[name].members for leaf in _leaves(member)] if name in GROUPS else [name]


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


def _missing(error: ModuleNotFoundError, model: str) -> GecsError:
    if error.name is None:  # the harness's own words, which say what to install
        return SettingError(f"--model {model}: {' '.join(str(error).split())}")
    package = error.name.split(".")[0]
    extra = _MODEL_EXTRAS.get(package)
    return MissingExtraError(f"--model {model}", package, f'"lm-eval[{extra}]"' if extra else package)


def _load_data(names: Sequence[str], samples: Any) -> None:
    """Find, fetch and parse our tasks' data, and draw, before a model is loaded, which can take minutes."""
    from gecs_tasks.collection import load

    wanted = {leaf for name in names for leaf in (_leaves(name) if name in GROUPS else [name])}
    for subset in SUBSETS:
        tasks = [task_name(subset, family) for family in FAMILIES if task_name(subset, family) in wanted]
        if not tasks:
            continue
        collection = load(subset)
        found = collection.fingerprint
        logger.info("%s: %d rows from %s (%s), %s", subset, found.rows, found.file, found.origin, found.status)
        for task in tasks:
            ranks = task.startswith(f"gecs_{subset}_rank")
            drawn = collection.pools if ranks else collection.negatives
            n_documents = len(drawn) * (1 if ranks else 2)
            chosen = samples.get(task, []) if isinstance(samples, Mapping) else []
            outside = [index for index in chosen if not isinstance(index, int) or not 0 <= index < n_documents]
            if outside:
                raise SettingError(f"--samples asks for document {outside[0]} of {task}: it has 0 to {n_documents - 1}")


def _default_per_query(settings: Mapping[str, Any]) -> None:
    """Write per-query files beside the results, unless the user said where they go."""
    output = settings.get("output_path")
    if output and not os.environ.get(per_query.DIRECTORY_VARIABLE):
        path = Path(str(output))
        os.environ[per_query.DIRECTORY_VARIABLE] = str(path.parent if path.suffix == ".json" else path)


def _name_the_model(parsed: Namespace, settings: Mapping[str, Any], model: str) -> None:
    """Give a model without a name one for the folder of its results; the harness would draw one at random."""
    given = settings.get("model_args") or {}
    if isinstance(given, Mapping) and not {"pretrained", "model", "path"} & set(given):
        parsed.model_args = {**given, "model": model}
