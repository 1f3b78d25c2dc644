"""The contract between the harness adapter and anything that can score a comment-code pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

ScoreArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class PairBatch:
    """The pairs to score, each distinct text once.

    :param queries: the distinct queries.
    :param codes: the distinct codes.
    :param pairs: shape (n, 2), indices into ``queries`` and ``codes``; no pair of one collection occurs twice.
    :param corpora: the whole code lists of the collections that the pairs are from, one entry a row, copies
        included: what a scorer with corpus statistics must take them from, whichever pairs are asked for.
    :param corpus_ids: shape (n,), which of ``corpora`` each pair is from.
    """

    queries: Sequence[str] = field(repr=False)
    codes: Sequence[str] = field(repr=False)
    pairs: NDArray[np.intp] = field(repr=False)
    corpora: Sequence[Sequence[str]] = field(repr=False)
    corpus_ids: NDArray[np.intp] = field(repr=False)

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.pairs)


class RankGroup(Protocol):
    """The processes that share one evaluation. Every method must be called by all of them, in the same order."""

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in rank order, on every process."""
        ...


class PairScorer(Protocol):
    """Scores pairs. A pair's score depends on its two texts and its corpus alone, never on the rest of the batch.

    ``group`` is set by the adapter: the processes that a scorer may share its work with, each calling it with a batch
    of its own at the same time; None where there is one process, or where the others may not call.
    """

    group: RankGroup | None

    @property
    def threshold(self) -> float | None:
        """The score above which the scorer itself decides for a match; None where it ranks but decides nothing."""
        ...

    def score(self, batch: PairBatch) -> ScoreArray:
        """One score a pair, higher meaning a better match, shape (n,)."""
        ...

    def identity(self) -> dict[str, Any]:
        """Everything that changes a score, JSON-serialisable."""
        ...

    def info(self) -> dict[str, Any]:
        """What the results file records: the identity, and what was counted while scoring."""
        ...
