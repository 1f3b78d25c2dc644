"""Causal language models on a real vLLM: in process, and behind its completions and chat-completions servers.

A tiny model of random weights answers nonsense, and everything that a real one meets: tokenization, prompt
log-probabilities, generation, the chat template.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gecs_tasks import per_query
from gecs_tasks.collection import load
from tests.engine.conftest import Process, Server, gecs_run, serve
from tests.tiny_models import tiny_causal

LIMIT = 3
SCORE = 0.02  # how far apart log-probabilities of the two engines may be, in nats: both float32, other kernels
LIKELIHOOD = ("gecs_demo_match", "gecs_demo_rank", "gecs_demo_rank_ql")
TEXT = ("gecs_demo_match_gen", "gecs_demo_rank_gen")
SERVED = "tiny"
FEWER = ("--metadata", "gecs_n_candidates=5", "gecs_max_code_chars=600")  # a list that 2,048 tokens hold


@pytest.fixture(scope="session")
def causal(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_causal(tmp_path_factory.mktemp("causal") / "model", load("demo").inputs))


@pytest.fixture(scope="session")
def server(causal: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "vllm-serve.log"
    with serve(causal, "--enforce-eager", "--dtype", "float32", "--served-model-name", SERVED, log=log) as started:
        yield started


def results_of(folder: Path) -> dict[str, Any]:
    (path,) = (folder / "out").rglob("results_*.json")
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["results"]
    return results


def scores_of(folder: Path, task: str) -> np.ndarray[Any, Any]:
    (path,) = (folder / "out").glob(f"per_query_{task}_2*")
    return np.array(per_query.read(path).columns["score"], dtype=np.float64)


def run_model(folder: Path, model: str, model_args: str, tasks: tuple[str, ...], *more: str) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    command = ("--model", model, "--model_args", model_args, "--tasks", ",".join(tasks), "--limit", str(LIMIT))
    done = gecs_run(*command, "--output_path", "out", *FEWER, *more, folder=folder, log=f"{model}.log")
    assert done.returncode == 0, done.stdout[-6000:]
    return results_of(folder)


@pytest.mark.parametrize("chat", [(), ("--apply_chat_template",)], ids=["plain", "chat"])
def test_in_process_and_as_transformers_does(causal: str, tmp_path: Path, chat: tuple[str, ...]) -> None:
    """Every family runs, and vLLM's scores are those of ``hf``."""
    engine = f"pretrained={causal},dtype=float32,enforce_eager=True,max_model_len=2048,max_gen_toks=100"
    found = run_model(tmp_path / "vllm", "vllm", engine, (*LIKELIHOOD, *TEXT), *chat, "--batch_size", "auto")
    other = f"pretrained={causal},dtype=float32"
    expected = run_model(tmp_path / "hf", "hf", other, LIKELIHOOD, *chat, "--device", "cpu", "--batch_size", "16")
    for task in LIKELIHOOD:
        left, right = scores_of(tmp_path / "vllm", task), scores_of(tmp_path / "hf", task)
        print(f"{task}: largest difference of {len(left)} scores {np.abs(left - right).max():.5f}")
        assert left == pytest.approx(right, abs=SCORE)
        if "rank" in task:
            assert found[task]["mrr,none"] == pytest.approx(expected[task]["mrr,none"], abs=0.05)
    for task in TEXT:
        assert found[task]["sample_len"] == LIMIT
    assert 0 <= found["gecs_demo_match_gen"]["invalid_rate,none"] <= 1
    assert 0 < found["gecs_demo_rank_gen"]["mrr,none"] <= 1


def test_behind_a_chat_completions_server(server: Server, tmp_path: Path) -> None:
    arguments = f"base_url={server.address}/v1/chat/completions,model={SERVED},num_concurrent=4"
    found = run_model(tmp_path, "local-chat-completions", arguments, TEXT, "--apply_chat_template")
    assert set(found) >= set(TEXT)
    assert server.answered("/v1/chat/completions") == 2 * LIMIT


def test_behind_a_completions_server(server: Server, causal: str, tmp_path: Path) -> None:
    """Log-probabilities through the API are the engine's own."""
    arguments = f"base_url={server.address}/v1/completions,model={SERVED},tokenizer={causal},num_concurrent=4"
    run_model(tmp_path / "api", "local-completions", arguments, LIKELIHOOD, "--batch_size", "8")
    other = f"pretrained={causal},dtype=float32"
    run_model(tmp_path / "hf", "hf", other, LIKELIHOOD, "--device", "cpu", "--batch_size", "16")
    for task in LIKELIHOOD:
        assert scores_of(tmp_path / "api", task) == pytest.approx(scores_of(tmp_path / "hf", task), abs=SCORE)


def test_a_server_killed_in_mid_run(server: Server, tmp_path: Path) -> None:
    """What was answered is kept, and the same command asks for the rest only."""
    arguments = f"base_url={server.address}/v1/chat/completions,model={SERVED},max_retries=1"
    command = [
        *("--model", "local-chat-completions", "--model_args", arguments, "--tasks", "gecs_demo_match_gen"),
        *("--apply_chat_template", "--use_cache", "answers"),
    ]
    before = server.answered("/v1/chat/completions")
    module = ("-m", "gecs_tasks.cli", "run")
    first = Process([sys.executable, *module, *command], tmp_path / "killed.log", tmp_path)
    try:
        last = time.monotonic() + 300
        while server.answered("/v1/chat/completions") < before + 20 and time.monotonic() < last:
            time.sleep(0.02)
        server.kill()
        answered = server.answered("/v1/chat/completions") - before
        assert first.popen.wait(300) == 2
    finally:
        first.end(signal.SIGKILL)
    assert 20 <= answered < 320, "the run was not in its middle"
    (line,) = [line for line in first.log.read_text(encoding="utf-8").splitlines() if line.startswith("gecs: ")]
    assert "the API stopped answering" in line
    assert "run the same command again" in line

    server.start()
    done = gecs_run(*command, "--output_path", "out", folder=tmp_path, log="resumed.log")
    assert done.returncode == 0, done.stdout[-6000:]
    rest = server.answered("/v1/chat/completions") - before - answered
    assert 320 - answered <= rest <= 320 - answered + 1  # the request that was cut off is asked again
    assert results_of(tmp_path)["gecs_demo_match_gen"]["sample_len"] == 320
