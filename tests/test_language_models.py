"""A real causal language model behind the harness's ``hf``: every family, with and without a chat template."""

from __future__ import annotations

import json
import math
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gecs_tasks import per_query
from gecs_tasks.collection import load
from tests.conftest import Evaluate
from tests.test_cli import gecs, one_line_error
from tests.test_harness import metric

pytest.importorskip("transformers", reason="needs transformers and torch")

from tests.tiny_models import tiny_causal

TASKS = ",".join(f"gecs_demo_{family}" for family in ("match", "rank", "rank_ql", "match_gen"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_causal(tmp_path_factory.mktemp("causal") / "model", load("demo").inputs))


@pytest.fixture(scope="session")
def language_model(model: str) -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=model, device="cpu", batch_size=32, dtype="float32")


@pytest.mark.parametrize("chat", [False, True])
def test_every_family_runs(evaluate: Evaluate, language_model: Any, chat: bool) -> None:
    results = evaluate(language_model, TASKS, limit=2, apply_chat_template=chat)
    for task in TASKS.split(","):
        shown = results["results"][task]
        name = "acc" if "match" in task else "mrr"
        assert 0 <= shown[f"{name},none"] <= 1
    assert metric(results, "gecs_demo_rank", "nan_scores") == 0


def test_scores_are_the_models_own_log_probabilities(
    evaluate: Evaluate, language_model: Any, model: str, tmp_path: Path
) -> None:
    """The gold candidate's score, computed by hand from the model's logits."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    evaluate(language_model, "gecs_demo_rank,gecs_demo_rank_ql", limit=1, metadata={"gecs_per_query": str(tmp_path)})
    tokenizer, causal = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model).eval().float()
    demo = load("demo")

    def log_probability(context: str, continuation: str) -> float:
        before = tokenizer(context)["input_ids"]
        whole = tokenizer(context + continuation)["input_ids"]
        with torch.inference_mode():
            scores = causal(torch.tensor([whole])).logits[0].log_softmax(dim=-1)
        return sum(float(scores[place - 1, whole[place]]) for place in range(len(before), len(whole)))

    from gecs_tasks.prompts import instruction, render, render_likelihood

    expected = {
        "gecs_demo_rank": log_probability(render(instruction(demo.subset), demo.queries[0], demo.codes[0]), " True"),
        "gecs_demo_rank_ql": log_probability(render_likelihood(demo.subset, demo.codes[0]), f" {demo.queries[0]}"),
    }
    for task, score in expected.items():
        (path,) = tmp_path.glob(f"per_query_{task}_2*")
        assert per_query.read(path).columns["score"][0] == pytest.approx(score, abs=1e-3)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("family", ["match", "rank", "rank_ql"])
def test_a_codes_trailing_space_changes_nothing(
    evaluate: Evaluate, language_model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str, chat: bool
) -> None:
    scores = []
    for ending in ("", " ", " \n "):
        folder = tmp_path / f"data{len(ending)}"
        folder.mkdir()
        rows = [{"input": f"comment {i} [CODESPLIT] code{i}(x){ending}"} for i in range(100)]
        (folder / "test_ruby.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        monkeypatch.setenv("GECS_DATA_DIR", str(folder))
        metadata = {"gecs_per_query": str(folder / "out")}
        evaluate(language_model, f"gecs_ruby_{family}", limit=1, metadata=metadata, apply_chat_template=chat)
        (path,) = (folder / "out").iterdir()
        scores.append(per_query.read(path).columns["score"])
    assert scores[0] == scores[1] == scores[2]
    assert not math.isnan(scores[0][0])


def test_a_chat_template_asked_of_a_model_that_has_none(tmp_path: Path) -> None:
    plain = str(tiny_causal(tmp_path / "plain", load("demo").inputs, chat=False))
    arguments = [
        "run",
        "--model",
        "hf",
        "--model_args",
        f"pretrained={plain}",
        "--device",
        "cpu",
        "--tasks",
        "gecs_demo_match_gen",
    ]
    line = one_line_error(gecs(*arguments, "--limit", "1", "--apply_chat_template"))
    assert "the model's tokenizer has no chat template. Leave the option out" in line


def test_a_list_that_the_context_cannot_hold_is_refused_before_the_model_loads(model: str) -> None:
    arguments = ["--model_args", f"pretrained={model},max_length=2048", "--tasks", "gecs_demo_rank_gen", "--limit", "1"]
    line = one_line_error(gecs("run", "--model", "hf", *arguments))
    assert "gecs_demo_rank_gen: its longest prompt has" in line
    assert "the model's context holds 2,048: set --metadata gecs_max_code_chars" in line


# Chat-completions APIs.


class ChatServer(ThreadingHTTPServer):
    """A chat-completions API that says True, until it has answered so often."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1/chat/completions"
        self.answered: list[str] = []
        self.dies_after = 10**9


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, ChatServer)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if len(server.answered) >= server.dies_after:
            self.close_connection = True
            self.connection.close()
            return
        server.answered.append(body["messages"][-1]["content"])
        answer = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "True"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    running = ChatServer()
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield running
    running.shutdown()
    running.server_close()


