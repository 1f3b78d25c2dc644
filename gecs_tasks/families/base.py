"""What every family shares: loading a task's data, its documents, and its place in the results."""

from __future__ import annotations

import gc
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import gecs_tasks
from gecs_tasks import per_query
from gecs_tasks.benchmark import DOI, FAMILIES, N_DISTRACTORS, SEED, task_name
from gecs_tasks.collection import Collection, load
from gecs_tasks.errors import DataError, RequestError, SettingError
from gecs_tasks.prompts import MAX_CODE_CHARS, instruction, render
from gecs_tasks.secrets import has_secret, is_secret

logger = logging.getLogger(__name__)

TASK_KEY: Final = "gecs"
_SETTINGS: Final = ("gecs_subset", "gecs_max_code_chars", "gecs_per_query", "gecs_n_candidates")
_FREEZE_EVERY: Final = 256  # documents

Document = dict[str, Any]


@dataclass
class LoadedTask:
    """One of our tasks in this process: its data, its settings, and ``info``, which reaches the results JSON.

    Documents name it by ``key`` rather than hold its strings, so that a document stays small wherever it travels.
    """

    name: str
    family: str
    collection: Collection
    max_code_chars: int
    info: dict[str, Any]
    per_query_folder: Path | None
    arguments: dict[str, Any]
    prefix: str = field(init=False)
    _frozen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Build the prompt's constant part once."""
        self.prefix = instruction(self.collection.subset)

    @property
    def key(self) -> str:
        """Names the task, its data and the settings that change its prompts."""
        return f"{self.name}@{self.collection.fingerprint.sha256[:12]}:{self.max_code_chars}"

    def prompt(self, query: int, code: int) -> str:
        """The prompt of one pair, by row of its query and of its code."""
        collection = self.collection
        return render(self.prefix, collection.queries[query], collection.codes[code], self.max_code_chars)

    def example(self, query: int, code: int, label: int) -> Document:
        """A matching document of this task's data."""
        return {TASK_KEY: self.key, "query": query, "code": code, "label": label}

    def spare_collector(self) -> None:
        """Take what was built so far out of the garbage collector's sight, now and then, while requests are built.

        A full ranking task builds millions of small objects that live until the end; walking them again and again
        is a fifth of the harness's time. :func:`collect_again` gives them back.
        """
        self._frozen += 1
        if self._frozen % _FREEZE_EVERY == 0:
            gc.freeze()


def collect_again() -> None:
    """Undo :meth:`LoadedTask.spare_collector`."""
    gc.unfreeze()


_tasks: dict[str, LoadedTask] = {}  # by name, the last one loaded
_on_load: list[Callable[[LoadedTask], None]] = []


def watch_loading(check: Callable[[LoadedTask], None] | None) -> None:
    """Have a check called with every task that is loaded from now on, in place of an earlier one; None for none."""
    _on_load[:] = [] if check is None else [check]


def loaded_task(document: Document) -> LoadedTask:
    """The task that a document belongs to.

    :raises RequestError: where the document was built from other data or settings (a request cache that outlived them).
    """
    key = document[TASK_KEY]
    task = _tasks.get(key.partition("@")[0])
    if task is None or task.key != key:
        raise RequestError(
            f"a document of {key} is not from this run's data and settings ({task.key if task else 'not loaded'}): "
            "the harness's request cache is out of date, run again with --cache_requests refresh"
        )
    return task


class Documents(Sequence[Document]):
    """A task's documents, made when asked for. The harness needs indexing, a length, iteration and ``features``."""

    def __init__(self, length: int, make: Callable[[int], Document]) -> None:
        self._length = length
        self._make = make

    @property
    def features(self) -> dict[str, None]:
        """The documents' field names."""
        return dict.fromkeys(self._make(0))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._make(index % self._length)

    def __iter__(self) -> Iterator[Document]:
        return map(self._make, range(self._length))


_examples: dict[str, LoadedTask] = {}


def example_task(training: Collection) -> LoadedTask:
    """The task that few-shot examples belong to: the training set under the matching prompt."""
    if training.key not in _examples:
        task = LoadedTask(
            name=task_name(training.subset.name, "match"),
            family="match",
            collection=training,
            max_code_chars=MAX_CODE_CHARS,
            info={},
            per_query_folder=None,
            arguments={},
        )
        _examples[training.key] = _tasks[task.name] = task
    return _examples[training.key]


