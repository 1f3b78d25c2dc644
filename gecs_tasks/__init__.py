"""GenCodeSearchNet for lm-evaluation-harness: code search as matching and 100-candidate ranking tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gecs_tasks.benchmark import SUBSETS
    from gecs_tasks.collection import Collection, Fingerprint, load
    from gecs_tasks.errors import GecsError
    from gecs_tasks.ranking import gold_ranks
    from gecs_tasks.sampling import candidate_pools, draw_digest, matching_negatives
    from gecs_tasks.scorers.base import PairBatch, PairScorer

__version__ = "0.1.0"

__all__ = [
    "SUBSETS",
    "Collection",
    "Fingerprint",
    "GecsError",
    "PairBatch",
    "PairScorer",
    "__version__",
    "candidate_pools",
    "draw_digest",
    "gold_ranks",
    "load",
    "matching_negatives",
]

_HOME = {
    "SUBSETS": "benchmark",
    "Collection": "collection",
    "Fingerprint": "collection",
    "load": "collection",
    "GecsError": "errors",
    "gold_ranks": "ranking",
    "candidate_pools": "sampling",
    "draw_digest": "sampling",
    "matching_negatives": "sampling",
    "PairBatch": "scorers.base",
    "PairScorer": "scorers.base",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that ``import gecs_tasks`` costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
