"""Listwise ranking by generation: all candidates in one prompt, the model names the best ten.

For APIs that only chat. The candidates are numbered in an order drawn once for each query from the protocol's seed, so
that the gold is not always first.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from typing import Any, Final

from gecs_tasks.answers import read_listing
from gecs_tasks.benchmark import N_DISTRACTORS, SEED
from gecs_tasks.errors import SettingError
from gecs_tasks.families.base import TASK_KEY, Document, Documents, close_task, load_task, loaded_task
from gecs_tasks.metrics import ranking_values
from gecs_tasks.per_query import RankRecord
from gecs_tasks.prompts import render_listing
from gecs_tasks.sampling import draw_digest

N_WANTED: Final = 10
_MOST: Final = N_DISTRACTORS + 1


def dataset(**settings: Any) -> dict[str, Documents]:
    """The documents of a listwise task: ``query`` (row), ``candidates`` in the order shown, ``gold`` its place there.

    The setting ``gecs_n_candidates`` shows only the first so many of each pool; its results are not comparable.
    """
    n_candidates = settings.get("gecs_n_candidates", _MOST)
    if isinstance(n_candidates, bool) or not isinstance(n_candidates, int) or not 2 <= n_candidates <= _MOST:
        raise SettingError(f"gecs_n_candidates is {n_candidates!r}: expected a whole number from 2 to {_MOST}")
    task = load_task("rank_gen", settings, lambda collection: draw_digest(collection.pools[:, 1:]))
    pools = task.collection.pools
    rng = random.Random(SEED)
    orders = [rng.sample(range(n_candidates), n_candidates) for _ in range(len(pools))]
    listed = "\n".join(",".join(map(str, order)) for order in orders)
    task.info["draws"]["order_sha256"] = hashlib.sha256(listed.encode()).hexdigest()
    task.info["draws"]["candidates"] = n_candidates
    task.info["draws"]["wanted"] = N_WANTED
    if n_candidates != _MOST:
        task.info["not_comparable"] = f"{n_candidates} candidates in place of {_MOST}"
    key = task.key

    def make(row: int) -> Document:
        order = orders[row]
        pool = pools[row].tolist()
        shown = [pool[place] for place in order]
        return {TASK_KEY: key, "query": row, "candidates": shown, "gold": order.index(0)}

    return {"test": Documents(len(pools), make)}


def prompt(doc: Document) -> str:
    """A document's one prompt."""
    task = loaded_task(doc)
    collection = task.collection
    codes = [collection.codes[code] for code in doc["candidates"]]
    query = collection.queries[doc["query"]]
    return render_listing(collection.subset, query, codes, N_WANTED, task.max_code_chars)


def target(doc: Document) -> str:
    """The gold candidate's number."""
    return str(doc["gold"] + 1)


def results(doc: Document, answers: Sequence[str]) -> dict[str, Any]:
    """The metrics of one document from the text that was generated.

    A candidate's rank is its place in the answer; those not named share the last rank. An answer that is not ten
    different numbers in range counts in ``malformed_rate``, and never ranks a candidate better than where it stands.
    """
    n_candidates = len(doc["candidates"])
    listing = read_listing(answers[0], n_candidates, N_WANTED)
    number = doc["gold"] + 1
    rank = listing.numbers.index(number) + 1 if number in listing.numbers else n_candidates
    return {
        **ranking_values(rank),
        "malformed_rate": RankRecord(doc[TASK_KEY], doc["query"], rank, math.nan, int(not listing.well_formed)),
    }


def malformed_rate(records: Sequence[RankRecord]) -> float:
    """Share of answers that were not what was asked for."""
    return close_task(records) / len(records) if records else math.nan