def load_task(family: str, settings: dict[str, Any], draw_digest: Callable[[Collection], str]) -> LoadedTask:
    """Load one task's data and record what it was measured on.

    :param settings: the keywords that the harness hands to ``custom_dataset``: the YAML's ``dataset_kwargs``, its
        ``metadata``, and all of ``--model_args`` and ``--metadata``; only ours, prefixed ``gecs_``, are read.
    :param draw_digest: the digest of the family's draws on a collection.
    :raises SettingError: where a ``gecs_`` setting is unknown or has a wrong value.
    """
    unknown = sorted(name for name in settings if name.startswith("gecs_") and name not in _SETTINGS)
    if unknown:
        raise SettingError(f"unknown task setting {', '.join(unknown)}: there are {', '.join(_SETTINGS[1:])}")
    max_code_chars = settings.get("gecs_max_code_chars", MAX_CODE_CHARS)
    if isinstance(max_code_chars, bool) or not isinstance(max_code_chars, int) or max_code_chars < 1:
        raise SettingError(f"gecs_max_code_chars is {max_code_chars!r}: expected a number of characters, 1 or more")
    info = settings.get("gecs")
    if not isinstance(info, dict):
        raise SettingError("the task's metadata has no 'gecs' mapping: keep `metadata: {gecs: {}}` in its YAML")
    collection = load(settings["gecs_subset"])
    task = LoadedTask(
        name=task_name(collection.subset.name, family),
        family=family,
        collection=collection,
        max_code_chars=max_code_chars,
        info=info,
        per_query_folder=per_query.directory(settings.get("gecs_per_query")),
        arguments={name: value for name, value in settings.items() if _tells_of_the_model(name, value)},
    )
    fingerprint = collection.fingerprint
    info.update(
        {
            "subset": fingerprint.subset,
            "data": {
                "file": fingerprint.file,
                "origin": fingerprint.origin,
                "sha256": fingerprint.sha256,
                "rows": fingerprint.rows,
                "status": fingerprint.status,
                **({"record": f"doi:{DOI}"} if collection.subset.released else {}),
            },
            "draws": {"seed": SEED, "sha256": draw_digest(collection)},
            "prompt": {
                "sha256": hashlib.sha256(task.prefix.encode()).hexdigest(),
                "max_code_chars": max_code_chars,
                "codes_cut": sum(len(code.rstrip()) > max_code_chars for code in collection.codes),
            },
        }
    )
    if family.startswith("rank"):
        info["draws"]["distractors"] = N_DISTRACTORS
    _examples.clear()  # a run loads its tasks before it asks for examples
    for check in _on_load:
        check(task)
    _tasks[task.name] = task
    return task


def _tells_of_the_model(name: str, value: Any) -> bool:
    """Whether a keyword is a model argument fit to be written down: all of ``--model_args`` come with the settings."""
    of_the_task = name.startswith("gecs") or name in ("version", "config_source")
    return not (of_the_task or is_secret(name) or has_secret(value)) and isinstance(value, (str, int, float, bool))


def close_task(records: Sequence[per_query.Record]) -> float:
    """End a task: warn of answers that were none, and write its per-query file where one was asked for.

    An aggregation: the one place where every rank's records are together, whichever way the harness was started.

    :return: the number of answers that were none.
    """
    if not records:
        return 0.0
    first = records[0]
    task = loaded_task({TASK_KEY: first.task_key})
    n_invalid = sum(record.n_invalid for record in records)
    if n_invalid:
        logger.warning(
            "%s: the model gave %d %s, in %d of %d documents; each counts against it",
            task.name,
            n_invalid,
            "NaN scores" if FAMILIES[task.family].answers == "loglikelihood" else "answers that could not be read",
            sum(record.n_invalid > 0 for record in records),
            len(records),
        )
    if isinstance(first, per_query.MatchRecord):
        n_match = sum(record.label for record in records if isinstance(record, per_query.MatchRecord))
        if 2 * n_match != len(records):
            logger.warning(
                "%s: acc is of %d matching and %d other documents, so it is not balanced; see the recalls",
                task.name,
                n_match,
                len(records) - n_match,
            )
    if _examples and isinstance(first, per_query.MatchRecord):
        (training,) = (example.collection.fingerprint for example in list(_examples.values())[-1:])
        task.info["fewshot_source"] = {"file": training.file, "sha256": training.sha256, "rows": training.rows}
    if task.per_query_folder is not None:
        metadata = {"task": task.name, "version": gecs_tasks.__version__, "model_args": task.arguments, **task.info}
        try:
            path = per_query.write(task.per_query_folder, task.name, metadata, records)
        except DataError as error:  # the results themselves must not be lost with it
            logger.error("%s: no per-query file: %s", task.name, error)
        else:
            task.info["per_query"] = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            logger.info("%s: per-query values are in %s", task.name, path)
    return float(n_invalid)
