from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gecs_tasks.collection import load
from gecs_tasks.errors import SettingError
from gecs_tasks.ranking import gold_ranks
from gecs_tasks.scorers.base import PairBatch
from gecs_tasks.scorers.bm25 import METHODS, BM25Scorer, tokenize


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("getUserName", ["get", "user", "name"]),
        ("get_user_name", ["get", "user", "name"]),
        ("df.mean.score", ["df", "mean", "score"]),
        ("HTTPServer parseXMLFile", ["http", "server", "parse", "xml", "file"]),
        ("read2csv v10", ["read", "2", "csv", "v", "10"]),
        ("x <- c(1, 2)", ["x", "c", "1", "2"]),
        ("Schätzung naïveBayes", ["schätzung", "naïvebayes"]),
        ("数据 plot", ["数据", "plot"]),
        ("", []),
        (" _ .. -> ", []),
    ],
)
def test_tokens_of_code(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens


@given(st.text(max_size=80))
def test_tokens_lose_no_letter_or_digit(text: str) -> None:
    joined = "".join(tokenize(text))
    assert joined == "".join(char for char in text if char.isalnum() or char == "_").replace("_", "").lower() or any(
        not char.isascii() for char in text
    )


def batch(queries: list[str], codes: list[str], pairs: list[tuple[int, int]], corpus: list[str]) -> PairBatch:
    return PairBatch(queries, codes, np.array(pairs, dtype=np.intp), [corpus], np.zeros(len(pairs), dtype=np.intp))


def lucene(query: str, code: str, corpus: list[str], k1: float = 1.5, b: float = 0.75) -> float:
    """Lucene's BM25 by its formula, in plain Python."""
    documents = [tokenize(text) for text in corpus]
    mean_length = sum(map(len, documents)) / len(documents)
    counts = Counter(tokenize(code))
    score = 0.0
    for token in tokenize(query):
        df = sum(token in document for document in documents)
        idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
        if not (tf := counts[token]):
            continue
        score += idf * tf / (tf + k1 * (1 - b + b * len(tokenize(code)) / mean_length))
    return score


CORPUS = ["meanScore <- mean(score)", "plot(score, time)", "fit <- lm(score ~ age)", "plot(score, time)", ""]


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.4), (2.0, 1.0), (1.2, 0.0)])
def test_scores_by_lucenes_formula(k1: float, b: float) -> None:
    queries = ["mean of the scores and score", "plot over time", "nothing shared", ""]
    codes = list(dict.fromkeys(CORPUS))
    pairs = [(q, c) for q in range(len(queries)) for c in range(len(codes))]
    scores = BM25Scorer(k1=k1, b=b).score(batch(queries, codes, pairs, CORPUS))
    expected = [lucene(queries[q], codes[c], CORPUS, k1, b) for q, c in pairs]
    assert scores == pytest.approx(expected)
    assert scores[pairs.index((2, 0))] == scores[pairs.index((3, 0))] == 0


def test_the_corpus_decides_not_the_pairs_asked_for() -> None:
    alone = BM25Scorer().score(batch(["plot"], ["plot(score, time)"], [(0, 0)], CORPUS))
    together = BM25Scorer().score(batch(["fit", "plot"], [CORPUS[2], CORPUS[1]], [(0, 0), (1, 1)], CORPUS))
    assert alone[0] == together[1] > 0


def test_two_corpora_are_kept_apart() -> None:
    both = PairBatch(
        ["plot"], ["plot(x)"], np.array([[0, 0], [0, 0]]), [["plot(x)", "y"], ["plot(x)"] * 3], np.array([0, 1])
    )
    first, second = BM25Scorer().score(both)
    assert first == pytest.approx(lucene("plot", "plot(x)", ["plot(x)", "y"]))
    assert second == pytest.approx(lucene("plot", "plot(x)", ["plot(x)"] * 3))


def test_a_corpus_without_a_token() -> None:
    assert BM25Scorer().score(batch(["plot"], ["", "--"], [(0, 0), (0, 1)], ["", "--"])).tolist() == [0, 0]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ranks_the_demo_set_better_than_chance(method: str) -> None:
    demo = load("demo")
    rows = np.repeat(np.arange(160), 100)
    pairs = np.stack([rows, demo.pools.reshape(-1)], axis=1).astype(np.intp)
    scores = BM25Scorer(method=method).score(
        PairBatch(demo.queries, demo.codes, pairs, [demo.codes], np.zeros(len(pairs), dtype=np.intp))
    )
    assert (1 / gold_ranks(scores.reshape(160, 100))).mean() > 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k1": -1}, "k1 is -1: expected a number of at least 0"),
        ({"k1": "x"}, "k1 is 'x'"),
        ({"k1": math.nan}, "k1 is nan"),
        ({"k1": math.inf}, "k1 is inf"),
        ({"b": 1.5}, "b is 1.5: expected a number from 0 to 1"),
        ({"b": True}, "b is True"),
        ({"method": "okapi"}, "method is 'okapi': expected one of lucene, robertson"),
    ],
)
def test_bad_parameters(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        BM25Scorer(**settings)
