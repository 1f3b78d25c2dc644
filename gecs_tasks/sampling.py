"""The benchmark's random draws: negatives for matching, candidate pools for ranking.

Both follow the reference implementation of the GenBench task to the draw: one generator seeded once a subset,
one ``random.sample`` a row in file order. ``random.sample`` looks only at its population's length, so sampling
from a range and shifting past the excluded rows gives the same draw without building a list a row.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gecs_tasks.benchmark import N_DISTRACTORS, SEED
from gecs_tasks.errors import DrawError

IndexArray: TypeAlias = NDArray[np.int32]


def candidate_pools(n_rows: int, n_distractors: int = N_DISTRACTORS, seed: int = SEED) -> IndexArray:
    """Draw each row's pool of candidates among the other rows, by position (copies of a row stay in).

    :param n_rows: number of rows of the subset.
    :param n_distractors: distractors a row, 99 in the published protocol.
    :param seed: the generator's seed, 42 in the published protocol.
    :return: row indices, shape (n_rows, n_distractors + 1); column 0 is the row itself (the gold code).
    :raises DrawError: where there are not more than ``n_distractors`` rows.
    """
    if n_distractors < 1:
        raise DrawError(f"a pool needs at least 1 distractor, got n_distractors={n_distractors}")
    if n_rows <= n_distractors:
        raise DrawError(
            f"a pool of {n_distractors + 1} candidates needs at least {n_distractors + 1} rows, found {n_rows}: "
            "use the whole subset"
        )
    rng = random.Random(seed)
    others = range(n_rows - 1)
    pools = np.empty((n_rows, n_distractors + 1), dtype=np.int32)
    for row in range(n_rows):
        pools[row, 1:] = rng.sample(others, n_distractors)
    distractors = pools[:, 1:]
    distractors += distractors >= np.arange(n_rows, dtype=np.int32)[:, None]
    pools[:, 0] = np.arange(n_rows, dtype=np.int32)
    return pools


def matching_negatives(inputs: Sequence[str], seed: int = SEED) -> IndexArray:
    """Draw for each row another row, whose code becomes this row's non-matching code.

    Rows whose whole record equals this row's are left out of its population.

    :param inputs: the rows' ``input`` strings in file order (a record is its input: the rest is constant).
    :param seed: the generator's seed, 42 in the published protocol.
    :return: row indices, shape (n_rows,).
    :raises DrawError: where a row has no row that differs from it.
    """
    positions: dict[str, list[int]] = {}
    for row, text in enumerate(inputs):
        positions.setdefault(text, []).append(row)
    rng = random.Random(seed)
    negatives = np.empty(len(inputs), dtype=np.int32)
    for row, text in enumerate(inputs):
        copies = positions[text]
        population = len(inputs) - len(copies)
        if population < 1:
            raise DrawError(f"row {row} has no row that differs from it among {len(inputs)} rows: no negative to draw")
        (drawn,) = rng.sample(range(population), 1)
        for copy in copies:  # ascending, so one pass shifts past all of them
            if drawn < copy:
                break
            drawn += 1
        negatives[row] = drawn
    return negatives


def draw_digest(drawn: IndexArray) -> str:
    """Fingerprint a draw: sha256 over one line a row, indices joined by commas, lines joined by newlines.

    :param drawn: shape (n_rows,) for negatives, or (n_rows, k) for distractors (leave the gold column out).
    """
    rows = drawn.reshape(len(drawn), -1).tolist()
    return hashlib.sha256("\n".join(",".join(map(str, row)) for row in rows).encode()).hexdigest()
