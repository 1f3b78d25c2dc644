"""Ranking: find the code that a query describes among 100 candidates.

Pointwise: every candidate is a prompt of its own, scored by the log-probability of ``True``. The documents hold row
indices; ``doc_to_text`` is the gold's position (0), ``doc_to_choice`` the candidates' prompts, ``doc_to_target`` the
one continuation, as in the harness's own multiple-input tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gecs_tasks.families.base import (
    TASK_KEY,
    Document,
    Documents,
    LoadedTask,
    close_task,
    collect_again,
    load_task,
    loaded_task,
)
from gecs_tasks.metrics import ranking_values
from gecs_tasks.per_query import RankRecord
from gecs_tasks.ranking import count_nan, gold_ranks
from gecs_tasks.sampling import draw_digest

_last: tuple[Document, list[str]] | None = None


def dataset(**settings: Any) -> dict[str, Documents]:
    """The documents of a ranking task: ``query`` (row) and ``candidates`` (100 rows, the gold first)."""
    task = load_task("rank", settings, lambda collection: draw_digest(collection.pools[:, 1:]))
    pools = task.collection.pools
    key = task.key

    def make(row: int) -> Document:
        return {TASK_KEY: key, "query": row, "candidates": pools[row].tolist()}

    return {"test": Documents(len(pools), make)}


def prompts(doc: Document) -> list[str]:
    """The prompts of a document's candidates, in their order.

    The harness asks twice for each document in a row, so the last answer is kept.
    """
    global _last
    if _last is None or _last[0] is not doc:
        task = loaded_task(doc)
        task.spare_collector()
        query = doc["query"]
        _last = doc, [task.prompt(query, code) for code in doc["candidates"]]
    return _last[1]


def pair(task: LoadedTask, doc: Document, index: int) -> tuple[int, int]:
    """The (query row, code row) that a document's request number ``index`` asks about."""
    return doc["query"], doc["candidates"][index]


def results(doc: Document, answers: Sequence[tuple[float, Any]]) -> dict[str, Any]:
    """The metrics of one document, from its candidates' (score, ...) answers."""
    global _last
    if _last is not None:
        _last = None
        collect_again()
    scores = [answer[0] for answer in answers]
    rank = int(gold_ranks(scores))
    record = RankRecord(doc[TASK_KEY], doc["query"], rank, scores[0], count_nan(scores))
    return {**ranking_values(rank), "nan_scores": record}


nan_scores = close_task
