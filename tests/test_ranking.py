from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import label_ranking_average_precision_score

from gecs_tasks.ranking import count_nan, gold_ranks

NAN = math.nan


@pytest.mark.parametrize(
    ("scores", "rank"),
    [
        ([0.9, 0.1, 0.5], 1),
        ([0.5, 0.9, 0.1], 2),
        ([0.1, 0.9, 0.5], 3),
        ([0.5, 0.5, 0.1], 2),  # a tie counts against the model
        ([0.5, 0.5, 0.5], 3),
        ([NAN, 0.1, 0.2], 3),  # a gold without a score is last
        ([0.9, NAN, 0.5], 2),  # a distractor without one is ahead
        ([NAN, NAN, NAN], 3),
        ([-math.inf, 0.0, -math.inf], 3),
        ([math.inf, 1.0, 2.0], 1),
        ([0.7], 1),
    ],
)
def test_rank_of_the_gold(scores: list[float], rank: int) -> None:
    assert gold_ranks(scores) == rank


def test_ranks_of_many_queries_at_once() -> None:
    assert gold_ranks([[3, 1, 2], [1, 3, 2]]).tolist() == [1, 3]


scores = st.lists(st.one_of(st.integers(-3, 3).map(float), st.floats(-5, 5), st.just(NAN)), min_size=1, max_size=30)


@given(scores)
def test_against_counting_by_hand(values: list[float]) -> None:
    gold, *distractors = values
    ahead = sum(1 for other in distractors if math.isnan(gold) or math.isnan(other) or other >= gold)
    assert gold_ranks(values) == 1 + ahead


@given(scores)
def test_a_nan_never_improves_a_rank(values: list[float]) -> None:
    for position in range(len(values)):
        damaged = [*values[:position], NAN, *values[position + 1 :]]
        assert gold_ranks(damaged) >= gold_ranks(values)


@given(st.lists(st.integers(-4, 4).map(float), min_size=2, max_size=30))
def test_reciprocal_rank_agrees_with_scikit_learn(values: list[float]) -> None:
    relevant = np.zeros((1, len(values)))
    relevant[0, 0] = 1
    # with one relevant candidate, label-ranking average precision is 1 / its rank, ties counting against it
    assert 1 / gold_ranks(values) == pytest.approx(label_ranking_average_precision_score(relevant, [values]))


def test_nan_are_counted() -> None:
    assert count_nan([1.0, NAN, NAN, -math.inf]) == 2