def chat(server: ChatServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = f"base_url={server.url},model=tiny,max_retries=1"
    command = ["run", "--model", "local-chat-completions", "--model_args", settings, *arguments]
    return gecs(*command, OPENAI_API_KEY="sk-never-shown")


def test_a_chat_api(server: ChatServer, tmp_path: Path) -> None:
    pytest.importorskip("tenacity", reason="needs lm-eval[api]")
    done = chat(
        server, "--tasks", "gecs_demo_chat", "--limit", "4", "--apply_chat_template", "--output_path", str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert len(server.answered) == 8
    (path,) = tmp_path.rglob("results_*.json")
    content = path.read_text()
    results = json.loads(content)["results"]
    assert results["gecs_demo_match_gen"]["acc,none"] == 0.5
    assert results["gecs_demo_rank_gen"]["malformed_rate,none"] == 1.0
    assert "sk-never-shown" not in content + done.stdout + done.stderr


@pytest.mark.parametrize(
    ("tasks", "use"),
    [
        ("gecs_demo", "gecs_demo_chat"),
        ("gecs_demo_match", "gecs_demo_match_gen"),
        ("gecs_demo_rank", "gecs_demo_rank_gen"),
        ("gecs_demo_rank_ql", "gecs_demo_rank_gen"),
        ("gecs", "gecs_chat"),
        ("gecs_rank", "gecs_chat"),
    ],
)
def test_a_chat_api_is_told_which_task_to_use(server: ChatServer, tasks: str, use: str) -> None:
    pytest.importorskip("tenacity", reason="needs lm-eval[api]")
    line = one_line_error(chat(server, "--tasks", tasks, "--apply_chat_template"))
    assert line.endswith(f"which {tasks} needs: use {use}")
    assert server.answered == []


def test_a_chat_api_takes_a_conversation(server: ChatServer) -> None:
    pytest.importorskip("tenacity", reason="needs lm-eval[api]")
    assert "add --apply_chat_template" in one_line_error(chat(server, "--tasks", "gecs_demo_chat"))


def test_an_api_that_dies_in_mid_run(server: ChatServer, tmp_path: Path) -> None:
    """What was answered is kept, and the same command asks for the rest only."""
    pytest.importorskip("tenacity", reason="needs lm-eval[api]")
    cache = str(tmp_path / "answers")
    arguments = ("--tasks", "gecs_demo_match_gen", "--limit", "6", "--apply_chat_template", "--use_cache", cache)
    server.dies_after = 4
    line = one_line_error(chat(server, *arguments))
    assert line.startswith("gecs: the API stopped answering")  # on a line of its own, after the progress bar's
    assert f"is kept in the cache {cache}: run the same command again" in line
    first = list(server.answered)
    server.dies_after = 10**9
    done = chat(server, *arguments)
    assert done.returncode == 0, done.stderr
    assert len(server.answered) == 6
    assert len(set(server.answered)) == len({*first, *server.answered}) == 6
    assert "|acc" in done.stdout.replace(" ", "")
