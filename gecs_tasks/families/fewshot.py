"""Few-shot examples for matching: balanced, from the AdvTest training set, never from a test set."""

from __future__ import annotations

import logging
from typing import Any, Final

from lm_eval.api.samplers import ContextSampler

from gecs_tasks.benchmark import TRAINING
from gecs_tasks.collection import Collection, load
from gecs_tasks.families.base import Document, example_task
from gecs_tasks.metrics import MATCH, NO_MATCH

logger = logging.getLogger(__name__)

_LABELS: Final = (MATCH, NO_MATCH)


class BalancedSampler(ContextSampler):  # type: ignore[misc]  # the harness is untyped
    """Draws examples with the harness's few-shot seed: half matching and half not, in random order.

    Of an odd number the odd one's label is drawn. An example that does not match is a training row's comment with
    another row's code. The training set is read when the first example is asked for: a zero-shot run never loads it.
    """

    def sample(self, n: int, eval_doc: Document | None = None, df: Any = None, **other: Any) -> list[Document]:
        """``n`` documents of the training set."""
        if n < 1:
            return []
        training: Collection = load(TRAINING.name)
        task = example_task(training)
        labels = [*_LABELS * (n // 2), *([self.rnd.choice(_LABELS)] if n % 2 else [])]
        self.rnd.shuffle(labels)
        rows = self.rnd.sample(range(len(training)), n)
        return [
            task.example(row, self._code(training, row, label), label) for row, label in zip(rows, labels, strict=True)
        ]

    def _code(self, training: Collection, row: int, label: int) -> int:
        if label == MATCH:
            return row
        while True:  # another row's code, and not a copy of this row's
            other = self.rnd.randrange(len(training))
            if training.codes[other] != training.codes[row]:
                return int(other)
