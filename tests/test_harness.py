"""Runs through the harness's own front door, with models whose answers are known."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gecs_tasks import per_query
from gecs_tasks.collection import load
from gecs_tasks.errors import RequestError, SettingError
from gecs_tasks.harness import PairScorerLM
from gecs_tasks.models import BM25Model
from gecs_tasks.scorers.base import PairBatch, RankGroup, ScoreArray
from tests.conftest import Evaluate
from tests.models import PromptModel, always, at_random, knowing
from tests.test_prompts import COMMENT_R

MATCH, RANK = "gecs_demo_match", "gecs_demo_rank"


def metric(results: dict[str, Any], task: str, name: str) -> float:
    return float(results["results"][task][f"{name},none"])


class RecordingScorer:
    """A scorer whose score is a hash of the pair, and which remembers what it was asked."""

    def __init__(self) -> None:
        self.batches: list[PairBatch] = []

    threshold = None
    group: RankGroup | None = None

    def score(self, batch: PairBatch) -> ScoreArray:
        self.batches.append(batch)
        return np.array([hash((batch.queries[q], batch.codes[c])) % 9973 for q, c in batch.pairs.tolist()], float)

    def identity(self) -> dict[str, Any]:
        return {}

    def info(self) -> dict[str, Any]:
        return {"scorer": "recording"}


@pytest.mark.parametrize(
    ("answer", "recall_match", "recall_no_match", "f1"), [("True", 1.0, 0.0, 2 / 3), ("False", 0.0, 1.0, 0.0)]
)
def test_a_model_that_always_says_the_same(
    evaluate: Evaluate, answer: str, recall_match: float, recall_no_match: float, f1: float
) -> None:
    results = evaluate(always(answer), "gecs_demo")
    assert metric(results, MATCH, "acc") == 0.5
    assert metric(results, MATCH, "recall_match") == recall_match
    assert metric(results, MATCH, "recall_no_match") == recall_no_match
    assert metric(results, MATCH, "f1") == pytest.approx(f1)
    assert metric(results, MATCH, "auroc") == 0.5
    assert metric(results, RANK, "mrr") == pytest.approx(0.01)  # all 100 tie
    assert metric(results, RANK, "mean_rank") == 100


def test_a_model_that_knows_the_answer(evaluate: Evaluate) -> None:
    results = evaluate(knowing(load("demo")), "gecs_demo")
    for task, names in {MATCH: ("acc", "f1", "auroc", "acc_median"), RANK: ("mrr", "recall@1", "mean_rank")}.items():
        assert [metric(results, task, name) for name in names] == [1.0] * len(names)


def test_a_model_that_guesses(evaluate: Evaluate) -> None:
    results = evaluate(at_random(), "gecs_demo")
    assert metric(results, MATCH, "acc") == pytest.approx(0.5, abs=0.12)
    # expected MRR of a random order of 100: the mean of 1/r, 0.0519; its standard error here is some 0.01
    assert metric(results, RANK, "mrr") == pytest.approx(sum(1 / r for r in range(1, 101)) / 100, abs=0.05)
    assert results["results"][RANK]["mrr_stderr,none"] > 0


def test_the_prompt_a_model_sees(evaluate: Evaluate) -> None:
    model = always("True")
    evaluate(model, RANK, limit=1)
    demo = load("demo")
    assert len(model.asked) == 100
    context, continuation = model.asked[0]
    assert continuation == " True"
    assert context == COMMENT_R + demo.inputs[0]
    assert [asked[0].endswith(demo.codes[c]) for asked, c in zip(model.asked, demo.pools[0], strict=True)] == [
        True
    ] * 100


def test_matching_asks_true_and_false_of_row_and_negative(evaluate: Evaluate) -> None:
    model = always("True")
    evaluate(model, MATCH, limit=2)
    demo = load("demo")
    positive, negative = model.asked[0][0], model.asked[2][0]
    assert [continuation for _, continuation in model.asked] == [" True", " False"] * 2
    assert positive.endswith(demo.inputs[0])
    assert negative.endswith(f"{demo.queries[0]} [CODESPLIT] {demo.codes[demo.negatives[0]]}")


def test_nan_scores_count_against_the_model_and_are_reported(
    evaluate: Evaluate, caplog: pytest.LogCaptureFixture
) -> None:
    results = evaluate(PromptModel(lambda context, continuation: math.nan), "gecs_demo")
    assert metric(results, RANK, "mrr") == pytest.approx(0.01)
    assert metric(results, RANK, "nan_scores") == 100 * 160
    assert metric(results, MATCH, "acc") == 0.0
    assert metric(results, MATCH, "nan_scores") == 2 * 2 * 160
    assert "gecs_demo_rank: the model gave 16000 NaN scores, in 160 of 160 documents" in caplog.text


def test_a_scorer_without_a_decision_has_no_accuracy(evaluate: Evaluate) -> None:
    results = evaluate("gecs-bm25", "gecs_demo")
    for name in ("acc", "recall_match", "recall_no_match", "f1"):
        assert math.isnan(metric(results, MATCH, name))
    assert 0.5 < metric(results, MATCH, "acc_median") < 1
    assert 0.5 < metric(results, MATCH, "auroc") < 1
    assert metric(results, MATCH, "nan_scores") == 0


def test_a_threshold_gives_a_scorer_decisions(evaluate: Evaluate) -> None:
    demo = load("demo")
    results = evaluate("gecs-bm25", MATCH, model_args={"threshold": 5.0})
    batch = PairBatch(
        demo.queries,
        demo.codes,
        np.array([(row, code) for row in range(160) for code in (row, demo.negatives[row])]),
        [demo.codes],
        np.zeros(320, dtype=np.intp),
    )
    decided = BM25Model().scorer.score(batch) > 5.0
    correct = decided == np.tile([True, False], 160)
    assert metric(results, MATCH, "acc") == pytest.approx(correct.mean())
    assert metric(results, MATCH, "recall_match") == pytest.approx(correct[::2].mean())
    assert metric(results, MATCH, "recall_no_match") == pytest.approx(correct[1::2].mean())


def test_every_text_and_pair_reaches_the_scorer_once(evaluate: Evaluate) -> None:
    scorer = RecordingScorer()
    evaluate(PairScorerLM(scorer), "gecs_demo")
    (batch,) = scorer.batches
    assert sorted(batch.queries) == sorted(load("demo").queries)
    assert sorted(batch.codes) == sorted(load("demo").codes)
    pairs = [tuple(pair) for pair in batch.pairs.tolist()]
    assert len(pairs) == len(set(pairs))
    asked = {(row, code) for row, pool in enumerate(load("demo").pools.tolist()) for code in pool}
    asked |= set(enumerate(load("demo").negatives.tolist()))
    assert len(pairs) == len(asked)


# A pair's answer depends on that pair and its subset alone.


def records(folder: Path, task: str) -> dict[int, tuple[Any, ...]]:
    (path,) = folder.glob(f"per_query_{task}_*.parquet")
    columns = per_query.read(path).columns
    return {row[0]: row[1:] for row in zip(*columns.values(), strict=True)}


@pytest.fixture
def full_records(evaluate: Evaluate, tmp_path: Path) -> dict[str, dict[int, tuple[Any, ...]]]:
    folder = tmp_path / "full"
    evaluate("gecs-bm25", "gecs_demo", metadata={"gecs_per_query": str(folder)})
    return {task: records(folder, task) for task in (MATCH, RANK)}


def same(part: dict[int, tuple[Any, ...]], whole: dict[int, tuple[Any, ...]]) -> bool:
    return bool(part) and all(whole[doc_id] == row for doc_id, row in part.items())


def test_the_same_with_a_limit(evaluate: Evaluate, tmp_path: Path, full_records: Any) -> None:
    evaluate("gecs-bm25", "gecs_demo", limit=7, metadata={"gecs_per_query": str(tmp_path / "part")})
    for task in (MATCH, RANK):
        part = records(tmp_path / "part", task)
        assert len(part) == 7
        assert same(part, full_records[task])


def test_the_same_for_chosen_samples(evaluate: Evaluate, tmp_path: Path, full_records: Any) -> None:
    chosen = {RANK: [150, 3], MATCH: [5]}
    evaluate("gecs-bm25", "gecs_demo", samples=chosen, metadata={"gecs_per_query": str(tmp_path / "part")})
    assert same(records(tmp_path / "part", RANK), full_records[RANK])
    assert set(records(tmp_path / "part", RANK)) == {3, 150}
    assert records(tmp_path / "part", MATCH) == {5: full_records[MATCH][5]}


def test_the_same_from_a_cache(evaluate: Evaluate, tmp_path: Path, full_records: Any) -> None:
    cache = str(tmp_path / "cache")
    evaluate("gecs-bm25", "gecs_demo", limit=5, use_cache=cache)  # the next run is handed the rest only
    for name in ("first", "second"):  # the second is answered from the cache alone
        evaluate("gecs-bm25", "gecs_demo", use_cache=cache, metadata={"gecs_per_query": str(tmp_path / name)})
        for task in (MATCH, RANK):
            assert records(tmp_path / name, task) == full_records[task]


@pytest.mark.parametrize("changed", [{"k1": 0.1}, {"b": 0}, {"method": "atire"}, {"threshold": 5}])
def test_a_cache_of_another_scorer_is_refused(evaluate: Evaluate, tmp_path: Path, changed: dict[str, Any]) -> None:
    """The harness knows an answer by its prompt alone, and BM25's answer depends on its settings too."""
    cache = str(tmp_path / "cache")
    evaluate("gecs-bm25", RANK, limit=2, use_cache=cache)
    with pytest.raises(SettingError, match=rf"cache of another scorer: .*{next(iter(changed))}.*Name another cache"):
        evaluate("gecs-bm25", RANK, limit=2, use_cache=cache, model_args=changed)


