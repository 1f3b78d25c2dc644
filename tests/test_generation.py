"""The families for generative models, through the harness's own front door, with models whose answers are known."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from gecs_tasks import per_query
from gecs_tasks.benchmark import DELIMITER
from gecs_tasks.collection import load
from gecs_tasks.errors import RequestError, SettingError
from gecs_tasks.models import BM25Model
from tests.conftest import Evaluate
from tests.models import ChatModel, PromptModel
from tests.test_harness import metric
from tests.test_prompts import COMMENT_R

MATCH, REASON, LIST, LIKELIHOOD = (
    "gecs_demo_match_gen",
    "gecs_demo_match_reason",
    "gecs_demo_rank_gen",
    "gecs_demo_rank_ql",
)


def knows(prompt: str) -> str:
    """Answers either kind of prompt rightly."""
    demo = load("demo")
    if "numbered from [1]" not in prompt:
        pair = re.split(r'"\[CODESPLIT\]" "code"\. ', prompt)[-1]
        return str(pair in {f"{q}{DELIMITER}{c}" for q, c in zip(demo.queries, demo.codes, strict=True)})
    query = re.search(r"best\.\n\nComment: (.*?)\n\n\[1\]", prompt, re.DOTALL)
    assert query
    code = demo.codes[list(demo.queries).index(query.group(1))]
    numbered = dict(
        re.findall(r"^\[(\d+)\]\n(.*?)(?=\n\n\[\d+\]\n|\n\nComment, again)", prompt, re.MULTILINE | re.DOTALL)
    )
    (gold,) = [int(number) for number, text in numbered.items() if text == code]
    return ", ".join(map(str, [gold, *(n for n in range(1, 101) if n != gold)][:10]))


@pytest.mark.parametrize(
    ("answer", "recall_match", "recall_no_match", "f1"), [("True", 1.0, 0.0, 2 / 3), ("**False**.", 0.0, 1.0, 0.0)]
)
def test_always_the_same(
    evaluate: Evaluate, answer: str, recall_match: float, recall_no_match: float, f1: float
) -> None:
    results = evaluate(ChatModel(lambda prompt: answer), MATCH)
    assert metric(results, MATCH, "acc") == 0.5
    assert metric(results, MATCH, "recall_match") == recall_match
    assert metric(results, MATCH, "recall_no_match") == recall_no_match
    assert metric(results, MATCH, "f1") == pytest.approx(f1)
    assert metric(results, MATCH, "invalid_rate") == 0


def test_knowing_the_answer(evaluate: Evaluate) -> None:
    results = evaluate(ChatModel(knows), "gecs_demo_chat")
    assert [metric(results, MATCH, name) for name in ("acc", "f1", "invalid_rate")] == [1.0, 1.0, 0.0]
    assert [metric(results, LIST, name) for name in ("mrr", "mean_rank", "malformed_rate")] == [1.0, 1.0, 0.0]


def test_guessing(evaluate: Evaluate) -> None:
    rng = random.Random(3)

    def guess(prompt: str) -> str:
        if "numbered from [1]" in prompt:
            return ", ".join(map(str, rng.sample(range(1, 101), 10)))
        return rng.choice(["True", "False"])

    shown = []
    for _ in range(5):
        results = evaluate(ChatModel(guess), "gecs_demo_chat")
        assert metric(results, MATCH, "acc") == pytest.approx(0.5, abs=0.12)
        shown.append(metric(results, LIST, "mrr"))
    # the ten places' 1/r in 10 of 100 cases, else rank 100: 0.0293 + 0.009; the error of 800 guesses is some 0.005
    assert sum(shown) / 5 == pytest.approx(sum(1 / r for r in range(1, 11)) / 100 + 0.9 / 100, abs=0.02)


def test_the_first_ten_in_order_are_no_better_than_a_guess(evaluate: Evaluate) -> None:
    """The gold must not always stand first: a model that reads no code gains nothing."""
    results = evaluate(ChatModel(lambda prompt: "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"), LIST)
    assert metric(results, LIST, "mrr") < 0.1
    assert metric(results, LIST, "malformed_rate") == 0


def test_answers_that_are_none(evaluate: Evaluate, tmp_path: Path) -> None:
    results = evaluate(
        ChatModel(lambda prompt: "I am sorry."), "gecs_demo_chat", metadata={"gecs_per_query": str(tmp_path)}
    )
    assert [metric(results, MATCH, name) for name in ("acc", "recall_match", "f1", "invalid_rate")] == [0, 0, 0, 1]
    assert metric(results, LIST, "mrr") == pytest.approx(0.01)
    assert metric(results, LIST, "malformed_rate") == 1
    (path,) = tmp_path.glob("*match_gen*")
    assert set(per_query.read(path).columns["decision"]) == {None}


def test_a_partial_list_counts_as_far_as_it_goes(evaluate: Evaluate) -> None:
    results = evaluate(ChatModel(lambda prompt: f"999, {knows(prompt).split(',')[0]}"), LIST)
    assert metric(results, LIST, "mrr") == 0.5  # second, after a number that names nobody
    assert metric(results, LIST, "malformed_rate") == 1


def test_what_a_chat_model_is_asked(evaluate: Evaluate) -> None:
    model = ChatModel(lambda prompt: "True")
    evaluate(model, MATCH, limit=1, apply_chat_template=True)
    ((prompt, settings),) = model.asked
    assert prompt == f"<user>{COMMENT_R}{load('demo').inputs[0]}</user>"
    assert settings["max_gen_toks"] == 10
    assert settings["do_sample"] is False


def test_room_for_thoughts(evaluate: Evaluate) -> None:
    model = ChatModel(lambda prompt: f"<think>False? True? Let me see.</think>{knows(prompt)}")
    results = evaluate(model, REASON, limit=20)
    assert metric(results, REASON, "acc") == 1.0
    assert model.asked[0][1]["max_gen_toks"] == 4096
    evaluate(model, REASON, limit=1, gen_kwargs={"max_gen_toks": 99})
    assert model.asked[-1][1]["max_gen_toks"] == 99


def test_the_order_of_a_list_is_drawn_once_and_recorded(evaluate: Evaluate) -> None:
    runs = []
    for limit in (3, 5):
        model = ChatModel(knows)
        results = evaluate(model, LIST, limit=limit)
        draws = results["configs"][LIST]["metadata"]["gecs"]["draws"]
        runs.append(([prompt for prompt, _ in model.asked][:3], draws["order_sha256"]))
        assert (draws["candidates"], draws["wanted"], draws["distractors"]) == (100, 10, 99)
    assert runs[0] == runs[1]


def test_fewer_candidates_are_marked(evaluate: Evaluate) -> None:
    model = ChatModel(knows)
    results = evaluate(model, LIST, limit=4, metadata={"gecs_n_candidates": 20})
    assert metric(results, LIST, "mrr") == 1.0
    assert "numbered from [1] to [20]" in model.asked[0][0]
    info = results["configs"][LIST]["metadata"]["gecs"]
    assert info["not_comparable"] == "20 candidates in place of 100"
    for wrong in (1, 101, "ten", True):
        with pytest.raises(SettingError, match=r"gecs_n_candidates is .* from 2 to 100"):
            evaluate(model, LIST, limit=1, metadata={"gecs_n_candidates": wrong})


def test_query_likelihood(evaluate: Evaluate) -> None:
    demo = load("demo")

    def likelihood(context: str, continuation: str) -> float:
        code = demo.codes[list(demo.queries).index(continuation.strip())]
        return -1.0 if code in context else -9.0

    model = PromptModel(likelihood)
    results = evaluate(model, LIKELIHOOD)
    assert metric(results, LIKELIHOOD, "mrr") == 1.0
    context, continuation = model.asked[0]
    assert continuation == f" {demo.queries[0]}"
    assert context.startswith(f"R code:\n\n{demo.codes[0]}\n\n")
    assert {asked for _, asked in model.asked[:100]} == {continuation}


def test_an_empty_comment_ties_and_is_counted(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [{"input": f"{'' if i in (1, 3) else f'comment {i}'} [CODESPLIT] code {i}"} for i in range(100)]
    (tmp_path / "test_cosqa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("GECS_DATA_DIR", str(tmp_path))
    rng = random.Random(1)
    model = PromptModel(lambda context, continuation: rng.random())
    results = evaluate(model, "gecs_cosqa_rank_ql", metadata={"gecs_per_query": str(tmp_path / "out")})
    assert metric(results, "gecs_cosqa_rank_ql", "empty_queries") == 2
    (path,) = (tmp_path / "out").iterdir()
    ranks = per_query.read(path).columns["rank"]
    assert (ranks[1], ranks[3]) == (100, 100)
    assert all(continuation.strip() for _, continuation in model.asked)


@pytest.mark.parametrize("task", [LIKELIHOOD, MATCH, LIST])
def test_a_pair_scorer_says_that_it_cannot(evaluate: Evaluate, task: str) -> None:
    with pytest.raises(
        RequestError, match=rf"task {task} asks for .*it runs gecs_<subset>_match and gecs_<subset>_rank"
    ):
        evaluate(BM25Model(), task, limit=1)


# Few-shot examples.


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    rows = [{"input": f"train comment {i} [CODESPLIT] train_code_{i}()"} for i in range(40)]
    (tmp_path / "train_adv.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("GECS_DATA_DIR", str(tmp_path))
    return tmp_path


def examples(prompt: str) -> list[tuple[int, int, str]]:
    """(comment's row, code's row, answer) of every example before the question."""
    found = re.findall(
        r"train comment (\d+) \[CODESPLIT\] train_code_(\d+)\(\)(?:</user><assistant>)?\W*(True|False)", prompt
    )
    return [(int(comment), int(code), answer) for comment, code, answer in found]


@pytest.mark.parametrize("task", ["gecs_demo_match", MATCH])
@pytest.mark.parametrize("chat", [False, True])
def test_balanced_examples_from_the_training_set(evaluate: Evaluate, training: Path, task: str, chat: bool) -> None:
    model: Any = ChatModel(lambda prompt: "True") if task == MATCH else Chatty(lambda context, continuation: -1.0)
    results = evaluate(model, task, limit=6, num_fewshot=4, apply_chat_template=chat)
    prompts = list(dict.fromkeys(prompt for prompt, _ in model.asked))
    assert len(prompts) == 6
    for prompt in prompts:
        shown = examples(prompt)
        assert sorted(answer for _, _, answer in shown) == ["False", "False", "True", "True"]
        assert all((comment == code) == (answer == "True") for comment, code, answer in shown)
        assert prompt.count("a Python programming language") == 4
        assert prompt.count("a R programming language") == 1
        if chat:
            assert prompt.count("<user>") == 5
            assert prompt.count("<assistant>") == 4
    info = results["configs"][task]["metadata"]["gecs"]
    assert info["fewshot_source"]["file"] == "train_adv.jsonl"
    assert results["n-shot"][task] == 4


class Chatty(PromptModel):
    tokenizer_name = "turns"
    chat_template = ChatModel.chat_template
    apply_chat_template = ChatModel.apply_chat_template


def test_examples_follow_the_harnesss_seed(evaluate: Evaluate, training: Path) -> None:
    def asked(seed: int) -> list[str]:
        model = ChatModel(lambda prompt: "True")
        evaluate(model, MATCH, limit=3, num_fewshot=3, fewshot_random_seed=seed)
        return [prompt for prompt, _ in model.asked]

    assert asked(1) == asked(1)
    assert asked(1) != asked(2)
    assert all(len(examples(prompt)) == 3 for prompt in asked(1))


def test_without_examples_no_training_set_is_read(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GECS_DATA_DIR", str(tmp_path))  # where there is none
    results = evaluate(ChatModel(knows), MATCH, limit=2)
    assert results["n-shot"][MATCH] == 0
    assert "fewshot_source" not in results["configs"][MATCH]["metadata"]["gecs"]


def test_few_shot_on_real_data(evaluate: Evaluate, real_data: Path) -> None:
    model = ChatModel(lambda prompt: "True")
    results = evaluate(model, "gecs_statcode_match_gen", limit=4, num_fewshot=2)
    training = load("train")
    assert len(training) >= 100
    for prompt, _ in model.asked:
        assert prompt.count("a Python programming language") == 2
        assert sum(query in prompt for query in training.distinct_queries if len(query) > 20) >= 2
    assert metric(results, "gecs_statcode_match_gen", "acc") == 0.5
