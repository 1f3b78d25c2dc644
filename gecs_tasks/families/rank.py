"""Ranking: find the code that a query describes among 100 candidates.

Pointwise: every candidate is a prompt of its own, scored by the log-probability of ``True``. The documents hold row
indices; ``doc_to_text`` is the gold's position (0), ``doc_to_choice`` the candidates' prompts, ``doc_to_target`` the
one continuation, as in the harness's own multiple-input tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class DocumentCache:
    """What is rendered for one document, kept until the next: the harness asks twice for each in a row."""

    def __init__(self, render: Callable[[LoadedTask, Document], list[str]]) -> None:
        self._render = render
        self._last: tuple[Document, list[str]] | None = None

    def __call__(self, doc: Document) -> list[str]:
        """The document's texts; while requests are built, the garbage collector is spared."""
        if self._last is None or self._last[0] is not doc:
            task = loaded_task(doc)
            task.spare_collector()
            self._last = doc, self._render(task, doc)
        return self._last[1]

    def forget(self) -> None:
        """All requests are built: let the last document go, and the garbage collector see everything again."""
        if self._last is not None:
            self._last = None
            collect_again()


_prompts = DocumentCache(lambda task, doc: [task.prompt(doc["query"], code) for code in doc["candidates"]])


def dataset(**settings: Any) -> dict[str, Documents]:
    """The documents of a ranking task: ``query`` (row) and ``candidates`` (100 rows, the gold first)."""
    return ranking_documents("rank", settings)


def ranking_documents(family: str, settings: dict[str, Any]) -> dict[str, Documents]:
    """The documents of a family that ranks the protocol's pools in their order."""
    task = load_task(family, settings, lambda collection: draw_digest(collection.pools[:, 1:]))
    pools = task.collection.pools
    key = task.key

    def make(row: int) -> Document:
        return {TASK_KEY: key, "query": row, "candidates": pools[row].tolist()}

    return {"test": Documents(len(pools), make)}


def prompts(doc: Document) -> list[str]:
    """The prompts of a document's candidates, in their order."""
    return _prompts(doc)


def pair(task: LoadedTask, doc: Document, index: int) -> tuple[int, int]:
    """The (query row, code row) that a document's request number ``index`` asks about."""
    return doc["query"], doc["candidates"][index]


def results(doc: Document, answers: Sequence[tuple[float, Any]]) -> dict[str, Any]:
    """The metrics of one document, from its candidates' (score, ...) answers."""
    _prompts.forget()
    return rank_results(doc, [answer[0] for answer in answers])


def rank_results(doc: Document, scores: Sequence[float]) -> dict[str, Any]:
    """The metrics and the record of one document, from its candidates' scores, the gold's first."""
    rank = int(gold_ranks(scores))
    record = RankRecord(doc[TASK_KEY], doc["query"], rank, scores[0], count_nan(scores))
    return {**ranking_values(rank), "nan_scores": record}


nan_scores = close_task
