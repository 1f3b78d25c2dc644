"""Ranking by query likelihood: log P(comment | code) for each of 100 candidates.

The continuation is the same for all candidates, so no length is favoured. The documents are those of
:mod:`gecs_tasks.families.rank`; an empty comment has no likelihood, and its candidates tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gecs_tasks.families.base import Document, Documents, LoadedTask, close_task, loaded_task
from gecs_tasks.families.rank import DocumentCache, rank_results, ranking_documents
from gecs_tasks.prompts import render_likelihood

# An empty comment's candidates are asked for nonetheless, since the harness counts requests.
_NOTHING = "Nothing"

_contexts = DocumentCache(lambda task, doc: _render(task, doc))


def dataset(**settings: Any) -> dict[str, Documents]:
    """The documents of a query-likelihood task: ``query`` (row) and ``candidates`` (100 rows, the gold first)."""
    return ranking_documents("rank_ql", settings)


def contexts(doc: Document) -> list[str]:
    """The contexts of a document's candidates, in their order."""
    return _contexts(doc)


def _render(task: LoadedTask, doc: Document) -> list[str]:
    collection = task.collection
    if not query(doc):
        return [_NOTHING] * len(doc["candidates"])
    codes = (collection.codes[code] for code in doc["candidates"])
    return [render_likelihood(collection.subset, code, task.max_code_chars) for code in codes]


def query(doc: Document) -> str:
    """A document's comment, as it is asked for: without space around it."""
    return loaded_task(doc).collection.queries[doc["query"]].strip()


def target(doc: Document) -> str:
    """The continuation whose likelihood is asked for."""
    return query(doc) or _NOTHING


def results(doc: Document, answers: Sequence[tuple[float, Any]]) -> dict[str, Any]:
    """The metrics of one document; ``empty_queries`` counts comments without a likelihood, which rank last."""
    _contexts.forget()
    empty = not query(doc)
    scores = [0.0] * len(answers) if empty else [answer[0] for answer in answers]
    return {**rank_results(doc, scores), "empty_queries": float(empty)}


def empty_queries(counts: Sequence[float]) -> float:
    """How many comments were empty."""
    return float(sum(counts))


nan_scores = close_task
