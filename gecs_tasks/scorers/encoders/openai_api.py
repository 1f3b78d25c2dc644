"""Vectors from any server that speaks OpenAI's ``/v1/embeddings``: OpenAI itself, vLLM, TEI."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from email.utils import parsedate_to_datetime
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeAlias

import numpy as np

from gecs_tasks.errors import EncodingError, MissingExtraError, ModelError, SettingError
from gecs_tasks.scorers.encoders.base import Role, VectorArray

logger = logging.getLogger(__name__)

OPENAI_HOST: Final = "api.openai.com"
# TEI takes no more unless told so, and 32 texts of OpenAI's 8,192 tokens stay below its 300,000 a request.
REQUEST_SIZE: Final = 32
LONGEST_WAIT: Final = 3600.0  # seconds: a longer Retry-After ends the run

# How OpenAI, vLLM, TEI, llama.cpp, Ollama and Mistral say that a text or a request is too long; none has a code for it.
_TOO_LONG: Final = re.compile(r"\btokens?\b|context (length|size)|input length|too (long|large)|batch size", re.I)
# An address: scheme, [user and password], rest [host], [query].
_URL: Final = re.compile(r"(https?://)(?:[^/?#]*@)?((\[[^\]]+\]|[^/?#:@\s]+)(?::\d+)?(?:/[^?#\s]*)?)([?#].*)?", re.I)
_RESUME: Final = "The vectors made so far are kept where cache_dir is set: the same command then goes on from there."

_Input: TypeAlias = str | list[int]  # a text, or its tokens


class _TooLongError(Exception):
    """The server refuses a request for its length; the text is the server's."""


