from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gecs_tasks.collection import load
from gecs_tasks.errors import DrawError
from gecs_tasks.sampling import candidate_pools, draw_digest, matching_negatives

# sha256 over the draws of the reference implementation, computed independently of this package
STATCODE_POOLS = "4c248febb315c8c21d065df82a82aa4af15bd429e0a730c978ed8fb6b2e0a2eb"
STATCODE_NEGATIVES = "e7a5b38eef1d34a5a0dab1b99ae099c318545d03934f7f8d41a019e3445e1f44"
COSQA_SAMPLE_POOLS = "1c38f0cab1ac926ed28113933acf46eb5568b406c370762148ade3964454e0ee"
COSQA_SAMPLE_NEGATIVES = "cb68c8a2884a0f42d333df52f2a41aef842cc9a066a5cd4802752124fbabc7f4"


def reference_pools(n_rows: int, n_distractors: int, seed: int) -> list[list[int]]:
    """The reference implementation's way: build every row's list of the others and sample from it."""
    random.seed(seed)
    pools = []
    for row in range(n_rows):
        others = [other for other in range(n_rows) if other != row]
        pools.append([row, *random.sample(others, n_distractors)])
    return pools


def reference_negatives(inputs: list[str], seed: int) -> list[int]:
    """Likewise, with the rows whose record equals this one left out."""
    random.seed(seed)
    records = [{"input": text, "target": 1} for text in inputs]
    negatives = []
    for record in records:
        others = [position for position, other in enumerate(records) if other != record]
        negatives.append(random.sample(others, 1)[0])
    return negatives


def test_pools_of_1070_rows_are_the_reference_draw() -> None:
    pools = candidate_pools(1070)
    assert pools.shape == (1070, 100)
    assert pools[0, :7].tolist() == [0, 229, 52, 564, 502, 458, 286]
    assert pools[:, 0].tolist() == list(range(1070))
    assert draw_digest(pools[:, 1:]) == STATCODE_POOLS


def test_negatives_of_1070_distinct_rows_are_the_reference_draw() -> None:
    assert draw_digest(matching_negatives([str(row) for row in range(1070)])) == STATCODE_NEGATIVES


def test_draws_of_real_statcode(real_data: object) -> None:
    statcode = load("statcode")
    assert draw_digest(statcode.pools[:, 1:]) == STATCODE_POOLS
    assert draw_digest(statcode.negatives) == STATCODE_NEGATIVES


def test_draws_of_real_cosqa_with_its_duplicate_records(real_data: object) -> None:
    cosqa = load("cosqa")
    if len(cosqa) != 1500:
        pytest.skip("these digests are of the 1,500-row sample")
    assert draw_digest(cosqa.pools[:, 1:]) == COSQA_SAMPLE_POOLS
    assert draw_digest(cosqa.negatives) == COSQA_SAMPLE_NEGATIVES


@given(n_rows=st.integers(2, 150), data=st.data(), seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_pools_equal_the_reference_at_every_size(n_rows: int, data: st.DataObject, seed: int) -> None:
    n_distractors = data.draw(st.integers(1, n_rows - 1))
    pools = candidate_pools(n_rows, n_distractors, seed)
    assert pools.tolist() == reference_pools(n_rows, n_distractors, seed)


@given(inputs=st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=60), seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_negatives_equal_the_reference_with_duplicates(inputs: list[str], seed: int) -> None:
    if len(set(inputs)) == 1:
        with pytest.raises(DrawError, match="no row that differs"):
            matching_negatives(inputs, seed)
        return
    negatives = matching_negatives(inputs, seed)
    assert negatives.tolist() == reference_negatives(inputs, seed)
    assert all(inputs[drawn] != own for drawn, own in zip(negatives, inputs, strict=True))


def test_drawing_leaves_the_global_generator_alone() -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    candidate_pools(200)
    assert random.random() == expected


def test_too_few_rows_for_a_pool() -> None:
    with pytest.raises(DrawError, match="at least 100 rows, found 99"):
        candidate_pools(99)
    assert candidate_pools(100).shape == (100, 100)
    assert candidate_pools(100, 3).shape == (100, 4)
    with pytest.raises(DrawError, match="at least 1 distractor, got n_distractors=0"):
        candidate_pools(100, 0)


def test_digest_is_over_lines_of_comma_separated_indices() -> None:
    import hashlib

    assert draw_digest(np.array([[1, 2], [3, 4]], dtype=np.int32)) == hashlib.sha256(b"1,2\n3,4").hexdigest()
    assert draw_digest(np.array([7, 8], dtype=np.int32)) == hashlib.sha256(b"7\n8").hexdigest()
