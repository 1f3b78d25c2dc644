"""What embedding scoring costs over encoding alone, in one run.

    python benchmarks/embedding.py MODEL_FOLDER_OR_ID      (GECS_DATA_DIR must hold StatCodeSearch)

1. Encoder calls: exactly the distinct queries and codes.
2. The scorer's wall time over ``SentenceTransformer.encode`` of the same distinct texts, alternating; and the rest of
   the run over the same run with a free scorer, by candidate.
3. A second run from the cache over the first.
4. Peak memory of scoring as rows grow, with a fake encoder of 768 dimensions, each size in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gecs_tasks import load
from gecs_tasks.sampling import candidate_pools
from gecs_tasks.scorers.base import PairBatch, RankGroup, ScoreArray
from gecs_tasks.scorers.embedding import EmbeddingScorer
from gecs_tasks.scorers.encoders.base import Role, VectorArray
from gecs_tasks.scorers.encoders.sentence_transformer import SentenceTransformerEncoder

ROUNDS = 3
SIZES = (1070, 5000, 10000, 29391)


class Counting:
    """An encoder that counts the texts it is given."""

    def __init__(self, encoder: SentenceTransformerEncoder) -> None:
        self.encoder = encoder
        self.texts: dict[Role, int] = {"query": 0, "document": 0}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    @property
    def batch_size(self) -> int:
        return self.encoder.batch_size

    def encode(self, texts: Sequence[str], role: Role) -> VectorArray:
        self.texts[role] += len(texts)
        return self.encoder.encode(texts, role)

    def cut(self, texts: Sequence[str], role: Role) -> list[bool] | None:
        return self.encoder.cut(texts, role)

    def identity(self) -> dict[str, Any]:
        return self.encoder.identity()

    def close(self) -> None:
        self.encoder.close()


class FakeEncoder:
    """768 dimensions, at once."""

    batch_size = 1024

    def encode(self, texts: Sequence[str], role: Role) -> VectorArray:
        return np.random.default_rng(len(texts)).normal(size=(len(texts), 768)).astype(np.float32)

    def cut(self, texts: Sequence[str], role: Role) -> list[bool] | None:
        return None

    def identity(self) -> dict[str, Any]:
        return {"backend": "fake"}

    def close(self) -> None:
        pass


class FreeScorer:
    """Random scores, at once."""

    threshold = None
    group: RankGroup | None = None

    def score(self, batch: PairBatch) -> ScoreArray:
        return np.random.default_rng(0).random(len(batch))

    def identity(self) -> dict[str, Any]:
        return {}

    def info(self) -> dict[str, Any]:
        return {"scorer": "free"}


class Timed:
    """A scorer whose scoring is timed."""

    threshold = None
    group: RankGroup | None = None

    def __init__(self, scorer: EmbeddingScorer | FreeScorer) -> None:
        self.scorer = scorer
        self.seconds = 0.0

    def score(self, batch: PairBatch) -> ScoreArray:
        started = time.perf_counter()
        scores = self.scorer.score(batch)
        self.seconds = time.perf_counter() - started
        return scores

    def identity(self) -> dict[str, Any]:
        return {}

    def info(self) -> dict[str, Any]:
        return self.scorer.info()


def whole_run(scorer: Timed) -> float:
    """Seconds of ``gecs_statcode_rank`` from building the task to its results, imports and environment left out."""
    import lm_eval.evaluator
    from lm_eval.tasks import TaskManager

    from gecs_tasks import plugin
    from gecs_tasks.harness import PairScorerLM

    lm_eval.evaluator.add_env_info = lambda results: None
    manager = TaskManager(include_path=str(plugin.tasks_path()), include_defaults=False)
    started = time.perf_counter()
    lm_eval.evaluator.simple_evaluate(
        PairScorerLM(scorer), tasks=["gecs_statcode_rank"], task_manager=manager, log_samples=False
    )
    return time.perf_counter() - started


def peak(n_rows: int) -> float:
    """Peak gigabytes of scoring that many rows of 100 candidates, the documents left out."""
    texts = [f"text {row}" for row in range(n_rows)]
    pools = candidate_pools(n_rows)
    pairs = np.stack([np.repeat(np.arange(n_rows), 100), pools.reshape(-1)], axis=1).astype(np.intp)
    batch = PairBatch(texts, texts, pairs, [texts], np.zeros(len(pairs), dtype=np.intp))
    before = _high_water()
    EmbeddingScorer(FakeEncoder()).score(batch)
    return (_high_water() - before) / 2**20


def _high_water() -> int:
    """This process's peak memory in KiB; getrusage's would begin with the parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    if arguments[:1] == ["--peak"]:
        print(json.dumps(peak(int(arguments[1]))))
        return
    statcode = load("statcode")
    encoder = SentenceTransformerEncoder(arguments[0])
    counting = Counting(encoder)
    n_candidates = 100 * len(statcode)
    alone, scored, rest, cached = [], [], [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        encoder._model.encode([*statcode.distinct_codes, *statcode.distinct_queries], batch_size=encoder.batch_size)
        alone.append(time.perf_counter() - started)
        with tempfile.TemporaryDirectory() as folder:
            counting.texts = {"query": 0, "document": 0}
            timed = Timed(EmbeddingScorer(counting, cache_dir=folder))
            seconds = whole_run(timed)
            scored.append(timed.seconds)
            again = Timed(EmbeddingScorer(Counting(encoder), cache_dir=folder))
            whole_run(again)
            cached.append(again.seconds)
        free = Timed(FreeScorer())
        rest.append(seconds - timed.seconds - (whole_run(free) - free.seconds))
    print(f"encoder calls: {counting.texts['query']} queries, {counting.texts['document']} codes")
    print(f"distinct:      {len(statcode.distinct_queries)} queries, {len(statcode.distinct_codes)} codes")
    print(f"encode alone   {min(alone):7.1f} s   (rounds: {', '.join(f'{value:.1f}' for value in alone)})")
    print(f"scorer         {min(scored):7.1f} s   ratio {min(scored) / min(alone):.3f}")
    print(f"rest of the run, over a free scorer's: {min(rest) / n_candidates * 1e6:.1f} us a candidate")
    print(f"from the cache {min(cached):7.2f} s   ratio to the first {min(cached) / min(scored):.3f}")
    for n_rows in SIZES:
        done = subprocess.run(
            [sys.executable, __file__, "--peak", str(n_rows)], check=True, capture_output=True, text=True
        )
        gigabytes = float(done.stdout)
        print(f"{n_rows:>6} rows: {gigabytes:5.2f} GB over the pairs, {gigabytes / n_rows * 2**20:6.1f} KB a row")


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(f"usage: python {Path(__file__).name} MODEL")
    main(sys.argv[1:])