class OpenAIEncoder:
    """Vectors of texts by way of an OpenAI-compatible server.

    The key is read from ``OPENAI_API_KEY`` and shown nowhere. An empty text is sent as a single space, because OpenAI
    refuses empty ones; :attr:`empty_texts` counts them. Numbers that are not finite come back as NaN.

    :param model: the name under which the server serves the model.
    :param base_url: the server, usually ending in ``/v1``; without one ``OPENAI_BASE_URL``, else OpenAI itself.
    :param batch_size: texts a request, 32 where None; a server that takes fewer makes it shrink.
    :param max_length: tokens after which a text is cut: by tiktoken for OpenAI, by the server elsewhere (vLLM's
        ``truncate_prompt_tokens``; TEI ignores it and cuts where its own ``--auto-truncate`` says so).
    :param concurrency: how many requests are under way at once.
    :param timeout: seconds to wait for an answer.
    :param max_retries: how often a request is sent again after 429, 5xx, a timeout or a lost connection.
    :param query_prompt: what stands before each query; ``document_prompt`` before each document.
    :param dimensions: the length of vector to ask for, where the model has several.
    :raises SettingError: where an argument is out of its range, or OpenAI itself is asked without a key.
    :raises MissingExtraError: without the package ``openai``, or ``tiktoken`` where it is needed.
    :raises ModelError: where tiktoken cannot load a tokenizer.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        batch_size: int | None = None,
        max_length: int | None = None,
        concurrency: int = 4,
        timeout: float = 60,
        max_retries: int = 6,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        dimensions: int | None = None,
    ) -> None:
        sizes = {"batch_size": batch_size, "max_length": max_length, "dimensions": dimensions}
        for name, value in {**sizes, "concurrency": concurrency, "max_retries": max_retries}.items():
            least = 0 if name == "max_retries" else 1
            if not (value is None and name in sizes) and (type(value) is not int or value < least):
                raise SettingError(f"{name} is {value!r}: expected a whole number of at least {least}")
        if type(timeout) not in (int, float) or not 0 < timeout < 1e9:
            raise SettingError(f"timeout is {timeout!r}: expected a number of seconds above 0")
        url = base_url or os.environ.get("OPENAI_BASE_URL") or f"https://{OPENAI_HOST}/v1"
        match = _URL.fullmatch(url)
        if match is None:
            raise SettingError("base_url is no address: expected one such as http://localhost:8000/v1")
        # Without credentials, for messages and records.
        self._server, host = f"{match[1]}{match[2]}".rstrip("/"), match[3].lower()
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not re.fullmatch(r"[!-~]*", key):
            # It would fail in the HTTP library, whose message shows it.
            raise SettingError("OPENAI_API_KEY holds characters that no key has: set it to the key alone")
        at_openai = f".{host}".endswith(f".{OPENAI_HOST}")  # it has regional hosts
        if at_openai and not key:
            raise SettingError("OPENAI_API_KEY is not set: OpenAI needs a key; for another server set base_url")
        self._openai = _load("openai", "backend=openai", '"gecs-tasks[openai]"')
        # Local servers want no key, the client wants one.
        settings = {"api_key": key or "no-key", "base_url": url, "timeout": timeout, "max_retries": max_retries}
        self._client = self._openai.OpenAI(**settings)
        self.model, self.max_length, self.dimensions = model, max_length, dimensions
        self.concurrency, self.timeout, self.max_retries = concurrency, timeout, max_retries
        self.prompts: dict[Role, str | None] = {"query": query_prompt, "document": document_prompt}
        # Base64 is a quarter of the decimals' size and exact.
        self._options: dict[str, Any] = {"model": model, "encoding_format": "base64"}
        if dimensions:
            self._options["dimensions"] = dimensions
        if max_length and not at_openai:
            self._options["extra_body"] = {"truncate_prompt_tokens": max_length}
        self._tokens = _load_tokenizer(model) if max_length and at_openai else None
        self._request_size, self._dimension, self.empty_texts = batch_size or REQUEST_SIZE, dimensions, 0
        self._stop, self._has_key = threading.Event(), bool(key)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="gecs-openai")

    def encode(self, texts: Sequence[str], role: Role) -> VectorArray:
        """One vector a text, shape (n, d), in the texts' order.

        :raises EncodingError: where the server kept failing, found a text too long or gave no usable answer.
        :raises ModelError: where there is no server, no such model or no access.
        """
        prompted = self._prompted(texts, role)
        self.empty_texts += prompted.count("")
        inputs: list[_Input] = [text or " " for text in prompted]
        if self._tokens is not None:
            # Sent as tokens: a cut may fall within a character.
            inputs = [self._tokens(text or " ")[: self.max_length] for text in prompted]
        self._stop.clear()
        submit, size = self._pool.submit, self._request_size
        futures = [submit(self._request, inputs[i : i + size], texts[i : i + size]) for i in range(0, len(texts), size)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            rows = [row for future in futures if future.done() for row in future.result()]
        except BaseException:
            self._stop.set()
            for future in futures:
                future.cancel()
            raise
        for row in rows:
            self._dimension = self._dimension or len(row)
            if len(row) != self._dimension:
                found = f"dimension {len(row)}, not {self._dimension} as {'asked for' if self.dimensions else 'before'}"
                raise EncodingError(f"{self._server} gave a vector of {found}: does it serve {self.model} alone?")
        vectors = np.array(rows, dtype=np.float32).reshape(len(rows), self._dimension or 0)
        vectors[~np.isfinite(vectors)] = np.nan
        return vectors

    def cut(self, texts: Sequence[str], role: Role) -> list[bool] | None:
        """Which texts tiktoken cuts; None where the server cuts, which does not tell."""
        if self._tokens is None or self.max_length is None:
            return None
        return [len(self._tokens(text)) > self.max_length for text in self._prompted(texts, role)]

    @property
    def batch_size(self) -> int:
        """The texts that keep all of the concurrent requests full."""
        return self._request_size * self.concurrency

    def identity(self) -> dict[str, Any]:
        """Model, server (without credentials) and what is asked of it; which weights it serves is not known here."""
        served = {"model": self.model, "base_url": self._server, "weights": "served: not known here"}
        asked = {"max_length": self.max_length, "dimensions": self.dimensions}
        prompts = {f"{role}_prompt": prompt for role, prompt in self.prompts.items()}
        return {"backend": f"openai {self._openai.__version__}", **served, **asked, **prompts}

    def close(self) -> None:
        """Close the connections."""
        self._stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _prompted(self, texts: Sequence[str], role: Role) -> list[str]:
        return [(self.prompts[role] or "") + text for text in texts]

    def _request(self, inputs: list[_Input], texts: Sequence[str]) -> list[VectorArray]:
        """One request's vectors; a request that is refused as too long is halved, down to the one text."""
        try:
            return self._vectors(self._post(inputs), len(inputs))
        except _TooLongError as refusal:
            if len(texts) == 1:
                mend = f"set max_length={'N, in tokens' if self.max_length is None else 'N below its present value'}"
                mend += "" if self._tokens else ", or start TEI, which does not heed it, with --auto-truncate"
                found = f"{texts[0][:80]!r}, {len(texts[0])} characters"
                raise EncodingError(f"{self._server} refused a text as too long ({refusal}): {found}; {mend}") from None
        half = (len(texts) + 1) // 2
        rows = self._request(inputs[:half], texts[:half]) + self._request(inputs[half:], texts[half:])
        # No text was too long, all of them together were.
        self._request_size = min(self._request_size, half)
        return rows

    def _post(self, inputs: list[_Input]) -> bytes:
        """The server's answer.

        The client retries by itself and waits as Retry-After says, up to 120 seconds. Told to wait longer it gives up
        at once, so longer waits are kept here.
        """
        client, attempts = self._client, 0
        while True:
            try:
                answer: bytes = client.embeddings.with_raw_response.create(input=inputs, **self._options).content
                return answer
            except self._openai.APIError as error:
                attempts += int(error.request.headers.get("x-stainless-retry-count", 0)) + 1
                pause = _retry_after(error)
                if attempts > self.max_retries or not 0 < pause <= LONGEST_WAIT:
                    # Without its cause, which may show the key.
                    raise self._failure(error, attempts, pause) from None
            logger.warning("%s asks to wait %.0f seconds: waiting", self._server, pause)
            if self._stop.wait(pause):
                raise EncodingError(f"{self._server}: no longer waiting, because another request failed. {_RESUME}")
            client = self._client.with_options(max_retries=self.max_retries - attempts)

    def _failure(self, error: Any, attempts: int, pause: float) -> Exception:
        """What an error of the client's means for the user."""
        server, tried = self._server, f"{attempts} attempt{'s' if attempts > 1 else ''}"
        if isinstance(error, self._openai.APITimeoutError):
            mend = "raise timeout, or lower batch_size or concurrency"
            return EncodingError(f"{server} did not answer within {self.timeout:g} s in {tried}: {mend}. {_RESUME}")
        if not isinstance(error, self._openai.APIStatusError):
            name = type(error.__cause__).__name__
            kind = ModelError if name == "ConnectError" else EncodingError
            found = f"{server} cannot be reached ({self._shortened(str(error.__cause__)) or name}; {tried})"
            return kind(f"{found}: is it running, and is base_url right? {_RESUME}")
        status, body = error.status_code, error.body if isinstance(error.body, dict) else {"message": error.body}
        message = str(body.get("message") or body.get("detail") or body)
        found = f"status {status}: {self._shortened(message)}"
        if status in (408, 409, 429) or status >= 500:
            asked = f", asking to wait {pause:.0f} seconds" if pause > 0 else ""
            return EncodingError(f"{server} failed in {tried} (last {found}{asked}). {_RESUME}")
        if "truncate_prompt_tokens" in message:
            return ModelError(f"{server} refused max_length={self.max_length} ({found}): lower it")
        if status == 413 or (status in (400, 422) and _TOO_LONG.search(message)):
            return _TooLongError(found)
        found, mend = f"the request ({found})", "see the model arguments and the key's rights"
        if status == 401:  # without the server's own words, which may quote the key
            found = f"{'the key in' if self._has_key else 'a request without'} OPENAI_API_KEY (status 401)"
            mend = "set it to a key that this server accepts"
        elif status == 404 and re.search(r"\bmodel\b", message, re.I):
            found, mend = f"model {self.model!r} in {found}", f"{server}/models lists those that it has"
        elif status in (404, 405):
            mend = "base_url usually ends in /v1, and the model served must be an embedding model"
        return ModelError(f"{server} refused {found}: {mend}")

    def _vectors(self, content: bytes, count: int) -> list[VectorArray]:
        """The vectors in an answer, in the order of its own indices."""
        try:
            items = json.loads(content)["data"]
            rows = {item["index"]: _vector(item["embedding"]) for item in items}
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            found = f"no embeddings ({type(error).__name__}) but {content[:2000].decode('utf-8', 'replace')!r}"
            raise EncodingError(f"{self._server} gave {self._shortened(found)}: is base_url right?") from None
        if len(items) != count or set(rows) != set(range(count)):
            found = f"{len(items)} vectors with {len(rows)} different indices for {count} texts"
            raise EncodingError(f"{self._server} gave {found}: expected each of 0 to {count - 1} once")
        return [rows[index] for index in range(count)]

    def _shortened(self, text: str) -> str:
        text = " ".join(text.replace(self._client.api_key, "***").split())
        return text if len(text) <= 200 else text[:197] + "..."


