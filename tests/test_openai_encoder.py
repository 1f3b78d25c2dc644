"""The encoder for OpenAI-compatible servers, against a local server that also misbehaves."""

from __future__ import annotations

import base64
import email.utils
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gecs_tasks.errors import EncodingError, MissingExtraError, ModelError, SettingError
from gecs_tasks.scorers.encoders import openai_api
from gecs_tasks.scorers.encoders.base import Encoder
from gecs_tasks.scorers.encoders.openai_api import OpenAIEncoder
from tests.embedding_server import DIMENSION, EmbeddingServer, Reply, vector_of

openai = pytest.importorskip("openai")

KEY = "sk-test-0123456789abcdef"
TEXTS = ["read a csv file", "sum two numbers", "plot a histogram", "fit a model", "sort rows"]

Make = Callable[..., OpenAIEncoder]


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    server = EmbeddingServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.stop()
    thread.join()


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which the client would have slept between its attempts."""
    asked: list[float] = []
    monkeypatch.setattr(openai._base_client.time, "sleep", asked.append)
    return asked


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def make(server: EmbeddingServer, sleeps: list[float]) -> Iterator[Make]:
    made: list[OpenAIEncoder] = []

    def make(**settings: Any) -> OpenAIEncoder:
        made.append(OpenAIEncoder("tiny", **{"base_url": server.url, **settings}))
        return made[-1]

    yield make
    for encoder in made:
        encoder.close()


def vectors_of(texts: Sequence[str | list[int]], dimension: int = DIMENSION) -> Any:
    return np.stack([vector_of(text, dimension) for text in texts])


def error(status: int, message: str, **headers: str) -> Reply:
    return Reply(status, {"error": {"message": message}}, headers)


def data_of(answer: dict[str, Any]) -> Any:
    """The answer's data, with floats for base64."""
    for item in answer["data"]:
        if isinstance(item["embedding"], str):
            item["embedding"] = np.frombuffer(base64.b64decode(item["embedding"]), dtype="<f4").tolist()
    return answer["data"]


# What is asked and what comes back


def test_vectors_in_the_order_of_the_texts(server: EmbeddingServer, make: Make) -> None:
    encoder: Encoder = make(batch_size=2, concurrency=3)
    vectors = encoder.encode(TEXTS, "document")
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, vectors_of(TEXTS))
    assert sorted(server.sizes) == [1, 2, 2]
    assert {request["encoding_format"] for request in server.requests} == {"base64"}
    assert {request["model"] for request in server.requests} == {"tiny"}
    assert encoder.batch_size == 6
    assert encoder.cut(TEXTS, "document") is None
    assert encoder.encode([], "query").shape == (0, DIMENSION)


def test_a_server_that_answers_in_floats_all_the_same(server: EmbeddingServer, make: Make) -> None:
    server.behaviours = [lambda answer: {"data": data_of(answer)}]
    np.testing.assert_array_equal(make().encode(TEXTS, "query"), vectors_of(TEXTS))


def test_prompts_by_role(server: EmbeddingServer, make: Make) -> None:
    encoder = make(query_prompt="query: ", document_prompt="passage: ")
    np.testing.assert_array_equal(encoder.encode(["a"], "query"), vectors_of(["query: a"]))
    np.testing.assert_array_equal(encoder.encode(["a", ""], "document"), vectors_of(["passage: a", "passage: "]))
    assert encoder.empty_texts == 0


def test_empty_texts_are_a_space_and_counted(server: EmbeddingServer, make: Make) -> None:
    encoder = make()
    np.testing.assert_array_equal(encoder.encode(["", "a", ""], "query"), vectors_of([" ", "a", " "]))
    assert encoder.empty_texts == 2


def test_dimensions_are_asked_for(server: EmbeddingServer, make: Make) -> None:
    assert make(dimensions=4).encode(TEXTS, "query").shape == (5, 4)
    assert server.requests[0]["dimensions"] == 4
    make().encode(TEXTS, "query")
    assert "dimensions" not in server.requests[1]


