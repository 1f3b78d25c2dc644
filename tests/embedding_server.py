"""A local ``/v1/embeddings`` server whose vectors follow from the texts alone, and which misbehaves on demand."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

DIMENSION = 8


def vector_of(text: str | list[int], dimension: int = DIMENSION) -> NDArray[np.float32]:
    """The server's vector of a text or of its tokens."""
    digest = hashlib.sha256(json.dumps(text).encode()).digest()
    return np.frombuffer(digest[:dimension], dtype=np.uint8).astype(np.float32) / np.float32(255)


@dataclass(frozen=True)
class Reply:
    """One answer that is no vectors; ``hang`` where none comes before the test ends."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False


# What a request is answered with in place of its vectors: an answer, or a change of the right one.
Behaviour: TypeAlias = Reply | Callable[[dict[str, Any]], Any]


class EmbeddingServer(ThreadingHTTPServer):
    """Answers with the behaviours in turn, one a request, and rightly after the last.

    :ivar refusal: asked about each request's inputs; what it returns, if anything, is the answer.
    :ivar barrier: where set, requests wait for one another there.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.behaviours: list[Behaviour] = []
        self.always: Reply | None = None
        self.refusal: Callable[[Sequence[Any]], Reply | None] = lambda inputs: None
        self.barrier: threading.Barrier | None = None
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.under_way = self.peak = 0
        self.lock, self.over = threading.Lock(), threading.Event()

    @property
    def sizes(self) -> list[int]:
        return [len(request["input"]) for request in self.requests]

    def stop(self) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: EmbeddingServer

    def do_POST(self) -> None:
        server = self.server
        request: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.requests.append(request)
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            server.under_way += 1
            server.peak = max(server.peak, server.under_way)
            behaviour: Behaviour | None = server.behaviours.pop(0) if server.behaviours else server.always
        if server.barrier is not None:
            server.barrier.wait(timeout=30)
        refusal = server.refusal(request["input"])
        with server.lock:
            server.under_way -= 1
        if self.path != "/v1/embeddings":
            self.answer(Reply(404, {"detail": "Not Found"}))
        elif isinstance(behaviour, Reply):
            self.answer(behaviour)
        elif refusal is not None:
            self.answer(refusal)
        else:
            right = self.right_answer(request)
            self.answer(Reply(body=behaviour(right) if behaviour is not None else right))

    def right_answer(self, request: dict[str, Any]) -> dict[str, Any]:
        vectors = [vector_of(text, request.get("dimensions", DIMENSION)) for text in request["input"]]
        as_base64 = request.get("encoding_format") == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(vector.tobytes()).decode() if as_base64 else vector.tolist(),
            }
            for index, vector in enumerate(vectors)
        ]
        return {"object": "list", "data": data, "model": request["model"], "usage": {}}

    def answer(self, reply: Reply) -> None:
        if reply.hang:
            self.server.over.wait()
            return
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