def _load(package: str, needed_by: str, install: str) -> Any:
    # Half a second for openai, and only this backend needs it.
    try:
        return import_module(package)
    except ImportError:
        raise MissingExtraError(needed_by, package, install) from None


def _load_tokenizer(model: str) -> Callable[[str], list[int]]:
    tiktoken = _load("tiktoken", "max_length for OpenAI", "tiktoken")
    try:
        encoding = tiktoken.encoding_for_model(model)
    except Exception as error:  # an unknown model, or the network's errors from whichever library tiktoken uses
        found = f"tiktoken cannot load a tokenizer for {model!r} ({type(error).__name__})"
        mend = "it downloads them: set TIKTOKEN_CACHE_DIR to a folder that has it, or leave max_length out"
        raise ModelError(f"{found}; {mend}") from None
    # A code may hold "<|endoftext|>": it is text.
    return partial(encoding.encode, disallowed_special=())


def _retry_after(error: Any) -> float:
    """Seconds that an overloaded server asks to wait, from a number or a date; 0 where it asks nothing."""
    value = error.response.headers.get("retry-after", "") if getattr(error, "status_code", 0) in (429, 503) else ""
    try:
        return float(value) if value[:1].isdigit() else parsedate_to_datetime(value).timestamp() - time.time()
    except ValueError:
        return 0.0


def _vector(value: object) -> VectorArray:
    """A vector from base64 or a list of numbers, in which null stands for NaN."""
    with np.errstate(over="ignore"):
        decoded = np.frombuffer(base64.b64decode(value, validate=True), "<f4") if isinstance(value, str) else value
        vector = np.array(decoded, dtype=np.float32)
    if vector.ndim != 1 or not vector.size:
        raise ValueError(f"a vector of shape {vector.shape}")
    return vector
