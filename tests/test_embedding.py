"""The embedding scorer: what it asks of an encoder, what it makes of the answers."""

from __future__ import annotations

import hashlib
import math
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gecs_tasks.collection import load
from gecs_tasks.errors import EncodingError, SettingError
from gecs_tasks.harness import PairScorerLM
from gecs_tasks.scorers.base import PairBatch
from gecs_tasks.scorers.embedding import EmbeddingScorer
from gecs_tasks.scorers.encoders.base import Role, VectorArray
from tests.conftest import Evaluate


class HashEncoder:
    """Vectors that follow from a text and its role alone; it remembers what it was asked."""

    def __init__(self, dimension: int = 8, batch_size: int = 16, name: str = "hash") -> None:
        self.dimension = dimension
        self.batch_size = batch_size
        self.name = name
        self.calls: list[tuple[Role, list[str]]] = []
        self.spoil: Callable[[VectorArray], VectorArray] = lambda vectors: vectors

    def vector(self, text: str, role: Role) -> VectorArray:
        seed = int.from_bytes(hashlib.sha256(f"{role}{text}".encode()).digest()[:8], "big")
        return np.random.default_rng(seed).normal(size=self.dimension).astype(np.float32)

    def encode(self, texts: Sequence[str], role: Role) -> VectorArray:
        self.calls.append((role, list(texts)))
        return self.spoil(np.array([self.vector(text, role) for text in texts]))

    def cut(self, texts: Sequence[str], role: Role) -> list[bool] | None:
        return [len(text) > 100 for text in texts]

    def identity(self) -> dict[str, Any]:
        return {"backend": "test", "model": self.name}

    def close(self) -> None:
        pass

    @property
    def texts(self) -> list[str]:
        return [text for _, texts in self.calls for text in texts]


def batch(queries: list[str], codes: list[str], pairs: list[tuple[int, int]]) -> PairBatch:
    return PairBatch(queries, codes, np.array(pairs, dtype=np.intp), [codes], np.zeros(len(pairs), dtype=np.intp))


QUERIES, CODES = ["short", "a longer query"], ["x", "yy", "a much longer code"]
PAIRS = [(0, 0), (0, 2), (1, 1), (1, 0)]


def test_scores_are_cosines() -> None:
    encoder = HashEncoder()
    scores = EmbeddingScorer(encoder).score(batch(QUERIES, CODES, PAIRS))
    for (q, c), score in zip(PAIRS, scores, strict=True):
        left, right = encoder.vector(QUERIES[q], "query"), encoder.vector(CODES[c], "document")
        assert score == pytest.approx(left @ right / math.sqrt(float((left @ left) * (right @ right))), abs=1e-6)


def test_scores_are_dot_products() -> None:
    encoder = HashEncoder()
    scores = EmbeddingScorer(encoder, similarity="dot").score(batch(QUERIES, CODES, PAIRS))
    assert scores[1] == pytest.approx(float(encoder.vector("short", "query") @ encoder.vector(CODES[2], "document")))
    normalized = EmbeddingScorer(encoder, similarity="dot", normalize=True).score(batch(QUERIES, CODES, PAIRS))
    assert normalized.tolist() == EmbeddingScorer(encoder).score(batch(QUERIES, CODES, PAIRS)).tolist()


def test_every_text_is_encoded_once_longest_first(evaluate: Evaluate) -> None:
    encoder = HashEncoder()
    evaluate(PairScorerLM(EmbeddingScorer(encoder)), "gecs_demo")
    demo = load("demo")
    by_role: dict[Role, list[str]] = {"query": [], "document": []}
    for role, texts in encoder.calls:
        by_role[role] += texts
    assert sorted(by_role["query"]) == sorted(demo.distinct_queries)
    assert sorted(by_role["document"]) == sorted(demo.distinct_codes)
    for texts in by_role.values():
        assert [len(text) for text in texts] == sorted(map(len, texts), reverse=True)
    assert max(len(texts) for _, texts in encoder.calls) == 16


def test_a_pairs_score_does_not_depend_on_the_batch_it_is_in() -> None:
    encoder = HashEncoder(dimension=384)
    many = [f"code {i}" for i in range(300)]
    whole = EmbeddingScorer(encoder).score(batch(["query"], many, [(0, i) for i in range(300)]))
    for i in (0, 7, 299):
        assert EmbeddingScorer(encoder).score(batch(["query"], [many[i]], [(0, 0)]))[0] == whole[i]


