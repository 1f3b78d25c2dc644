"""The harness models that this package adds, one class a name of ``--model``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Final

from gecs_tasks.errors import SettingError
from gecs_tasks.harness import PairScorerLM
from gecs_tasks.scorers.bm25 import BM25Scorer

# What the harness passes to every model, from its own command-line options.
_FROM_THE_HARNESS: Final = ("batch_size", "max_batch_size", "device")


class BM25Model(PairScorerLM):
    """``gecs-bm25``: BM25 over the subset's whole code list.

    Model arguments: ``k1`` (1.5), ``b`` (0.75), ``method`` (lucene, robertson, atire, bm25l, bm25+) and
    ``threshold``, the score above which a pair is a match (none: no decision, so no accuracy).
    """

    def __init__(
        self,
        k1: float = 1.5,
        b: float = 0.75,
        method: str = "lucene",
        threshold: float | None = None,
        **other: Any,
    ) -> None:
        reject_unknown("gecs-bm25", other, ("k1", "b", "method", "threshold"))
        super().__init__(BM25Scorer(k1=k1, b=b, method=method), threshold)


def reject_unknown(model: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse model arguments that a model does not have.

    :param given: the arguments left over after the model's own; the harness's own and ``gecs_`` task settings pass.
    :raises SettingError: naming all unknown arguments, and for each the nearest known one.
    """
    known = tuple(known)
    unknown = [name for name in given if name not in _FROM_THE_HARNESS and not name.startswith("gecs_")]
    if not unknown:
        return
    hints = []
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=1)
        hints.append(f"{name} (did you mean {near[0]}?)" if near else name)
    raise SettingError(f"{model} has no model argument {', '.join(hints)}; it has {', '.join(known)}")
