"""Harness models whose every answer is known beforehand. They read the prompt, as a language model does."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from lm_eval.api.model import LM

from gecs_tasks.benchmark import DELIMITER
from gecs_tasks.collection import Collection


class ChatModel(LM):  # type: ignore[misc]
    """Generates ``answer(prompt)``, and nothing else, as a chat-completions API does."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        super().__init__()
        self._answer = answer
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        self.asked += [request.args for request in requests]
        return [self._answer(request.args[0]) for request in requests]

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        raise NotImplementedError

    @property
    def tokenizer_name(self) -> str:
        return "turns"

    def chat_template(self, chat_template: bool | str = False) -> str:
        return "turns"

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return "".join(f"<{turn['role']}>{turn['content']}</{turn['role']}>" for turn in chat_history)


class PromptModel(LM):  # type: ignore[misc]
    """Answers each (context, continuation) with ``score(context, continuation)``."""

    def __init__(self, score: Callable[[str, str], float]) -> None:
        super().__init__()
        self._score = score
        self.asked: list[tuple[str, str]] = []

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        self.asked += [request.args for request in requests]
        return [(self._score(*request.args), False) for request in requests]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        raise NotImplementedError

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        raise NotImplementedError


def always(answer: str) -> PromptModel:
    """A model that always says the same."""
    return PromptModel(lambda context, continuation: -0.1 if continuation.strip() == answer else -3.0)


def at_random(seed: int = 7) -> PromptModel:
    """A model that guesses."""
    rng = random.Random(seed)
    return PromptModel(lambda context, continuation: -rng.random())


def knowing(collection: Collection) -> PromptModel:
    """A model that knows which comment belongs to which code."""
    right = {
        f"{query}{DELIMITER}{code}".rstrip() for query, code in zip(collection.queries, collection.codes, strict=True)
    }

    def score(context: str, continuation: str) -> float:
        pair = context.split('"[CODESPLIT]" "code". ', 1)[1]
        return -0.1 if (pair in right) == (continuation.strip() == "True") else -3.0

    return PromptModel(score)