def test_what_is_recorded(evaluate: Evaluate, tmp_path: Path) -> None:
    results = evaluate(PairScorerLM(EmbeddingScorer(HashEncoder(), cache_dir=tmp_path)), "gecs_demo_rank")
    scorer = results["config"]["gecs_scorer"]
    n_cut = sum(len(text) > 100 for text in (*load("demo").queries, *load("demo").codes))
    assert scorer == {
        "scorer": "embedding",
        "backend": "test",
        "model": "hash",
        "dimension": 8,
        "similarity": "cosine",
        "normalize": False,
        "texts": {
            "queries": 160, "codes": 160, "encoded": 320, "from_cache": 0, "cut": n_cut, "not_a_number": 0
        },
        "threshold": None,
    }  # fmt: skip


def test_a_second_run_encodes_nothing(tmp_path: Path) -> None:
    first, second, other = HashEncoder(), HashEncoder(), HashEncoder(name="other")
    scores = EmbeddingScorer(first, cache_dir=tmp_path).score(batch(QUERIES, CODES, PAIRS))
    scorer = EmbeddingScorer(second, cache_dir=tmp_path)
    assert scorer.score(batch(QUERIES, CODES, PAIRS)).tolist() == scores.tolist()
    assert second.calls == []
    assert scorer.info()["texts"]["from_cache"] == 5
    EmbeddingScorer(other, cache_dir=tmp_path).score(batch(QUERIES, CODES, PAIRS))
    assert len(other.texts) == 5  # another model's vectors are not these


def test_a_text_is_another_as_query_and_as_code(tmp_path: Path) -> None:
    for _ in range(2):
        encoder = HashEncoder()
        score = EmbeddingScorer(encoder, cache_dir=tmp_path).score(batch(["same"], ["same"], [(0, 0)]))[0]
        left, right = encoder.vector("same", "query"), encoder.vector("same", "document")
        assert score == pytest.approx(left @ right / np.linalg.norm(left) / np.linalg.norm(right), abs=1e-6)


def test_a_killed_run_loses_at_most_one_batch(tmp_path: Path) -> None:
    """A run that is killed without warning in its seventh batch; the next encodes the rest."""
    script = textwrap.dedent(f"""
        import os, signal
        from gecs_tasks.scorers.embedding import EmbeddingScorer
        from tests.test_embedding import HashEncoder, batch
        class Killed(HashEncoder):
            def encode(self, texts, role):
                if len(self.calls) == 6:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().encode(texts, role)
        codes = [f"code {{i}}" for i in range(200)]
        EmbeddingScorer(Killed(), cache_dir={str(tmp_path)!r}).score(batch(["q"], codes, [(0, 0)]))
    """)
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent.parent, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    encoder = HashEncoder()
    EmbeddingScorer(encoder, cache_dir=tmp_path).score(batch(["q"], [f"code {i}" for i in range(200)], [(0, 0)]))
    assert len(encoder.texts) == 201 - 6 * 16


def test_a_vector_that_is_not_a_number_is_counted_and_not_cached(tmp_path: Path) -> None:
    def spoil(vectors: VectorArray) -> VectorArray:
        vectors[0, 3] = np.nan
        return vectors

    encoder = HashEncoder()
    encoder.spoil = spoil
    scorer = EmbeddingScorer(encoder, cache_dir=tmp_path)
    scores = scorer.score(batch(QUERIES, CODES, PAIRS))  # the longest query and the longest code are spoilt
    assert [math.isnan(score) for score in scores] == [False, True, True, True]
    assert scorer.info()["texts"]["not_a_number"] == 2
    healthy = HashEncoder()
    EmbeddingScorer(healthy, cache_dir=tmp_path).score(batch(QUERIES, CODES, PAIRS))
    assert sorted(healthy.texts) == ["a longer query", "a much longer code"]


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_an_infinity_is_not_a_number(similarity: str) -> None:
    def spoil(vectors: VectorArray) -> VectorArray:
        vectors[0, 3] = np.inf
        return vectors

    encoder = HashEncoder()
    encoder.spoil = spoil
    scorer = EmbeddingScorer(encoder, similarity=similarity)
    assert [math.isnan(score) for score in scorer.score(batch(QUERIES, CODES, PAIRS))] == [False, True, True, True]
    assert scorer.info()["texts"]["not_a_number"] == 2