def test_max_length_is_the_servers(server: EmbeddingServer, make: Make) -> None:
    encoder = make(max_length=128)
    encoder.encode(TEXTS, "query")
    assert server.requests[0]["truncate_prompt_tokens"] == 128
    assert encoder.cut(TEXTS, "query") is None
    make().encode(TEXTS, "query")
    assert "truncate_prompt_tokens" not in server.requests[1]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_so_many_requests_at_once_and_no_more(server: EmbeddingServer, make: Make, concurrency: int) -> None:
    # Each request waits until so many are under way: with fewer at once, no answer would ever come.
    server.barrier = threading.Barrier(concurrency)
    encoder = make(batch_size=1, concurrency=concurrency, max_retries=0)
    texts = [f"text {n}" for n in range(8)]
    np.testing.assert_array_equal(encoder.encode(texts, "query"), vectors_of(texts))
    assert server.peak == concurrency


def test_shuffled_indices_are_put_in_order(server: EmbeddingServer, make: Make) -> None:
    server.behaviours = [lambda answer: {**answer, "data": answer["data"][::-1]}]
    np.testing.assert_array_equal(make().encode(TEXTS, "query"), vectors_of(TEXTS))


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 1e300])
def test_what_is_no_number_becomes_nan(server: EmbeddingServer, make: Make, value: float | None) -> None:
    def spoil(answer: dict[str, Any]) -> dict[str, Any]:
        data_of(answer)[1]["embedding"][3] = value
        return answer

    server.behaviours = [spoil]
    expected = vectors_of(TEXTS)
    expected[1, 3] = np.nan
    np.testing.assert_array_equal(make().encode(TEXTS, "query"), expected)


def test_nan_in_base64(server: EmbeddingServer, make: Make) -> None:
    def spoil(answer: dict[str, Any]) -> dict[str, Any]:
        nans = np.full(DIMENSION, np.nan, dtype="<f4")
        answer["data"][0]["embedding"] = base64.b64encode(nans.tobytes()).decode()
        return answer

    server.behaviours = [spoil]
    vectors = make().encode(TEXTS, "query")
    assert np.isnan(vectors[0]).all()
    np.testing.assert_array_equal(vectors[1:], vectors_of(TEXTS[1:]))


# Answers of the wrong form


def spoilt(change: Callable[[Any], object]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def spoil(answer: dict[str, Any]) -> dict[str, Any]:
        data_of(answer)
        change(answer["data"])
        return answer

    return spoil


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (spoilt(lambda data: data.pop()), r"gave 4 vectors with 4 different indices for 5 texts"),
        (spoilt(lambda data: data.clear()), r"gave 0 vectors with 0 different indices for 5 texts"),
        (spoilt(lambda data: data[0].update(index=1)), r"gave 5 vectors with 4 different indices for 5 texts"),
        (spoilt(lambda data: data[0].update(index="0")), r"expected each of 0 to 4 once"),
        (spoilt(lambda data: data[3]["embedding"].pop()), r"dimension 7, not 8 as before"),
        (spoilt(lambda data: data[3].update(embedding=[])), r"gave no embeddings \(ValueError\)"),
        (spoilt(lambda data: data[3].update(embedding=None)), r"gave no embeddings \(ValueError\)"),
        (spoilt(lambda data: data[3].update(embedding=[[1.0], [2.0]])), r"gave no embeddings \(ValueError\)"),
        (spoilt(lambda data: data[3].update(embedding="?")), r"gave no embeddings \(Error\)"),
        (spoilt(lambda data: data[3].pop("index")), r"gave no embeddings \(KeyError\)"),
        (Reply(body={"error": "busy"}), r"gave no embeddings \(KeyError\) but '{\"error\": \"busy\"}'"),
        (Reply(body=[1]), r"gave no embeddings \(TypeError\)"),
        (Reply(body=b"<html>Welcome</html>", headers={"Content-Type": "text/html"}), r"but '<html>Welcome</html>'"),
        (Reply(body=b'{"data": ['), r"gave no embeddings \(JSONDecodeError\)"),
    ],
)
def test_an_answer_of_the_wrong_form(server: EmbeddingServer, make: Make, behaviour: Any, message: str) -> None:
    server.behaviours = [behaviour]
    with pytest.raises(EncodingError, match=message):
        make().encode(TEXTS, "query")


