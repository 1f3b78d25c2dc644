"""Matching: does this comment describe this code? True or False, by log-likelihood.

Two documents a row, in file order: the row itself, then its comment with another row's code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from gecs_tasks import metrics
from gecs_tasks.families.base import TASK_KEY, Document, Documents, LoadedTask, close_task, load_task, loaded_task
from gecs_tasks.metrics import MATCH, NO_MATCH, Judged
from gecs_tasks.per_query import MatchRecord
from gecs_tasks.sampling import draw_digest

# A scorer that ranks but makes no decision answers False with this. A language model's own second value is 0 or 1.
UNDECIDED: Final[tuple[float, int]] = (math.nan, -1)


def dataset(*, family: str = "match", **settings: Any) -> dict[str, Documents]:
    """The documents of a matching task: ``query`` (row), ``code`` (row) and ``label`` (1 match, 0 no match)."""
    task = load_task(family, settings, lambda collection: draw_digest(collection.negatives))
    negatives = task.collection.negatives

    def make(index: int) -> Document:
        row, is_negative = divmod(index, 2)
        code = int(negatives[row]) if is_negative else row
        return task.example(row, code, NO_MATCH if is_negative else MATCH)

    return {"test": Documents(2 * len(negatives), make)}


def prompt(doc: Document) -> str:
    """A document's prompt."""
    return loaded_task(doc).prompt(doc["query"], doc["code"])


def document_id(doc: Document) -> int:
    """A document's number in the whole task: two a row, the matching one first."""
    return int(2 * doc["query"] + (doc["label"] == NO_MATCH))


def target(doc: Document) -> int:
    """The position of the right answer in :data:`gecs_tasks.prompts.ANSWERS`."""
    return 0 if doc["label"] == MATCH else 1


def pair(task: LoadedTask, doc: Document, index: int) -> tuple[int, int]:
    """The (query row, code row) that a document's requests ask about."""
    return doc["query"], doc["code"]


def results(doc: Document, answers: Sequence[tuple[float, Any]]) -> dict[str, Any]:
    """The metrics of one document, from its answers for ``True`` and for ``False``.

    The score is the log-odds of True against False, and a score above 0 decides for a match. A scorer without a
    decision of its own (see :data:`UNDECIDED`) has its own score and no decision: accuracy, recalls and F1 are NaN.
    A NaN among the answers counts as a wrong decision.
    """
    (true_score, _), (false_score, greedy) = answers
    label = doc["label"]
    if greedy == UNDECIDED[1]:
        score, decision, n_invalid = true_score, math.nan, int(math.isnan(true_score))
    else:
        score = true_score - false_score
        n_invalid = int(math.isnan(true_score)) + int(math.isnan(false_score))
        n_invalid = n_invalid or int(math.isnan(score))  # two infinities
        decision = float(1 - label if math.isnan(score) else score > 0)
    correct = math.nan if math.isnan(decision) else float(decision == label)
    decided, scored = Judged(decision, label), Judged(score, label)
    return {
        "acc": correct,
        "recall_match": decided,
        "recall_no_match": decided,
        "f1": decided,
        "auroc": scored,
        "acc_median": scored,
        "nan_scores": MatchRecord(doc[TASK_KEY], document_id(doc), label, decision, score, n_invalid),
    }


recall_match = metrics.recall_match
recall_no_match = metrics.recall_no_match
f1 = metrics.f1
auroc = metrics.auroc
acc_median = metrics.acc_median
nan_scores = close_task