@pytest.mark.parametrize("scale", [1e20, 1e-25])
def test_cosines_of_very_long_and_very_short_vectors(scale: float) -> None:
    plain = EmbeddingScorer(HashEncoder()).score(batch(QUERIES, CODES, PAIRS))
    encoder = HashEncoder()
    encoder.spoil = lambda vectors: (vectors * scale).astype(np.float32)
    assert EmbeddingScorer(encoder).score(batch(QUERIES, CODES, PAIRS)) == pytest.approx(plain, abs=1e-5)


def test_a_vector_without_a_direction_has_no_cosine() -> None:
    encoder = HashEncoder()
    encoder.spoil = lambda vectors: vectors * 0
    assert all(math.isnan(score) for score in EmbeddingScorer(encoder).score(batch(QUERIES, CODES, PAIRS)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda vectors: vectors[:-1], r"array of shape \(\d+, 8\) came back, expected \(\d+, d\)"),
        (lambda vectors: vectors.reshape(-1), r"came back, expected"),
        (lambda vectors: vectors[:, : len(vectors) + 1], r"a vector of \d dimensions came after vectors of \d"),
    ],
)
def test_answers_of_the_wrong_shape(spoil: Callable[[VectorArray], VectorArray], message: str) -> None:
    encoder = HashEncoder(batch_size=2)
    encoder.spoil = spoil
    with pytest.raises(EncodingError, match=message):
        EmbeddingScorer(encoder).score(batch(QUERIES, CODES, PAIRS))


def test_a_cache_that_another_dimension_was_put_into(tmp_path: Path) -> None:
    """The same identity with another dimension: a server that changed its model under its name."""
    EmbeddingScorer(HashEncoder(dimension=8), cache_dir=tmp_path).score(batch(QUERIES[:1], CODES[:1], [(0, 0)]))
    with pytest.raises(EncodingError, match="a vector of 6 dimensions came after vectors of 8"):
        EmbeddingScorer(HashEncoder(dimension=6), cache_dir=tmp_path).score(batch(QUERIES, CODES, PAIRS))


def test_bad_settings(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="similarity is 'euclid': expected one of cosine, dot"):
        EmbeddingScorer(HashEncoder(), similarity="euclid")
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="cache_dir"):
        EmbeddingScorer(HashEncoder(), cache_dir=tmp_path / "file" / "below")


class Threads:
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)

    def of(self, rank: int) -> Any:
        everyone = self

        class Group:
            def __init__(self) -> None:
                self.rank, self.size = rank, everyone.size

            def gather(self, value: Any) -> list[Any]:
                everyone.values[rank] = value
                everyone.barrier.wait(20)
                gathered = list(everyone.values)
                everyone.barrier.wait(20)
                return gathered

        return Group()


@pytest.mark.parametrize("size", [2, 3, 7])
def test_ranks_share_the_work(size: int) -> None:
    """Each text once over all ranks, and the scores of a single process."""
    codes = [f"code {i}" for i in range(5)]
    batches = [batch([f"query {rank}"], codes, [(0, i) for i in range(5)]) for rank in range(size)]
    encoders = [HashEncoder() for _ in range(size)]
    threads, results = Threads(size), {}

    def run(rank: int) -> None:
        scorer = EmbeddingScorer(encoders[rank])
        scorer.group = threads.of(rank)
        results[rank] = (scorer.score(batches[rank]), scorer.info()["texts"])

    workers = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    encoded = [text for encoder in encoders for text in encoder.texts]
    assert sorted(encoded) == sorted([*codes, *(f"query {rank}" for rank in range(size))])
    for rank in range(size):
        assert results[rank][0].tolist() == EmbeddingScorer(HashEncoder()).score(batches[rank]).tolist()
        assert results[rank][1]["encoded"] == size + 5
        assert results[rank][1]["queries"] == size


def test_a_progress_bar_only_where_it_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    EmbeddingScorer(HashEncoder(), progress=True).score(batch(QUERIES, CODES, PAIRS))
    assert "5/5" in capsys.readouterr().err
    for progress in (None, False):  # stderr is no terminal here
        EmbeddingScorer(HashEncoder(), progress=progress).score(batch(QUERIES, CODES, PAIRS))
        assert capsys.readouterr().err == ""
