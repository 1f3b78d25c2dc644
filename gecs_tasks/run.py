"""``gecs run``: checks what can be checked before a model is loaded, then hands over to lm-eval's own command line."""

from __future__ import annotations

import difflib
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gecs_tasks import per_query, plugin
from gecs_tasks.benchmark import FAMILIES, GROUPS, N_DISTRACTORS, SUBSETS, TASKS, Family, task_name
from gecs_tasks.errors import GecsError, MissingExtraError, ModelError, SettingError
from gecs_tasks.secrets import secret_names
from gecs_tasks.selection import leaves, resolve, task_list, unknown_tasks

logger = logging.getLogger(__name__)

# The harness's extra that brings each package its model types need.
_MODEL_EXTRAS: Final = {"torch": "hf", "transformers": "hf", "vllm": "vllm", "tenacity": "api", "tiktoken": "api"}
# The harness's models that send a conversation and get text back.
_CHAT_ONLY: Final = (
    *("local-chat-completions", "openai-chat-completions", "anthropic-chat", "anthropic-chat-completions"),
    *("litellm", "litellm-chat", "litellm-chat-completions"),
)
_OF_CONNECTIONS: Final = ("requests", "aiohttp", "httpx", "urllib3", "openai", "anthropic", "litellm", "tenacity")
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
    tasks = resolve(task_list(settings.get("tasks")))
    model = str(settings.get("model") or "hf")
    _check_options(settings)
    _check_model(model)
    _check_chat(model, tasks, settings)
    _load_data(tasks, settings.get("samples"))
    _check_context(tasks, settings)
    _default_per_query(settings)
    parsed.tasks = tasks
    if model in plugin.MODELS:
        _name_the_model(parsed, settings, model)
    try:
        cli.execute(parsed)
    except ModuleNotFoundError as error:
        raise _missing(error, model) from None
    except Exception as error:
        if (mended := _explained(error, settings)) is None:
            raise
        raise mended from None


def _explained(error: Exception, settings: Mapping[str, Any]) -> GecsError | None:
    """What the user can mend of an error that the harness let through; None where it is not known to be that."""
    text = " ".join(str(error).split())
    if isinstance(error, ValueError) and text.startswith("Tasks not found: "):
        return unknown_tasks(text.removeprefix("Tasks not found: ").split(", "))
    if isinstance(error, ValueError) and "chat_template" in text:
        return SettingError(
            "--apply_chat_template: the model's tokenizer has no chat template. Leave the option out, or give a model "
            "or tokenizer that has one"
        )
    if type(error).__module__.partition(".")[0] in _OF_CONNECTIONS:
        kept = (
            f"What was answered is kept in the cache {settings['use_cache']}: run the same command again to go on"
            if settings.get("use_cache")
            else "Nothing was kept: with --use_cache PATH, answers are kept and the same command goes on where it ended"
        )
        return ModelError(f"the API stopped answering ({type(error).__name__}: {text[:300]}). {kept}")
    return None


def _check_chat(model: str, tasks: Iterable[str], settings: Mapping[str, Any]) -> None:
    """Refuse, before any request is sent, what an API that only chats cannot answer."""
    if model not in _CHAT_ONLY:
        return
    for name in tasks:
        asked = {family for leaf in leaves(name) if (family := _family(leaf)) and family.answers == "loglikelihood"}
        if asked:
            chat = f"{name}_chat" if f"{name}_chat" in GROUPS else None
            if chat is None and name in TASKS:
                (family,) = asked
                chat = name.removesuffix(family.name) + ("match_gen" if family.name == "match" else "rank_gen")
            raise SettingError(
                f"{model} answers in text alone and gives no likelihoods, which {name} needs: use {chat or 'gecs_chat'}"
            )
    if not settings.get("apply_chat_template"):
        raise SettingError(f"{model} takes a conversation, not a text: add --apply_chat_template")


def _family(task: str) -> Family | None:
    subset = next((subset for subset in SUBSETS if task.startswith(f"gecs_{subset}_")), None)
    return FAMILIES.get(task.removeprefix(f"gecs_{subset}_")) if subset else None


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
    arguments = settings.get("model_args")
    if isinstance(arguments, Mapping) and settings.get("model") not in plugin.MODELS:  # ours take both
        for name in ("batch_size", "max_batch_size", "device"):
            if name in arguments:
                raise SettingError(
                    f"--model_args holds {name!r}, which is an option of its own: write --{name} {arguments[name]}"
                )
    for option in ("model_args", "metadata"):
        ours = [name for name in ("gecs", "gecs_subset") if name in (settings.get(option) or {})]
        if ours:
            raise SettingError(f"--{option} holds {ours[0]!r}, which a task sets for itself: choose it by --tasks")


def _refuse_secrets(settings: Mapping[str, Any]) -> None:
    # Model arguments reach every task's metadata in the results file, and all of these reach the shell's history.
    for option in _MAPPINGS:
        for name in secret_names(settings.get(option)):
            raise SettingError(
                f"--{option} holds {name}, which could end up in the results file: leave it out and set the "
                "environment variable that is read for it (OPENAI_API_KEY, ANTHROPIC_API_KEY, HF_TOKEN, ...)"
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

    wanted = {leaf for name in names for leaf in (leaves(name) if name in GROUPS else [name])}
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


def _check_context(tasks: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Refuse listwise prompts that the model's context cannot hold, where its context is told by the arguments."""
    arguments = settings.get("model_args")
    given: Mapping[str, Any] = arguments if isinstance(arguments, Mapping) else {}
    context = given.get("max_model_len") or given.get("max_length")
    if not isinstance(context, int):
        return
    from gecs_tasks.plan import check_context
    from gecs_tasks.prompts import MAX_CODE_CHARS

    ours = {**given, **(settings.get("metadata") or {})}
    check_context(
        tasks,
        next((str(given[name]) for name in ("tokenizer", "pretrained") if given.get(name)), None),
        context,
        limit=settings.get("limit"),
        max_code_chars=ours.get("gecs_max_code_chars", MAX_CODE_CHARS),
        n_candidates=ours.get("gecs_n_candidates", N_DISTRACTORS + 1),
    )


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
