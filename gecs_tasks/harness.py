"""The one adapter from the harness's requests to a pair scorer."""

from __future__ import annotations

import logging
import math
import os
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

import numpy as np
from lm_eval.api.model import LM
from lm_eval.utils import simple_parse_args_string
from numpy.typing import NDArray

from gecs_tasks.collection import Collection
from gecs_tasks.errors import MissingExtraError, RequestError, SettingError
from gecs_tasks.families import match, rank
from gecs_tasks.families.base import TASK_KEY, LoadedTask, loaded_task, watch_loading
from gecs_tasks.scorers.base import PairBatch, PairScorer, ScoreArray

logger = logging.getLogger(__name__)

Answer = tuple[float, bool | int]

_PAIR_OF: Final = {"match": match.pair, "rank": rank.pair}
_CACHE_NOTE: Final = "gecs-tasks: "  # the harness's own keys are digests
_FALSE: Final = 1  # the request of a matching document that asks for "False"


class PairScorerLM(LM):  # type: ignore[misc]  # the harness is untyped
    """A harness model that answers our tasks' requests with a pair scorer's scores.

    The answer to ``True`` is the pair's score. The answer to ``False`` is the threshold, the user's or else the
    scorer's own, so that a score above it decides for a match; without either there is no decision.

    :param threshold: the score above which a pair is a match, in place of the scorer's own.
    :raises SettingError: where the threshold is not a finite number.
    """

    def __init__(self, scorer: PairScorer, threshold: float | None = None) -> None:
        super().__init__()
        if threshold is not None and (
            isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not math.isfinite(threshold)
        ):
            raise SettingError(f"threshold is {threshold!r}: expected a finite number")
        self.scorer = scorer
        if (close := getattr(scorer, "close", None)) is not None:
            weakref.finalize(self, close)
        self.threshold = scorer.threshold if threshold is None else float(threshold)
        self._accelerator: Any = _accelerator()
        if self._accelerator is not None:
            self._rank = self._accelerator.process_index
            self._world_size = self._accelerator.num_processes
            self._device = self._accelerator.device

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> PairScorerLM:
        """Make the model from ``key=value,...``, as :meth:`create_from_arg_obj`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> PairScorerLM:
        """Make the model from its arguments and from what the harness adds of its own options.

        A model argument wins over the harness's option. The harness's defaults (batch size 1, the first GPU) say
        nothing of what the user wants: the model then chooses for itself.
        """
        added = {name: value for name, value in (additional_config or {}).items() if value is not None}
        added.pop("max_batch_size", None)
        if added.get("batch_size") == 1:  # the command line's own is a string
            del added["batch_size"]
        if added.get("device") == "cuda:0":
            del added["device"]
        return cls(**{**added, **arg_dict})

    def loglikelihood(self, requests: Sequence[Any]) -> list[Answer]:
        """Answer every request of our tasks, each distinct pair being scored once.

        :param requests: the harness's instances; ``doc`` and ``idx`` say which pair each asks about.
        :raises RequestError: where a request is not of one of our loglikelihood tasks.
        """
        asked = _Asked(requests)
        # A response cache answers some ranks wholly, which then never come here: nobody may wait for them.
        alone = self._accelerator is None or self.cache_hook.dbdict is not None
        self.scorer.group = None if alone else _Ranks(self.rank, self.world_size)
        scores = asked.scores(self.scorer)
        false: Answer = match.UNDECIDED if self.threshold is None else (self.threshold, False)
        answers: list[Answer] = [(score, False) for score in scores.tolist()]
        for position in asked.false_positions:
            answers[position] = false
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Refuse: a pair scorer has no likelihood of a text."""
        raise _not_ours(requests[0], "the likelihood of a text")

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Refuse: a pair scorer generates no text."""
        raise _not_ours(requests[0], "generated text")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Refuse: a pair scorer sees the pair, not the prompt."""
        raise SettingError("this model scores comment-code pairs and sees no prompt: leave --apply_chat_template out")

    @property
    def tokenizer_name(self) -> str:
        """Refuse, as :meth:`apply_chat_template`: the harness asks for this first."""
        return self.apply_chat_template([])

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Refuse a template, as :meth:`apply_chat_template`: the harness asks for this first of all."""
        return self.apply_chat_template([]) if chat_template else None

    def get_model_info(self) -> dict[str, Any]:
        """What the results file records of the model."""
        return {"gecs_scorer": {**self.scorer.info(), "threshold": self.threshold}}

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Take the harness's response cache (``--use_cache``), and hold it against this model and its data.

        The harness keys an answer by its prompt alone. That does not determine a score: the scorer's settings and, for
        one with corpus statistics, the subset's other codes do too.

        :raises SettingError: where the cache holds another scorer's answers; or, when a task is loaded, other data's.
        """
        super().set_cache_hook(cache_hook)
        watch_loading(None)
        if cache_hook.dbdict is None:
            return
        cache = cache_hook.dbdict
        _hold_against(cache, "scorer", {**self.scorer.identity(), "threshold": self.threshold})
        model = weakref.ref(self)  # a later run in this process may have another model
        watch_loading(lambda task: None if model() is None else _hold_against(cache, task.name, task.key))

    # Several ranks: the harness splits the documents and gathers what came out.

    def all_gather(self, tensor: Any) -> Any:
        """Gather a tensor from every rank."""
        return tensor if self._accelerator is None else self._accelerator.gather(tensor)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """Gather an object from every rank onto ``dst``; None elsewhere."""
        if self._accelerator is None:
            return [obj]
        import torch.distributed

        gathered: list[Any] | None = [None] * self.world_size if self.rank == dst else None
        torch.distributed.gather_object(obj, gathered, dst=dst)
        return gathered

    def barrier(self) -> None:
        """Wait for every rank."""
        if self._accelerator is not None:
            self._accelerator.wait_for_everyone()


