"""BM25 over a subset's whole code list (bm25s underneath), with tokens that suit code."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gecs_tasks.errors import SettingError
from gecs_tasks.scorers.base import PairBatch, RankGroup, ScoreArray

METHODS: Final = ("lucene", "robertson", "atire", "bm25l", "bm25+")

_WORD: Final = re.compile(r"[^\W_]+")
# In an ASCII word: an acronym before a capitalised part, a part with or without a capital, an acronym, a number.
_PART: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")


def tokenize(text: str) -> list[str]:
    """Split a text into lower-case tokens, identifiers at case changes, digits, underscores and dots.

    ``readCSV_file2 = df.meanScore`` gives ``read csv file 2 df mean score``. A word with letters beyond ASCII stays
    whole.
    """
    tokens: list[str] = []
    for word in _WORD.findall(text):
        parts = _PART.findall(word) if word.isascii() else (word,)
        tokens.extend(part.lower() for part in parts)
    return tokens


class BM25Scorer:
    """BM25 scores of (query, code) pairs, with each code's corpus statistics from its subset's whole code list.

    :param k1: term-frequency saturation, at least 0.
    :param b: length normalisation, 0 to 1.
    :param method: the variant, one of :data:`METHODS`.
    :raises SettingError: where a parameter is out of its range.
    """

    def __init__(self, k1: float = 1.5, b: float = 0.75, method: str = "lucene") -> None:
        if not _is_number(k1) or k1 < 0:
            raise SettingError(f"k1 is {k1!r}: expected a number of at least 0")
        if not _is_number(b) or not 0 <= b <= 1:
            raise SettingError(f"b is {b!r}: expected a number from 0 to 1")
        if method not in METHODS:
            raise SettingError(f"method is {method!r}: expected one of {', '.join(METHODS)}")
        self.k1, self.b, self.method = float(k1), float(b), method

    threshold = None
    group: RankGroup | None = None

    def score(self, batch: PairBatch) -> ScoreArray:
        """One score a pair, shape (n,); 0 where query and code share no token."""
        scores = np.zeros(len(batch), dtype=np.float64)
        for corpus_id, corpus in enumerate(batch.corpora):
            (members,) = np.nonzero(batch.corpus_ids == corpus_id)
            if len(members):
                scores[members] = self._score_corpus(corpus, batch, batch.pairs[members])
        return scores

    def _score_corpus(self, corpus: Sequence[str], batch: PairBatch, pairs: NDArray[np.intp]) -> ScoreArray:
        import bm25s  # a third of a second to import

        index = bm25s.BM25(k1=self.k1, b=self.b, method=self.method, dtype="float64")
        tokens = {code: tokenize(code) for code in dict.fromkeys(corpus)}
        scores = np.zeros(len(pairs), dtype=np.float64)
        if not any(tokens.values()):
            return scores
        index.index([tokens[code] for code in corpus], show_progress=False)
        row_of = {code: row for row, code in enumerate(corpus)}
        rows = np.array([row_of.get(code, -1) for code in batch.codes], dtype=np.intp)[pairs[:, 1]]
        order = np.argsort(pairs[:, 0], kind="stable")
        for query, group in groupby(order.tolist(), key=lambda position: int(pairs[position, 0])):
            positions = list(group)
            if query_tokens := tokenize(batch.queries[query]):
                scores[positions] = index.get_scores(query_tokens)[rows[positions]]
        return scores

    def info(self) -> dict[str, Any]:
        """The scorer's name, parameters and library version."""
        return self.identity()

    def identity(self) -> dict[str, Any]:
        """The scorer's name, parameters and library version."""
        from importlib.metadata import version

        return {
            "scorer": "bm25",
            "k1": self.k1,
            "b": self.b,
            "method": self.method,
            "backend": f"bm25s {version('bm25s')}",
        }


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
