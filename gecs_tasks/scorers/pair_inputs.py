"""Token ids of (comment, code) pairs: each text tokenised once, pairs cut by the paper's rule or the tokenizer's."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gecs_tasks.errors import ModelError, SettingError
from gecs_tasks.scorers.base import PairBatch

IndexArray: TypeAlias = NDArray[np.intp]

# Texts on which our pairs are held against the tokenizer's own: short and long, long and short, long and longer.
_PROBES: Final = (
    ("read", "def add(a, b): return a + b"),
    ("def add(a, b): return a + b", "read"),
    ("read a csv file", "return the mean of a list of numbers, or 0"),
)
BLOCK: Final = 4096  # pairs looked up, or texts tokenised, at once


class Work(NamedTuple):
    """Pairs to score: their texts' token ids, and how many tokens are kept of each."""

    queries: dict[int, NDArray[np.int32]]
    codes: dict[int, NDArray[np.int32]]
    pairs: IndexArray
    kept: IndexArray  # (n, 2)
    cut: NDArray[np.bool_]  # whether the pair was longer than the maximum length
    specials: int

    def lengths(self) -> IndexArray:
        """How many tokens each pair has, special tokens included, shape (n,)."""
        lengths: IndexArray = self.kept.sum(axis=1) + self.specials
        return lengths


