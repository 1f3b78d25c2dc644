"""Scores to ranks: the one place that decides ties and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def gold_ranks(scores: ArrayLike) -> NDArray[np.int64]:
    """Rank each gold candidate among its pool.

    The rank is the number of candidates whose score is at least the gold's, the gold included: a tie counts
    against the model, as in the paper's script. A NaN never improves a rank: a gold without a score is last,
    a distractor without one counts as ahead.

    :param scores: shape (..., n_candidates), column 0 being the gold.
    :return: ranks from 1 to n_candidates, shape (...).
    """
    values = np.asarray(scores, dtype=np.float64)
    behind = values < values[..., :1]  # False for every comparison with a NaN
    ranks: NDArray[np.int64] = values.shape[-1] - behind.sum(axis=-1, dtype=np.int64)
    return ranks


def count_nan(scores: ArrayLike) -> int:
    """How many scores are NaN."""
    values: NDArray[Any] = np.asarray(scores, dtype=np.float64)
    return int(np.isnan(values).sum())