def test_a_cache_of_other_data_is_refused(evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GECS_DATA_DIR", str(tmp_path))
    cache = str(tmp_path / "cache")
    for n_rows in (150, 120):
        rows = [{"input": f"plot the mean {i} [CODESPLIT] mean(x{i % 9})"} for i in range(n_rows)]
        (tmp_path / "test_ruby.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if n_rows == 150:
            evaluate("gecs-bm25", "gecs_ruby_rank", limit=2, use_cache=cache)
            continue
        with pytest.raises(SettingError, match="cache of another data file or setting"):
            evaluate("gecs-bm25", "gecs_ruby_rank", limit=2, use_cache=cache)
    evaluate("gecs-bm25", "gecs_ruby_rank", limit=2)  # and without it nobody asks


def test_the_same_with_several_tasks_in_one_run(
    evaluate: Evaluate, tmp_path: Path, full_records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "data"
    other.mkdir()
    rows = [{"input": f"plot the mean {i} [CODESPLIT] mean(x{i})"} for i in range(100)]
    (other / "test_ruby.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("GECS_DATA_DIR", str(other))
    evaluate("gecs-bm25", "gecs_ruby,gecs_demo", metadata={"gecs_per_query": str(tmp_path / "part")})
    for task in (MATCH, RANK):
        assert records(tmp_path / "part", task) == full_records[task]


def test_the_same_on_two_ranks(tmp_path: Path, full_records: Any) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        "-m",
        "gecs_tasks.cli",
    ]
    arguments = ["run", "--model", "gecs-bm25", "--tasks", "gecs_demo", "--output_path", str(tmp_path / "out")]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for task in (MATCH, RANK):
        assert records(tmp_path / "out", task) == full_records[task]
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(results.read_text())["n-samples"][RANK] == {"original": 160, "effective": 160}


# Requests that are not ours.


def test_a_task_of_others_is_refused(evaluate: Evaluate) -> None:
    other = {
        "task": "someone_elses",
        "custom_dataset": lambda **_: {"test": Rows()},
        "test_split": "test",
        "output_type": "multiple_choice",
        "num_fewshot": 0,
        "fewshot_config": {"samples": []},
        "doc_to_text": "x",
        "doc_to_choice": ["a", "b"],
        "doc_to_target": 0,
    }
    from lm_eval import simple_evaluate

    with pytest.raises(RequestError, match=r"task someone_elses asks for .* Run the other tasks with a language model"):
        simple_evaluate(BM25Model(), tasks=[other])
    with pytest.raises(RequestError, match="task someone_elses asks for generated text"):
        simple_evaluate(BM25Model(), tasks=[{**other, "output_type": "generate_until"}])
    rolling = {**other, "output_type": "loglikelihood_rolling"}
    del rolling["doc_to_choice"]
    with pytest.raises(RequestError, match="asks for the likelihood of a text"):
        simple_evaluate(BM25Model(), tasks=[rolling])


class Rows(list[dict[str, str]]):
    def __init__(self) -> None:
        super().__init__([{"q": "question"}])

    @property
    def features(self) -> dict[str, None]:
        return {"q": None}


def test_a_chat_template_is_refused(evaluate: Evaluate) -> None:
    with pytest.raises(SettingError, match="sees no prompt: leave --apply_chat_template out"):
        evaluate("gecs-bm25", RANK, limit=1, apply_chat_template=True)


@pytest.mark.parametrize("threshold", ["high", True, math.nan, math.inf])
def test_a_bad_threshold(threshold: Any) -> None:
    with pytest.raises(SettingError, match=r"threshold is .*: expected a finite number"):
        BM25Model(threshold=threshold)


def test_an_unknown_model_argument() -> None:
    with pytest.raises(
        SettingError, match=r"gecs-bm25 has no model argument methd \(did you mean method\?\); it has k1"
    ):
        BM25Model(methd="atire")


# Task settings.


@pytest.mark.parametrize("value", [0, -3, 2.5, "many", True])
def test_a_bad_length(evaluate: Evaluate, value: Any) -> None:
    with pytest.raises(SettingError, match=r"gecs_max_code_chars is .*: expected a number of characters"):
        evaluate("gecs-bm25", RANK, limit=1, metadata={"gecs_max_code_chars": value})


def test_an_unknown_setting(evaluate: Evaluate) -> None:
    with pytest.raises(SettingError, match="unknown task setting gecs_max_chars"):
        evaluate("gecs-bm25", RANK, limit=1, metadata={"gecs_max_chars": 5})


def test_the_length_is_a_setting_and_recorded(evaluate: Evaluate) -> None:
    model = always("True")
    results = evaluate(model, MATCH, limit=1, metadata={"gecs_max_code_chars": 20})
    assert "characters left out" in model.asked[0][0]
    prompt = results["configs"][MATCH]["metadata"]["gecs"]["prompt"]
    assert prompt["max_code_chars"] == 20
    assert prompt["codes_cut"] == sum(len(code.rstrip()) > 20 for code in load("demo").codes)


def test_a_models_own_arguments_do_not_collide(evaluate: Evaluate) -> None:
    """All model arguments reach the loader as keywords."""
    model_args = {"k1": 1.2, "gecs_max_code_chars": 500}
    results = evaluate("gecs-bm25", RANK, limit=1, model_args=model_args, metadata={"seed": 1, "subset": "x"})
    assert results["configs"][RANK]["metadata"]["gecs"]["prompt"]["max_code_chars"] == 500
    assert results["config"]["gecs_scorer"]["k1"] == 1.2


def test_an_outdated_request_cache_is_noticed(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import lm_eval.caching.cache as cache

    monkeypatch.setattr(cache, "PATH", str(tmp_path / "requests"))
    evaluate("gecs-bm25", RANK, limit=3, cache_requests=True)
    fresh = evaluate("gecs-bm25", RANK, limit=3, cache_requests=True)
    assert metric(fresh, RANK, "mrr") > 0
    with pytest.raises(RequestError, match="--cache_requests refresh"):
        evaluate("gecs-bm25", RANK, limit=3, cache_requests=True, metadata={"gecs_max_code_chars": 77})


def test_logged_samples_hold_indices_not_codes(evaluate: Evaluate) -> None:
    results = evaluate("gecs-bm25", RANK, limit=2, log_samples=True)
    doc = results["samples"][RANK][1]["doc"]
    assert set(doc) == {"gecs", "query", "candidates"}
    assert doc["candidates"] == load("demo").pools[1].tolist()
    json.dumps(results["samples"])


def test_predict_only(evaluate: Evaluate) -> None:
    results = evaluate("gecs-bm25", "gecs_demo", limit=2, predict_only=True)
    assert {name: len(samples) for name, samples in results["samples"].items()} == {MATCH: 2, RANK: 2}


def test_two_infinities_are_not_a_number() -> None:
    from gecs_tasks.families import match

    doc = {"gecs": "gecs_demo_match@0:1", "query": 0, "code": 0, "label": 1}
    values = match.results(doc, [(-math.inf, False), (-math.inf, False)])
    assert (values["acc"], values["nan_scores"].n_invalid) == (0.0, 1)


@pytest.mark.parametrize(("limit", "warned"), [(4, False), (3, True)])
def test_an_unbalanced_accuracy_is_marked(
    evaluate: Evaluate, caplog: pytest.LogCaptureFixture, limit: int, warned: bool
) -> None:
    evaluate(always("True"), MATCH, limit=limit)
    assert ("acc is of 2 matching and 1 other documents" in caplog.text) is warned


def test_the_per_query_file_tells_of_the_model_and_no_secret(evaluate: Evaluate, tmp_path: Path) -> None:
    metadata = {"gecs_per_query": str(tmp_path), "my_api_key": "sk-1"}
    evaluate("gecs-bm25", RANK, limit=2, model_args={"k1": 1.2}, metadata=metadata)
    (path,) = tmp_path.iterdir()
    assert per_query.read(path).metadata["model_args"] == {"k1": 1.2}


def test_somebody_elses_task_with_our_metric(evaluate: Evaluate) -> None:
    """The README's example: `metric: mrr` and `process_results: ranking_results` in a task of another package."""
    from lm_eval import simple_evaluate

    from gecs_tasks.metrics import ranking_results

    theirs = {
        "task": "theirs",
        "custom_dataset": lambda **_: {"test": Rows()},
        "test_split": "test",
        "output_type": "multiple_choice",
        "num_fewshot": 0,
        "fewshot_config": {"samples": []},
        "doc_to_text": "question",
        "doc_to_choice": ["right", "wrong", "worse"],
        "doc_to_target": 0,
        "process_results": ranking_results,
        "metric_list": [{"metric": "mrr"}, {"metric": "recall@1"}],
    }
    answers = {"right": -2.0, "wrong": -1.0, "worse": -3.0}
    model = PromptModel(lambda context, continuation: answers[continuation.strip()])
    results = simple_evaluate(model, tasks=[theirs], log_samples=False)
    assert (metric(results, "theirs", "mrr"), metric(results, "theirs", "recall@1")) == (0.5, 0.0)
