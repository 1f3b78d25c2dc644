from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, recall_score, roc_auc_score

from gecs_tasks.errors import SettingError
from gecs_tasks.metrics import (
    Judged,
    acc_median,
    auroc,
    f1,
    ranking_results,
    ranking_values,
    recall_match,
    recall_no_match,
)

NAN = math.nan


def judged(*pairs: tuple[float, int]) -> list[Judged]:
    return [Judged(value, label) for value, label in pairs]


def test_values_of_a_rank() -> None:
    assert ranking_values(1) == {"mrr": 1, "recall@1": 1, "recall@5": 1, "recall@10": 1, "mean_rank": 1}
    assert ranking_values(6) == {"mrr": 1 / 6, "recall@1": 0, "recall@5": 0, "recall@10": 1, "mean_rank": 6}


def test_ranking_results_for_other_peoples_tasks() -> None:
    answers = [(-2.0, False), (-1.0, False), (-3.0, True)]
    assert ranking_results({}, answers)["mrr"] == 0.5


@pytest.mark.parametrize("aggregation", [auroc, acc_median, f1, recall_match])
def test_values_without_labels_are_refused(aggregation: Callable[[Any], float]) -> None:
    with pytest.raises(SettingError, match=r"takes \(value, label\) pairs, .* not 1\.0"):
        aggregation([1.0, 0.0])


def test_recalls_and_f1_by_hand() -> None:
    # three matches, two found; two non-matches, one found: TP 2, FN 1, FP 1
    items = judged((1, 1), (1, 1), (0, 1), (0, 0), (1, 0))
    assert recall_match(items) == pytest.approx(2 / 3)
    assert recall_no_match(items) == pytest.approx(1 / 2)
    assert f1(items) == pytest.approx(4 / 6)


def test_no_decision_is_not_a_number() -> None:
    items = judged((NAN, 1), (NAN, 0))
    assert math.isnan(recall_match(items))
    assert math.isnan(recall_no_match(items))
    assert math.isnan(f1(items))


def test_a_missing_class_is_not_a_number() -> None:
    only_matches = judged((1, 1), (0, 1))
    assert math.isnan(recall_no_match(only_matches))
    assert math.isnan(auroc(only_matches))
    assert math.isnan(acc_median(only_matches))


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (judged((2, 1), (1, 0)), 1.0),
        (judged((1, 1), (2, 0)), 0.0),
        (judged((1, 1), (1, 0)), 0.5),
        (judged((3, 1), (1, 1), (2, 0), (0, 0)), 0.75),
        (judged((NAN, 1), (1, 0)), 0.0),
        (judged((1, 1), (NAN, 0)), 0.0),
    ],
)
def test_auroc_by_hand(items: list[Judged], expected: float) -> None:
    assert auroc(items) == expected


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (judged((4, 1), (3, 1), (2, 0), (1, 0)), 1.0),
        (judged((4, 0), (3, 0), (2, 1), (1, 1)), 0.0),
        (judged((4, 1), (1, 1), (3, 0), (0, 0)), 0.5),
        (judged((1, 1), (1, 1), (1, 0), (1, 0)), 0.5),  # all tie: all no match
        (judged((NAN, 1), (4, 1), (1, 0), (2, 0)), 0.75),  # median of 4, 1, 2 is 2; the NaN is wrong
    ],
)
def test_accuracy_at_the_median_by_hand(items: list[Judged], expected: float) -> None:
    assert acc_median(items) == expected


decisions = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=60)
both_classes = st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 1)), min_size=2, max_size=60).filter(
    lambda rows: len({label for _, label in rows}) == 2
)


@given(decisions)
def test_decisions_agree_with_scikit_learn(rows: list[tuple[int, int]]) -> None:
    predicted, labels = zip(*rows, strict=True)
    items = judged(*((float(value), label) for value, label in rows))
    assert f1(items) == pytest.approx(f1_score(labels, predicted, zero_division=0.0))
    if 1 in labels:
        assert recall_match(items) == pytest.approx(recall_score(labels, predicted))
    if 0 in labels:
        assert recall_no_match(items) == pytest.approx(recall_score(labels, predicted, pos_label=0))


@given(both_classes)
def test_auroc_agrees_with_scikit_learn(rows: list[tuple[int, int]]) -> None:
    values, labels = zip(*rows, strict=True)
    assert auroc(judged(*((float(value), label) for value, label in rows))) == pytest.approx(
        roc_auc_score(labels, values)
    )


@given(both_classes, st.randoms())
def test_aggregations_do_not_depend_on_document_order(rows: list[tuple[int, int]], rng: object) -> None:
    items = judged(*((float(value), label) for value, label in rows))
    shuffled = sorted(items, key=lambda _: rng.random())  # type: ignore[attr-defined]
    for aggregation in (auroc, acc_median):
        assert aggregation(items) == pytest.approx(aggregation(shuffled))
