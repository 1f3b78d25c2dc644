"""Matching by generation, the paper's protocol: one user turn, the answer read from at most 10 new tokens.

The documents are those of :mod:`gecs_tasks.families.match`. ``gecs_<subset>_match_reason`` asks the same with room for
a reasoning model's thoughts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gecs_tasks.answers import read_decision
from gecs_tasks.families import match
from gecs_tasks.families.base import TASK_KEY, Document, Documents, close_task
from gecs_tasks.metrics import Judged
from gecs_tasks.per_query import MatchRecord
from gecs_tasks.prompts import ANSWERS

prompt = match.prompt


def dataset(**settings: Any) -> dict[str, Documents]:
    """The documents of a matching task by generation."""
    return match.dataset(family="match_gen", **settings)


def reason_dataset(**settings: Any) -> dict[str, Documents]:
    """The documents of a matching task that leaves room for thoughts."""
    return match.dataset(family="match_reason", **settings)


def target(doc: Document) -> str:
    """The right answer, as few-shot examples give it."""
    return ANSWERS[match.target(doc)]


def results(doc: Document, answers: Sequence[str]) -> dict[str, Any]:
    """The metrics of one document from the text that was generated. An answer that is none counts as wrong."""
    label = doc["label"]
    said = read_decision(answers[0])
    decided = Judged(float(1 - label) if said is None else float(said), label)
    recorded = math.nan if said is None else float(said)
    return {
        "acc": float(decided.value == label),
        "recall_match": decided,
        "recall_no_match": decided,
        "f1": decided,
        "invalid_rate": MatchRecord(
            doc[TASK_KEY], match.document_id(doc), label, recorded, math.nan, int(said is None)
        ),
    }


def invalid_rate(records: Sequence[MatchRecord]) -> float:
    """Share of answers that could not be read."""
    return close_task(records) / len(records) if records else math.nan
