"""Classifiers that read comment and code together: two labels or one, scored pair by pair."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gecs_tasks.errors import MissingExtraError, ModelError, SettingError
from gecs_tasks.scorers.base import PairBatch, RankGroup, ScoreArray
from gecs_tasks.scorers.classifier import load_classifier
from gecs_tasks.scorers.pair_inputs import BLOCK, IndexArray, PairInputs, Work
from gecs_tasks.scorers.torch_support import check_dtype, is_out_of_memory, pick_device, positions

if TYPE_CHECKING:
    from gecs_tasks.scorers.cache import VectorCache

logger = logging.getLogger(__name__)

InputForm: TypeAlias = Literal["paper", "pair"]
LogitArray: TypeAlias = NDArray[np.float32]

FORMS: Final = ("paper", "pair")
PAPER_COMMENT_TOKENS: Final = 50
MAX_LENGTH: Final = 512

_EXTRA: Final = '"gecs-tasks[cross-encoder]"'
_POSITIVE: Final = ("match", "entailment", "positive", "relevant", "true", "yes", "1")
_AUTO_PAIRS: Final = 1024
_AUTO_TOKENS: Final = {"cuda": 2**17, "cpu": 2**14}  # padded tokens a batch


class CrossEncoderScorer:
    """Scores of a sequence classifier with two labels or one, sentence-transformers CrossEncoders among them.

    Two labels: the score is log P(positive), and a match is what the classifier itself decides for. One label: the
    score is the logit, and a match is a logit above 0, probability one half under the loss that such models are
    trained with.

    :param pretrained: a folder, or an id on the Hugging Face Hub.
    :param device: by default a GPU, the rank's own where there are several ranks, else the CPU.
    :param dtype: float32, float16, bfloat16, or ``auto`` for what the weights are stored in.
    :param batch_size: pairs a batch; ``auto`` fills a batch by padded tokens. Less where GPU memory runs out.
    :param max_length: tokens a pair in all; by default 512, or the model's limit where that is less.
    :param comment_tokens: how many tokens are kept of a comment, 0 for all; by default 50 in the paper's form.
    :param positive_label: index or name of the label that means a match. By default the label called match,
        entailment, positive, relevant, true, yes or 1, and otherwise the second.
    :param input_form: ``paper``, the default for two labels: the comment is cut to ``comment_tokens``, then the pair
        by one token at a time from the end of the longer side, the code's where both are equal. ``pair``, the default
        for one: the tokenizer's own rule for long pairs. Special tokens are the tokenizer's own in both.
    :param cache_dir: where logits are kept for the next run; by default nowhere.
    :param progress: whether to show a progress bar; by default where stderr is a terminal.
    :raises SettingError: where an argument is wrong.
    :raises ModelError: where the model cannot be loaded, or is not a classifier with two labels or one.
    :raises MissingExtraError: where torch or transformers is missing.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        revision: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int | Literal["auto"] = "auto",
        max_length: int | None = None,
        comment_tokens: int | None = None,
        positive_label: int | str | None = None,
        input_form: InputForm | None = None,
        trust_remote_code: bool = False,
        cache_dir: Path | None = None,
        progress: bool | None = None,
    ) -> None:
        if input_form is not None and input_form not in FORMS:
            raise SettingError(f"input_form is {input_form!r}: expected one of {', '.join(FORMS)}")
        _check_number("batch_size", None if batch_size == "auto" else batch_size, 1, "or auto")
        _check_number("max_length", max_length, 1)
        _check_number("comment_tokens", comment_tokens, 0, "or 0 for all")
        self.pretrained, self.progress = pretrained, progress
        try:  # both take seconds to import
            import torch
            import transformers
        except ImportError as error:
            raise MissingExtraError("gecs-cross-encoder", error.name or "torch", _EXTRA) from None
        self.device = pick_device(device)
        loaded = load_classifier(pretrained, revision, bool(trust_remote_code), check_dtype(dtype))
        self.labels = loaded.labels
        self.positive = _positive(self.labels, positive_label)
        self._model = loaded.model.to(self.device).eval()
        self.dtype = str(self._model.dtype).removeprefix("torch.")
        self.input_form: str = input_form or ("paper" if len(self.labels) == 2 else "pair")
        if comment_tokens is None:
            comment_tokens = PAPER_COMMENT_TOKENS if self.input_form == "paper" else 0
        self.comment_tokens = comment_tokens
        tokenizer, limit = loaded.tokenizer, positions(loaded.model)
        self.max_length = min(MAX_LENGTH, limit, tokenizer.model_max_length) if max_length is None else max_length
        self._inputs = PairInputs(tokenizer, self.input_form == "paper", comment_tokens, self.max_length, limit)
        self._pairs, self._tokens = _AUTO_PAIRS, _AUTO_TOKENS.get(self.device.split(":")[0], _AUTO_TOKENS["cpu"])
        if batch_size != "auto":
            self._pairs, self._tokens = batch_size, batch_size * self.max_length
        if tokenizer.pad_token_id is None or tokenizer.pad_token_id != loaded.model.config.pad_token_id:
            # a decoder reads the last token that is no padding: without a sure padding token, that is any token
            logger.warning("%s: tokenizer and model do not agree on a padding token: pairs go one by one", pretrained)
            self._pairs = 1
        self._backend = f"transformers {transformers.__version__}, torch {torch.__version__}"
        settings = ("input_form", "comment_tokens", "max_length", "dtype")
        self._identity = {**loaded.identity, **{name: getattr(self, name) for name in settings}}
        self._cache: VectorCache | None = None
        if cache_dir is not None:
            from gecs_tasks.scorers.cache import VectorCache

            self._cache = VectorCache(Path(cache_dir), {"kind": "cross-encoder", **self._identity})
        self.pairs_scored = self.pairs_from_cache = self.pairs_cut = 0

    group: RankGroup | None = None

    @property
    def threshold(self) -> float:
        """Probability one half, as a score."""
        return math.log(0.5) if len(self.labels) == 2 else 0.0

    def score(self, batch: PairBatch) -> ScoreArray:
        """One score a pair, shape (n,); NaN where the model's logits are not finite numbers."""
        numbers = batch.pairs[:, 0] * len(batch.codes) + batch.pairs[:, 1]
        _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        pairs = batch.pairs[first]  # several collections may hold the same pair
        logits: LogitArray = np.full((len(pairs), len(self.labels)), np.nan, dtype=np.float32)
        before = np.array([self.pairs_scored, self.pairs_from_cache, self.pairs_cut])
        todo = self._look_up(batch, pairs, logits)
        logger.info("%s: %d pairs to score, %d from the cache", self.pretrained, len(todo), len(pairs) - len(todo))
        if len(todo):
            self._run(batch, pairs, todo, logits)
        if self.group is not None:  # the record is of all ranks; each scores its own documents' pairs
            after = np.array([self.pairs_scored, self.pairs_from_cache, self.pairs_cut])
            total = before + sum(self.group.gather(after - before))
            self.pairs_scored, self.pairs_from_cache, self.pairs_cut = total.tolist()
        exact = np.where(np.isfinite(logits).all(axis=1, keepdims=True), logits, np.nan).astype(np.float64)
        scores: ScoreArray = exact[:, 0]
        if len(self.labels) == 2:
            with np.errstate(invalid="ignore"):  # NaN is an answer here
                scores = -np.logaddexp(0.0, exact[:, 1 - self.positive] - exact[:, self.positive])
        scores = scores[inverse.reshape(-1)]
        return scores

    def identity(self) -> dict[str, Any]:
        """The model and every setting that changes a score."""
        return {**self._identity, "positive_label": self.labels[self.positive]}

    def info(self) -> dict[str, Any]:
        """What the model is, how its input was built, and how many pairs it scored, cut and found in the cache."""
        return {
            "scorer": "cross-encoder",
            "model": self.pretrained,
            **self.identity(),
            "labels": list(self.labels),
            "backend": self._backend,
            "device": self.device.split(":")[0],
            "pairs_scored": self.pairs_scored,
            "pairs_from_cache": self.pairs_from_cache,
            "pairs_cut": self.pairs_cut,
            **({"cache_degraded": self._cache.degraded} if self._cache is not None and self._cache.degraded else {}),
        }

    def close(self) -> None:
        """Close the cache."""
        if self._cache is not None:
            self._cache.close()

    def _look_up(self, batch: PairBatch, pairs: IndexArray, logits: LogitArray) -> IndexArray:
        """Fill in the logits that the cache has; the positions of the other pairs."""
        missing = np.ones(len(pairs), dtype=np.bool_)
        if self._cache is not None:
            for start in range(0, len(pairs), BLOCK):
                keys = _keys(batch, pairs[start : start + BLOCK])
                found = self._cache.get(keys)
                for position, key in enumerate(keys, start):
                    entry = found.get(key)
                    if entry is not None and entry.vector.shape == logits[position].shape:
                        logits[position] = entry.vector
                        missing[position] = False
                        self.pairs_cut += bool(entry.cut)
        todo = np.flatnonzero(missing)
        self.pairs_from_cache += len(pairs) - len(todo)
        return todo

    def _run(self, batch: PairBatch, pairs: IndexArray, todo: IndexArray, logits: LogitArray) -> None:
        """Have the model score the pairs at these positions, the longest first, caching after each batch."""
        from tqdm import tqdm

        work = self._inputs.prepare(batch, pairs[todo])
        lengths = work.lengths()
        hidden = None if self.progress is None else not self.progress  # None: where stderr is no terminal
        if self.group is not None and self.group.rank:  # ranks bring documents of their own: one bar tells enough
            hidden = True
        with tqdm(total=len(todo), desc="scoring", unit=" pairs", disable=hidden) as bar:
            for rows, values in self._batches(work, lengths, np.argsort(-lengths, kind="stable")):
                positions = todo[rows]
                logits[positions] = values
                self.pairs_cut += int(work.cut[rows].sum())
                self.pairs_scored += len(rows)
                if self._cache is not None:
                    from gecs_tasks.scorers.cache import Entry

                    kept = np.flatnonzero(np.isfinite(values).all(axis=1)).tolist()
                    keys = _keys(batch, pairs[positions])
                    self._cache.put({keys[row]: Entry(values[row], bool(work.cut[rows[row]])) for row in kept})
                bar.update(len(rows))

    def _batches(self, work: Work, lengths: IndexArray, order: IndexArray) -> Iterator[tuple[IndexArray, LogitArray]]:
        import torch  # takes seconds to import

        start = 0
        while start < len(order):
            longest = int(lengths[order[start]])
            rows = order[start : start + max(1, min(self._pairs, self._tokens // longest))]
            values = None
            try:
                values = self._logits(self._inputs.padded(work, rows))
            except Exception as error:
                if not is_out_of_memory(error):
                    reason = " ".join(str(error).split())[:300]
                    raise ModelError(
                        f"{self.pretrained} failed on {len(rows)} pairs of up to {longest} tokens "
                        f"({type(error).__name__}: {reason})"
                    ) from error
                if len(rows) == 1:
                    raise ModelError(
                        f"{self.pretrained}: the GPU's memory does not hold a single pair of {longest} tokens. Give a "
                        "smaller max_length, dtype=bfloat16 or device=cpu"
                    ) from None
            if values is None:  # outside the handler, where nothing holds the failed batch any more
                torch.cuda.empty_cache()
                self._tokens = len(rows) // 2 * longest
                logger.warning("GPU memory ran out with %d pairs of %d tokens: halving", len(rows), longest)
                continue
            yield rows, values
            start += len(rows)

    def _logits(self, features: dict[str, NDArray[np.int64]]) -> LogitArray:
        """The model's logits for one padded batch, shape (rows, labels)."""
        import torch  # takes seconds to import

        with torch.inference_mode():
            tensors = {name: torch.from_numpy(values).to(self.device) for name, values in features.items()}
            logits: LogitArray = self._model(**tensors).logits.float().cpu().numpy()
        return logits


def _positive(labels: Sequence[str], wanted: int | str | None) -> int:
    """The index of the label that means a match."""
    if wanted is None:
        known = [index for index, label in enumerate(labels) if label.lower() in _POSITIVE]
        return known[0] if len(known) == 1 else len(labels) - 1
    if wanted in labels:
        return list(labels).index(str(wanted))
    if str(wanted).isdecimal() and int(wanted) < len(labels):
        return int(wanted)
    names = ", ".join(f"{index} ({label})" for index, label in enumerate(labels))
    raise SettingError(f"positive_label is {wanted!r}: expected one of the model's labels, {names}")


def _keys(batch: PairBatch, pairs: IndexArray) -> list[str]:
    return [json.dumps([batch.queries[query], batch.codes[code]]) for query, code in pairs.tolist()]


def _check_number(name: str, value: object, least: int, other: str = "") -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise SettingError(f"{name} is {value!r}: expected a whole number of at least {least} {other}".rstrip())
