"""Per-query values and their aggregation.

Ranking metrics are per-query values averaged by the harness's own mean, which gives them standard errors.
Matching metrics that need every document at once are aggregations over (value, label) pairs, so that they come
out the same however the harness split the documents over ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gecs_tasks.errors import SettingError
from gecs_tasks.ranking import gold_ranks

MATCH: Final = 1
NO_MATCH: Final = 0
RECALL_CUTOFFS: Final = (1, 5, 10)


class Judged(NamedTuple):
    """One matching document's value (a decision, or a score) and its true label, :data:`MATCH` or :data:`NO_MATCH`."""

    value: float
    label: int


def ranking_values(rank: int) -> dict[str, float]:
    """The ranking metrics of one query, from its gold candidate's rank (1 is best)."""
    recalls = {f"recall@{cutoff}": float(rank <= cutoff) for cutoff in RECALL_CUTOFFS}
    return {"mrr": 1.0 / rank, **recalls, "mean_rank": float(rank)}


def ranking_results(doc: Any, results: Sequence[tuple[float, Any]]) -> dict[str, float]:
    """``process_results`` for any multiple-choice task whose first choice is the gold candidate.

    :param doc: unused; the harness passes it.
    :param results: one (log-likelihood, is-greedy) tuple a candidate, the gold first.
    """
    return ranking_values(int(gold_ranks([result[0] for result in results])))


def recall_match(decided: Iterable[Judged]) -> float:
    """Share of the matching documents that are decided as matching.

    NaN where there are none, or where a document has no decision because the scorer makes none.

    :param decided: decisions (1 match, 0 no match, NaN none) with their labels.
    """
    return _recall(decided, MATCH)


def recall_no_match(decided: Iterable[Judged]) -> float:
    """Share of the other documents that are decided as not matching; see :func:`recall_match`."""
    return _recall(decided, NO_MATCH)


def _recall(decided: Iterable[Judged], label: int) -> float:
    values, labels = _columns(decided)
    of_class = values[labels == label]
    if not len(of_class) or np.isnan(of_class).any():
        return math.nan
    return float((of_class == label).mean())


def f1(decided: Iterable[Judged]) -> float:
    """F1 of the matching class: 2 TP / (2 TP + FP + FN).

    NaN where a document has no decision; 0 where nothing is positive in truth or decision.
    """
    values, labels = _columns(decided)
    if not len(values) or np.isnan(values).any():
        return math.nan
    true_positives = int(((values == MATCH) & (labels == MATCH)).sum())
    positives = int((values == MATCH).sum()) + int((labels == MATCH).sum())
    return 2 * true_positives / positives if positives else 0.0


def auroc(scored: Iterable[Judged]) -> float:
    """Area under the ROC curve: the chance that a matching document outscores a non-matching one, ties being half.

    A NaN score counts against the model: lowest for a matching document, highest for a non-matching one.
    NaN where one class is missing.

    :param scored: scores with their labels.
    """
    from scipy.stats import rankdata  # scipy.stats takes a second to import

    values, labels = _columns(scored)
    n_match = int((labels == MATCH).sum())
    n_no_match = len(labels) - n_match
    if not n_match or not n_no_match:
        return math.nan
    ranks = rankdata(_against_the_model(values, labels))
    return float((ranks[labels == MATCH].sum() - n_match * (n_match + 1) / 2) / (n_match * n_no_match))


def acc_median(scored: Iterable[Judged]) -> float:
    """Balanced accuracy of deciding at the documents' own median score: above it is a match.

    This uses what no model is told: that half of the documents match. It asks how far a score without a threshold
    of its own separates the classes, and is an upper bound rather than a result to report as accuracy.
    NaN scores count as wrong; NaN where one class is missing.

    :param scored: scores with their labels.
    """
    values, labels = _columns(scored)
    if not (labels == MATCH).any() or not (labels == NO_MATCH).any():
        return math.nan
    finite = values[~np.isnan(values)]
    if not len(finite):
        return 0.0
    above = _against_the_model(values, labels) > np.median(finite)
    return float((above[labels == MATCH].mean() + (~above[labels == NO_MATCH]).mean()) / 2)


def _columns(items: Iterable[Judged]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rows = list(items)
    if any(not isinstance(row, (tuple, list)) or len(row) != 2 for row in rows):
        raise SettingError(
            f"this aggregation takes (value, label) pairs, label 1 for a match and 0 for none, not {rows[0]!r}: "
            "return such pairs from the task's process_results"
        )
    values = np.array([value for value, _ in rows], dtype=np.float64)
    labels = np.array([label for _, label in rows], dtype=np.int64)
    return values, labels


def _against_the_model(values: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    worst = np.where(labels == MATCH, -np.inf, np.inf)
    return np.where(np.isnan(values), worst, values)


def per_query_value(items: Any) -> Any:
    """Hand a metric's per-query value through, as the harness's own metrics do: its aggregation takes the mean."""
    return items


class Metric(NamedTuple):
    """A metric as lm-eval registers one: its function, its aggregation's registered name, its direction."""

    function: Callable[[Any], Any]
    aggregation: str
    higher_is_better: bool


# Registered under these names, so that other people's YAML can use them.
METRICS: Final[dict[str, Metric]] = {
    name: Metric(per_query_value, "mean", name != "mean_rank") for name in ranking_values(1)
}
AGGREGATIONS: Final[dict[str, Callable[..., float]]] = {
    "gecs_recall_match": recall_match,
    "gecs_recall_no_match": recall_no_match,
    "gecs_f1": f1,
    "gecs_auroc": auroc,
    "gecs_acc_median": acc_median,
}