def test_a_dimension_that_changes_between_calls(server: EmbeddingServer, make: Make) -> None:
    encoder = make()
    encoder.encode(TEXTS, "query")
    server.behaviours = [spoilt(lambda data: [item["embedding"].pop() for item in data])]
    with pytest.raises(EncodingError, match="a vector of dimension 7, not 8 as before"):
        encoder.encode(TEXTS, "document")


def test_a_server_that_does_not_heed_dimensions(server: EmbeddingServer, make: Make) -> None:
    server.behaviours = [spoilt(lambda data: [item["embedding"].append(0.0) for item in data])]
    with pytest.raises(EncodingError, match="a vector of dimension 5, not 4 as asked for"):
        make(dimensions=4).encode(TEXTS, "query")


# Retries


def test_retry_after_is_waited_for(server: EmbeddingServer, make: Make, sleeps: list[float]) -> None:
    server.behaviours = [error(429, "slow down", **{"Retry-After": "7"}), error(429, "", **{"Retry-After": "0"})]
    np.testing.assert_array_equal(make().encode(TEXTS, "query"), vectors_of(TEXTS))
    assert sleeps[0] == 7
    # Retry-After: 0 is the client's own backoff, half a second doubled each time, less up to a quarter.
    assert 0.75 <= sleeps[1] <= 1


@pytest.mark.parametrize("as_date", [False, True])
def test_a_long_retry_after_is_waited_for(
    server: EmbeddingServer, make: Make, monkeypatch: pytest.MonkeyPatch, sleeps: list[float], as_date: bool
) -> None:
    value = email.utils.formatdate(time.time() + 600, usegmt=True) if as_date else "600"
    server.behaviours = [error(429, "slow down", **{"Retry-After": value})]
    encoder = make()
    waits: list[float] = []
    monkeypatch.setattr(encoder._stop, "wait", waits.append)
    np.testing.assert_array_equal(encoder.encode(TEXTS, "query"), vectors_of(TEXTS))
    assert [pytest.approx(600, abs=60)] == waits
    # The client itself refuses to wait so long: where it learns to, openai_api.py need not.
    assert sleeps == []


