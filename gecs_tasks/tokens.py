"""Counting tokens of many texts: by a tokenizer, or estimated from characters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gecs_tasks.errors import MissingExtraError, ModelError

TokenArray: TypeAlias = NDArray[np.int64]

# Measured on samples of the benchmark, codes cut at 4,000 characters: the middle of a SentencePiece tokenizer of 32,000
# tokens and a byte-level one of 131,000 (Mistral's of 2023 and 2024), which stand up to 15 % from it on either side.
CHARS_PER_TOKEN: Final = 4.2  # of English
CHARS_PER_CODE_TOKEN: Final = {
    "Python": 2.9,
    "Go": 2.9,
    "Java": 3.9,
    "JavaScript": 3.6,
    "PHP": 3.9,
    "Ruby": 3.5,
    "R": 2.5,
}
_BATCH: Final = 4096  # texts, so that not all encodings are in memory at once


class TokenCounter(Protocol):
    """Counts tokens, special ones left out. ``name`` is the tokenizer's, None for an estimate."""

    @property
    def name(self) -> str | None:
        """The tokenizer's name, None for an estimate."""

    def count(self, texts: Sequence[str], language: str | None = None) -> TokenArray:
        """The tokens of each text, shape (n_texts,).

        :param language: the programming language of codes; None for English.
        """


class Estimate:
    """Tokens guessed from the number of characters."""

    name: None = None

    def count(self, texts: Sequence[str], language: str | None = None) -> TokenArray:
        """The guessed tokens of each text, rounded up."""
        per_token = CHARS_PER_TOKEN if language is None else CHARS_PER_CODE_TOKEN.get(language, 3.0)
        characters = np.fromiter(map(len, texts), dtype=np.float64, count=len(texts))
        return np.ceil(characters / per_token).astype(np.int64)


class Tokenizer:
    """Tokens counted by a tokenizer.

    :param lengths: gives the tokens of each of some texts, special ones left out.
    """

    def __init__(self, name: str, lengths: Callable[[list[str]], Iterable[int]]) -> None:
        self._name = name
        self._lengths = lengths

    @property
    def name(self) -> str:
        """The tokenizer's name."""
        return self._name

    def count(self, texts: Sequence[str], language: str | None = None) -> TokenArray:
        """The tokens of each text."""
        counts = np.empty(len(texts), dtype=np.int64)
        for start in range(0, len(texts), _BATCH):
            batch = list(texts[start : start + _BATCH])
            counts[start : start + len(batch)] = list(self._lengths(batch))
        return counts


def load_tokenizer(name: str) -> Tokenizer:
    """Load a tokenizer that counts.

    :param name: a folder or a name on the Hugging Face Hub, or, where tiktoken is installed, one of its encodings or of
        the models that it knows.
    :raises MissingExtraError: without transformers.
    :raises ModelError: where it cannot be loaded.
    """
    if not Path(name).exists() and (encoding := _tiktoken(name)) is not None:
        return Tokenizer(name, lambda texts: map(len, encoding.encode_batch(texts, disallowed_special=())))
    try:
        from transformers import AutoTokenizer  # takes seconds to import
    except ImportError as error:
        package = error.name or "transformers"
        raise MissingExtraError(f"the tokenizer {name!r}", package, '"gecs-tasks[transformers]"') from None
    try:
        loaded = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # of the hub, of a file's format, of a package that this one needs
        found = " ".join(str(error).split())[:200]
        raise ModelError(
            f"the tokenizer {name!r} cannot be loaded ({type(error).__name__}: {found}): give a folder or a name on "
            "the Hugging Face Hub; tiktoken's names need `pip install tiktoken`"
        ) from None
    return Tokenizer(name, _fast(loaded.backend_tokenizer) if loaded.is_fast else _slow(loaded))


def _tiktoken(name: str) -> Any:
    """The encoding of that name or of that model; None where tiktoken is missing or knows neither."""
    try:
        import tiktoken
    except ImportError:
        return None
    try:
        if name in tiktoken.list_encoding_names():
            return tiktoken.get_encoding(name)
        known = tiktoken.encoding_name_for_model(name)
    except KeyError:
        return None
    except Exception as error:  # it downloads an encoding when it is first asked for
        raise _not_from_tiktoken(name, error) from None
    try:
        return tiktoken.get_encoding(known)
    except Exception as error:
        raise _not_from_tiktoken(name, error) from None


def _not_from_tiktoken(name: str, error: Exception) -> ModelError:
    return ModelError(
        f"tiktoken cannot load {name!r} ({type(error).__name__}): it downloads an encoding once, and keeps it in the "
        "folder TIKTOKEN_CACHE_DIR"
    )


def _fast(backend: Any) -> Callable[[list[str]], Iterable[int]]:
    backend.no_truncation()
    backend.no_padding()
    encode = getattr(backend, "encode_batch_fast", backend.encode_batch)  # the fast one leaves offsets out
    return lambda texts: map(len, encode(texts, add_special_tokens=False))


def _slow(tokenizer: Any) -> Callable[[list[str]], Iterable[int]]:
    return lambda texts: map(len, tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])