class PairInputs:
    """Token ids of pairs: each distinct text tokenised once, each pair put together as the tokenizer would.

    :param paper: the paper's rule for long pairs, not the tokenizer's own.
    :param comment_tokens: how many tokens are kept of a comment; 0 for all.
    :param limit: how many tokens the model has positions for.
    :raises SettingError: where ``max_length`` leaves room for nothing, or exceeds the limit.
    :raises ModelError: where this tokenizer's pairs cannot be rebuilt from its single texts.
    """

    def __init__(self, tokenizer: Any, paper: bool, comment_tokens: int, max_length: int, limit: float) -> None:
        self.tokenizer, self.comment_tokens, self._paper = tokenizer, comment_tokens, paper
        self._from_left = not paper and tokenizer.truncation_side == "left"
        self._longer_wins = not paper and bool(tokenizer.is_fast)  # a tokenizer written in Python follows BERT
        self._frame = self._learn(*_PROBES[0])
        least = self._frame.specials + 2
        if not least <= max_length <= limit:
            most = " or more" if limit == math.inf else f" to {limit}, the model's limit"
            raise SettingError(f"max_length is {max_length}: expected {least}{most}")
        self._prove()
        self.room = max_length - self._frame.specials

    def prepare(self, batch: PairBatch, pairs: IndexArray) -> Work:
        """Tokenise the texts of these pairs and decide what is kept of each."""
        query_ids = self._tokens(batch.queries, pairs[:, 0])
        if self.comment_tokens:
            query_ids = {number: ids[: self.comment_tokens] for number, ids in query_ids.items()}
        code_ids = self._tokens(batch.codes, pairs[:, 1])
        queries = np.array([len(query_ids[number]) for number in pairs[:, 0].tolist()], dtype=np.intp)
        codes = np.array([len(code_ids[number]) for number in pairs[:, 1].tolist()], dtype=np.intp)
        kept = kept_lengths(queries, codes, self.room, longer_wins=self._longer_wins)
        return Work(query_ids, code_ids, pairs, kept, queries + codes > self.room, self._frame.specials)

    def padded(self, work: Work, rows: IndexArray) -> dict[str, NDArray[np.int64]]:
        """The model's input for some of the pairs, each array of shape (rows, the longest's length)."""
        tokenizer = self.tokenizer
        width = int(work.lengths()[rows].max())
        ids = np.full((len(rows), width), tokenizer.pad_token_id or 0, dtype=np.int64)
        mask = np.zeros_like(ids)
        types = np.full_like(ids, tokenizer.pad_token_type_id)
        for line, row in enumerate(rows.tolist()):
            (query, code), kept = work.pairs[row].tolist(), work.kept[row].tolist()
            pair = self._frame.token_ids(
                self._keep(work.queries[query], kept[0]), self._keep(work.codes[code], kept[1])
            )
            place = slice(width - len(pair), None) if tokenizer.padding_side == "left" else slice(len(pair))
            ids[line, place], mask[line, place], types[line, place] = pair, 1, self._frame.token_types(*kept)
        features = {"input_ids": ids, "attention_mask": mask}
        return {**features, "token_type_ids": types} if "token_type_ids" in tokenizer.model_input_names else features

    def _keep(self, ids: NDArray[np.int32], length: int) -> NDArray[np.int32]:
        return ids[len(ids) - length :] if self._from_left else ids[:length]

    def _tokens(self, texts: Sequence[str], numbers: IndexArray) -> dict[int, NDArray[np.int32]]:
        """The token ids of the texts of these numbers, without special tokens."""
        wanted = np.unique(numbers).tolist()
        tokens: dict[int, NDArray[np.int32]] = {}
        for start in range(0, len(wanted), BLOCK):
            block = wanted[start : start + BLOCK]
            # half a surrogate pair, which JSON can hold and a tokenizer cannot, becomes a question mark
            valid = [texts[number].encode(errors="replace").decode() for number in block]
            ids = self.tokenizer(valid, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
            tokens.update((number, np.array(row, dtype=np.int32)) for number, row in zip(block, ids, strict=True))
        return tokens

    def _learn(self, first: str, second: str) -> _Frame:
        """The tokenizer's special tokens, from a pair in which its two texts' ids are found again."""
        whole = self.tokenizer([first], [second], verbose=False)
        ids = whole["input_ids"][0]
        types = whole["token_type_ids"][0] if "token_type_ids" in whole else [0] * len(ids)
        a, b = (self.tokenizer([text], add_special_tokens=False)["input_ids"][0] for text in (first, second))
        starts = [start for start in range(len(ids)) if ids[start : start + len(a)] == a]
        ends = [end for end in range(len(ids) + 1) if ids[end - len(b) : end] == b] if b else []
        if not a or not starts or not ends or ends[-1] - len(b) < starts[0] + len(a):
            raise self._unknown_frame()
        cuts = (0, starts[0], starts[0] + len(a), ends[-1] - len(b), ends[-1], len(ids))
        spans = [slice(start, end) for start, end in pairwise(cuts)]
        return _Frame([ids[span] for span in spans[::2]], [types[span] for span in spans])

    def _prove(self) -> None:
        """Check on other texts that pairs come out as the tokenizer itself makes them, cut ones too."""
        for first, second in _PROBES:
            batch = PairBatch([first], [second], np.array([[0, 0]]), [[second]], np.array([0]))
            inputs = copy.copy(self)
            inputs.comment_tokens = 0
            for room in (10_000,) if self._paper else (10_000, 4, 5):
                inputs.room = room
                made = inputs.padded(inputs.prepare(batch, batch.pairs), np.array([0]))
                length = room + self._frame.specials
                own = self.tokenizer([first], [second], truncation="longest_first", max_length=length, verbose=False)
                if any(made[name][0].tolist() != list(own[name][0]) for name in made):
                    raise self._unknown_frame()

    def _unknown_frame(self) -> ModelError:
        return ModelError(
            f"{type(self.tokenizer).__name__} does not build a pair as one text's tokens, then the other's, between "
            "special tokens: its models cannot be scored"
        )


class _Frame(NamedTuple):
    """The special tokens before, between and after the texts of a pair, and the token types of all five stretches."""

    ids: list[list[int]]
    types: list[list[int]]

    @property
    def specials(self) -> int:
        return sum(len(ids) for ids in self.ids)

    def token_ids(self, first: NDArray[np.int32], second: NDArray[np.int32]) -> NDArray[np.int64]:
        before, between, after = self.ids
        return np.concatenate([before, first, between, second, after]).astype(np.int64)

    def token_types(self, first: int, second: int) -> list[int]:
        before, one, between, two, after = self.types
        return [*before, *one[:1] * first, *between, *two[:1] * second, *after]


def kept_lengths(first: IndexArray, second: IndexArray, room: int, *, longer_wins: bool = False) -> IndexArray:
    """How many tokens are kept of both sides of pairs that have room for so many, shape (n, 2).

    One token at a time is taken from the longer side, the second where both are equal (BERT's ``_truncate_seq_pair``).
    With ``longer_wins``, the rule of the ``tokenizers`` library: it differs where both sides are longer than half of
    an odd room, the one token over being the longer side's, the second's where both are equal.
    """
    half: Any = np.where(second >= first, room - room // 2, room // 2) if longer_wins else room // 2
    kept_second = np.minimum(second, np.maximum(half, room - first))
    return np.stack([np.minimum(first, room - kept_second), kept_second], axis=1)