def test_a_long_retry_after_uses_up_the_attempts(
    server: EmbeddingServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.always = error(429, "slow down", **{"Retry-After": "600"})
    encoder = make(max_retries=2)
    waits: list[float] = []
    monkeypatch.setattr(encoder._stop, "wait", waits.append)
    with pytest.raises(EncodingError, match=r"failed in 3 attempts .*status 429: slow down, asking to wait 600 sec"):
        encoder.encode(TEXTS, "query")
    assert waits == [600, 600]
    assert len(server.requests) == 3


def test_a_retry_after_of_a_day_ends_the_run(server: EmbeddingServer, make: Make) -> None:
    server.always = error(429, "daily limit", **{"Retry-After": "86400"})
    with pytest.raises(EncodingError, match=r"1 attempt .*daily limit, asking to wait 86400 seconds.*cache_dir"):
        make().encode(TEXTS, "query")


def test_a_wait_ends_when_another_request_fails(server: EmbeddingServer, make: Make) -> None:
    encoder = make(batch_size=1, concurrency=2)
    waiting = threading.Event()

    def refuse(inputs: Sequence[Any]) -> Reply:
        if inputs == ["a"]:
            waiting.set()
            return error(429, "slow down", **{"Retry-After": "3000"})
        waiting.wait()
        return error(401, "no")

    server.refusal = refuse
    with pytest.raises(ModelError, match="status 401"):
        encoder.encode(["a", "b"], "query")
    # Would otherwise wait for 3,000 seconds.
    encoder._pool.shutdown(wait=True)


def test_errors_of_the_server_are_retried(server: EmbeddingServer, make: Make, sleeps: list[float]) -> None:
    server.behaviours = [error(500, "oops"), error(503, "loading")]
    np.testing.assert_array_equal(make().encode(TEXTS, "query"), vectors_of(TEXTS))
    assert len(sleeps) == 2


def test_errors_of_the_server_for_ever(server: EmbeddingServer, make: Make) -> None:
    server.always = error(500, "CUDA error " + "x" * 500)
    with pytest.raises(EncodingError, match=r"failed in 4 attempts \(last status 500: CUDA error x+\.\.\.\)") as caught:
        make(max_retries=3).encode(TEXTS, "query")
    assert "kept where cache_dir is set" in str(caught.value)
    assert len(str(caught.value)) < 450
    assert len(server.requests) == 4


def test_no_answer_in_time(server: EmbeddingServer, make: Make) -> None:
    server.always = Reply(hang=True)
    with pytest.raises(EncodingError, match=r"did not answer within 0\.2 s in 2 attempts: raise timeout.*cache_dir"):
        make(timeout=0.2, max_retries=1).encode(TEXTS, "query")


def test_the_encoder_works_after_a_failure(server: EmbeddingServer, make: Make) -> None:
    encoder = make()
    server.behaviours = [error(401, "no")]
    with pytest.raises(ModelError):
        encoder.encode(TEXTS, "query")
    np.testing.assert_array_equal(encoder.encode(TEXTS, "query"), vectors_of(TEXTS))


# Servers, paths, models and keys that are not there


def test_no_server(make: Make) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(ModelError, match=rf"{url} cannot be reached \(.*refused; 2 attempts\): is it running"):
            make(base_url=url, max_retries=1).encode(TEXTS, "query")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (error(401, "no"), r"refused a request without OPENAI_API_KEY \(status 401\): set it to a key"),
        (error(403, "Country not supported"), r"refused the request \(status 403: Country not supported\)"),
        (error(404, "The model `tiny` does not exist."), r"refused model 'tiny' in .*/v1/models lists"),
        (Reply(404, {"detail": "Not Found"}), r"\(status 404: Not Found\): base_url usually ends in /v1"),
        (Reply(405, b""), r"\(status 405: .*\): base_url usually ends in /v1"),
        (error(400, "Model does not support matryoshka"), r"refused the request \(status 400: Model does not support"),
        (error(400, "truncate_prompt_tokens value is greater than max_model_len."), r"refused max_length=999 .*lower"),
    ],
)
def test_refusals(server: EmbeddingServer, make: Make, reply: Reply, message: str) -> None:
    server.always = reply
    with pytest.raises(ModelError, match=message) as caught:
        make(max_length=999).encode(TEXTS, "query")
    assert "\n" not in str(caught.value)
    assert len(server.requests) == 1


def test_a_wrong_path(server: EmbeddingServer, make: Make) -> None:
    with pytest.raises(ModelError, match="base_url usually ends in /v1"):
        make(base_url=server.url.removesuffix("/v1")).encode(TEXTS, "query")