class _Ranks:
    """The ranks of a run, as scorers know them."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank."""
        import torch.distributed

        gathered: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(gathered, value)
        return gathered


class _Asked:
    """The pairs that a list of requests asks about, in rows of their collections."""

    def __init__(self, requests: Sequence[Any]) -> None:
        n = len(requests)
        self.collections: list[Collection] = []
        self.collection_ids = np.empty(n, dtype=np.intp)
        self.rows = np.empty((n, 2), dtype=np.intp)
        self.false_positions: list[int] = []
        numbers: dict[str, int] = {}
        known: Any = None
        for position, request in enumerate(requests):
            doc = request.doc
            if doc is not known:  # a document's requests stand together
                task = _task_of(request)
                if task.family not in _PAIR_OF:
                    raise _not_ours(request, "the likelihood of a comment")
                pair_of = _PAIR_OF[task.family]
                key = task.collection.key
                if key not in numbers:
                    numbers[key] = len(self.collections)
                    self.collections.append(task.collection)
                number = numbers[key]
                is_match = task.family == "match"
                known = doc
            self.collection_ids[position] = number
            self.rows[position] = pair_of(task, doc, request.idx)
            if is_match and request.idx == _FALSE:
                self.false_positions.append(position)

    def scores(self, scorer: PairScorer) -> ScoreArray:
        """Every request's score, shape (n,), from one call of the scorer on the distinct pairs."""
        queries, query_ids = self._distinct(0)
        codes, code_ids = self._distinct(1)
        pair_numbers = (self.collection_ids * len(queries) + query_ids) * len(codes) + code_ids
        _, first, inverse = np.unique(pair_numbers, return_index=True, return_inverse=True)
        batch = PairBatch(
            queries=queries,
            codes=codes,
            pairs=np.stack([query_ids[first], code_ids[first]], axis=1),
            corpora=[collection.codes for collection in self.collections],
            corpus_ids=self.collection_ids[first],
        )
        scores = np.asarray(scorer.score(batch), dtype=np.float64)
        if scores.shape != (len(batch),):
            raise RequestError(f"the scorer gave scores of shape {scores.shape}, expected one a pair: ({len(batch)},)")
        result: ScoreArray = scores[inverse.reshape(-1)]
        return result

    def _distinct(self, column: int) -> tuple[list[str], NDArray[np.intp]]:
        """The distinct texts asked for over all collections, and each request's index into them."""
        numbers: dict[str, int] = {}
        ids = np.empty(len(self.rows), dtype=np.intp)
        for collection_id, collection in enumerate(self.collections):
            (members,) = np.nonzero(self.collection_ids == collection_id)
            texts = collection.distinct_codes if column else collection.distinct_queries
            of_row = collection.code_ids if column else collection.query_ids
            asked, inverse = np.unique(of_row[self.rows[members, column]], return_inverse=True)
            asked_ids = [numbers.setdefault(texts[number], len(numbers)) for number in asked.tolist()]
            ids[members] = np.array(asked_ids, dtype=np.intp)[inverse.reshape(-1)]
        return list(numbers), ids


def _hold_against(cache: Any, what: str, now: Any) -> None:
    """Note what a response cache's answers depend on, or refuse a cache that was made with something else."""
    key = f"{_CACHE_NOTE}{what}"
    before = cache.setdefault(key, now)
    if before != now:
        differing = now
        if isinstance(now, dict):
            differing = {name: value for name, value in now.items() if before.get(name) != value}
            before = {name: before.get(name) for name in differing}
        raise SettingError(
            f"--use_cache names a cache of another {'scorer' if what == 'scorer' else 'data file or setting'}: it was "
            f"made with {before}, and this run has {differing}. Name another cache, or delete that one"
        )


def _task_of(request: Any) -> LoadedTask:
    doc = request.doc
    if not isinstance(doc, dict) or TASK_KEY not in doc:
        raise _not_ours(request, "this task's requests")
    return loaded_task(doc)


def _not_ours(request: Any, what: str) -> RequestError:
    return RequestError(
        f"task {request.task_name} asks for {what}, and this model scores comment-code pairs: it runs "
        "gecs_<subset>_match and gecs_<subset>_rank tasks only. Run the other tasks with a language model, e.g. "
        "--model hf"
    )


def _accelerator() -> Any:
    """The process group that ``accelerate launch`` or ``torchrun`` made, or None in a single process."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    # The ranks exchange figures only, so their group is the CPU's, however many GPUs there are.
    return _import_accelerate().Accelerator(cpu=True)


def _import_accelerate() -> ModuleType:
    try:
        import accelerate  # torch comes with it: only several ranks need it
    except ImportError:
        raise MissingExtraError("a run on several ranks", "accelerate", "accelerate torch") from None
    module: ModuleType = accelerate
    return module