def test_the_key_is_sent_and_never_shown(
    server: EmbeddingServer, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    encoder = make(max_retries=0)
    encoder.encode(TEXTS, "query")
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    shown = [json.dumps(encoder.identity()), repr(encoder), str(vars(encoder))]
    for status in (400, 401, 403, 404, 413, 429, 500, 200):
        server.behaviours = [error(status, f"Incorrect API key provided: {KEY}")] * 5
        with pytest.raises(ModelError) as caught:
            encoder.encode(["a"], "query")
        server.behaviours = []
        shown.append(str(caught.value))
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
    assert KEY not in "".join(shown) + caplog.text


def test_a_key_that_is_none(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-…")
    with pytest.raises(SettingError, match="OPENAI_API_KEY holds characters") as caught:
        make()
    assert "sk-" not in str(caught.value)


def test_openai_itself_needs_a_key(make: Make) -> None:
    with pytest.raises(SettingError, match="OPENAI_API_KEY is not set"):
        OpenAIEncoder("text-embedding-3-small")
    with pytest.raises(SettingError, match="OPENAI_API_KEY is not set"):
        make(base_url="https://eu.api.openai.com/v1")


def test_the_address_from_the_environment(server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    encoder = OpenAIEncoder("tiny")
    assert encoder.identity()["base_url"] == server.url
    assert encoder.encode(["a"], "query").shape == (1, DIMENSION)
    encoder.close()


def test_credentials_in_the_address_are_sent_and_never_shown(server: EmbeddingServer, make: Make) -> None:
    encoder = make(base_url=server.url.replace("//", "//user:secret@") + "/", max_retries=0)
    assert encoder.identity()["base_url"] == server.url
    server.always = error(500, "oops")
    with pytest.raises(EncodingError) as caught:
        encoder.encode(["a"], "query")
    assert "secret" not in str(caught.value)
    assert server.headers[0]["authorization"] == "Basic " + base64.b64encode(b"user:secret").decode()


# Texts that are too long

LIMIT = 40
OPENAI_WORDS = (
    "This model's maximum context length is 8192 tokens, however you requested 8610 tokens (8610 in your prompt; 0 for "
    "the completion). Please reduce your prompt; or completion length."
)
VLLM_WORDS = (
    "This model's maximum context length is 256 tokens. However, your prompt contains at least 257 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
)
TEI_WORDS = "`inputs` must have less than 512 tokens. Given: 534"
REFUSALS = {
    "openai": error(400, OPENAI_WORDS),
    "openai-2025": error(400, "Invalid 'input': maximum input length is 8192 tokens."),
    "vllm": Reply(400, {"error": {"message": VLLM_WORDS, "type": "BadRequestError", "code": 400}}),
    "vllm-old": Reply(400, {"object": "error", "message": VLLM_WORDS, "code": 400}),
    "tei": Reply(413, {"message": f"Input validation error: {TEI_WORDS}", "code": 413, "type": "Validation"}),
    "tei-422": Reply(422, {"error": f"Input validation error: {TEI_WORDS}", "error_type": "Validation"}),
    "proxy": Reply(413, b"<html>Request Entity Too Large</html>"),
}


@pytest.mark.parametrize("words", sorted(REFUSALS))
def test_a_text_that_is_too_long_is_named(server: EmbeddingServer, make: Make, words: str) -> None:
    server.refusal = lambda inputs: REFUSALS[words] if any(len(text) > LIMIT for text in inputs) else None
    culprit = "def f():\n" + "x" * 200
    texts = [*TEXTS, culprit, *TEXTS]
    with pytest.raises(EncodingError) as caught:
        make().encode(texts, "document")
    message = str(caught.value)
    assert f"{culprit[:80]!r}, {len(culprit)} characters; set max_length=N, in tokens" in message
    assert "--auto-truncate" in message
    assert "\n" not in message
    assert server.sizes == [11, 6, 3, 3, 2, 1]


def test_a_text_that_is_too_long_in_spite_of_max_length(server: EmbeddingServer, make: Make) -> None:
    server.always = REFUSALS["tei"]
    with pytest.raises(EncodingError, match="set max_length=N below its present value, or start TEI"):
        make(max_length=9999).encode(["long"], "document")


def test_a_request_that_is_too_long_is_halved(server: EmbeddingServer, make: Make) -> None:
    most = Reply(422, {"error": "batch size 8 > maximum allowed batch size 2", "error_type": "Validation"})
    server.refusal = lambda inputs: most if len(inputs) > 2 else None
    encoder = make(batch_size=8, concurrency=1)
    texts = [f"text {n}" for n in range(8)]
    np.testing.assert_array_equal(encoder.encode(texts, "query"), vectors_of(texts))
    assert server.sizes == [8, 4, 2, 2, 4, 2, 2]
    assert encoder.batch_size == 2
    encoder.encode(texts, "query")
    assert server.sizes[7:] == [2, 2, 2, 2]


# OpenAI itself, whose texts tiktoken cuts


class FakeEncoding:
    """One token a character; like tiktoken, it refuses special tokens unless told that they are text."""

    def encode(self, text: str, *, disallowed_special: Any = "all") -> list[int]:
        if "<|endoftext|>" in text and disallowed_special == "all":
            raise ValueError("special token")
        return [ord(character) for character in text]


@pytest.fixture
def at_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the local server for OpenAI, and a fake for tiktoken."""
    monkeypatch.setattr(openai_api, "OPENAI_HOST", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(encoding_for_model=lambda model: FakeEncoding()))


@pytest.mark.usefixtures("at_openai")
def test_tiktoken_cuts_for_openai(server: EmbeddingServer, make: Make) -> None:
    encoder = make(max_length=4, query_prompt="q ")
    texts = ["ab", "abc", "<|endoftext|>", ""]
    assert encoder.cut(texts, "query") == [False, True, True, False]
    tokens: list[list[int]] = [[ord(c) for c in text] for text in ("q ab", "q ab", "q <|", "q ")]
    np.testing.assert_array_equal(encoder.encode(texts, "query"), vectors_of(tokens))
    encoder.encode([""], "document")
    assert server.requests[1]["input"] == [[ord(" ")]]
    assert encoder.empty_texts == 1
    assert "truncate_prompt_tokens" not in server.requests[0]
    server.always = REFUSALS["openai"]
    with pytest.raises(EncodingError, match=r"'abc', 3 characters; set max_length=N below its present value$"):
        encoder.encode(["abc"], "query")


@pytest.mark.usefixtures("at_openai")
def test_tiktoken_is_not_needed_without_max_length(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    np.testing.assert_array_equal(make().encode(TEXTS, "query"), vectors_of(TEXTS))
    with pytest.raises(MissingExtraError, match=r"max_length for OpenAI needs tiktoken.*pip install tiktoken"):
        make(max_length=4)


@pytest.mark.usefixtures("at_openai")
@pytest.mark.parametrize("failure", [KeyError("no such model"), ConnectionError("no network")])
def test_tiktoken_without_a_tokenizer(make: Make, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    def fail(model: str) -> None:
        raise failure

    monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(encoding_for_model=fail))
    with pytest.raises(ModelError, match=rf"tokenizer for 'tiny' \({type(failure).__name__}\).*TIKTOKEN_CACHE_DIR"):
        make(max_length=4)


# Settings and records


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0: expected a whole number of at least 1"),
        ({"batch_size": True}, "batch_size is True"),
        ({"max_length": "512"}, "max_length is '512'"),
        ({"dimensions": 1.5}, "dimensions is 1.5"),
        ({"concurrency": None}, "concurrency is None"),
        ({"max_retries": -1}, "max_retries is -1: expected a whole number of at least 0"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"base_url": "localhost:8000/v1"}, "base_url is no address"),
        ({"base_url": "http://user:secret/@host/v1"}, "base_url is no address: expected one such as http"),
    ],
)
def test_wrong_settings(make: Make, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make(**settings)


def test_identity(server: EmbeddingServer, make: Make) -> None:
    settings = {"max_length": 256, "dimensions": 4, "query_prompt": "q: "}
    encoder = make(**settings, batch_size=2, concurrency=2, timeout=5, max_retries=1)
    assert encoder.identity() == {
        "backend": f"openai {openai.__version__}",
        "model": "tiny",
        "base_url": server.url,
        "max_length": 256,
        "dimensions": 4,
        "query_prompt": "q: ",
        "document_prompt": None,
        "weights": "served: not known here",
    }
    # Nothing that changes no vector.
    assert make(**settings).identity() == encoder.identity()
    json.dumps(encoder.identity())


def test_without_the_package(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r'pip install "gecs-tasks\[openai\]"'):
        make()


def test_importing_the_module_imports_no_client() -> None:
    code = "import sys, gecs_tasks.scorers.encoders.openai_api; print('openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
