"""The harness models that this package adds, one class a name of ``--model``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gecs_tasks.errors import SettingError
from gecs_tasks.harness import PairScorerLM
from gecs_tasks.scorers.base import PairScorer
from gecs_tasks.scorers.bm25 import BM25Scorer

BACKENDS: Final = ("sentence-transformers", "transformers", "vllm", "openai")

# What every model may be given without having asked for it: the harness's own options, the name that `gecs run` gives
# a model for the harness to call its folder by, and task settings.
_FROM_THE_HARNESS: Final = ("batch_size", "max_batch_size", "device", "model")
_SCORING: Final = ("similarity", "normalize", "cache_dir", "progress", "threshold")
_ENCODING: Final = ("max_length", "query_prompt", "document_prompt", "batch_size")
_LOADING: Final = ("revision", "dtype", "trust_remote_code")
_OF_BACKEND: Final[dict[str, tuple[str, ...]]] = {
    "sentence-transformers": ("device", *_LOADING, *_ENCODING),
    "transformers": ("pooling", "device", *_LOADING, *_ENCODING),
    "vllm": (*_LOADING, *_ENCODING),
    "openai": ("base_url", "dimensions", "concurrency", "timeout", "max_retries", *_ENCODING),
}

_OF_CROSS_ENCODER: Final = (
    *("device", *_LOADING, "batch_size", "max_length"),
    *("comment_tokens", "positive_label", "input_form", "cache_dir", "progress"),
)


class BM25Model(PairScorerLM):
    """``gecs-bm25``: BM25 over the subset's whole code list.

    Model arguments: ``k1`` (1.5), ``b`` (0.75), ``method`` (lucene, robertson, atire, bm25l, bm25+) and
    ``threshold``, the score above which a pair is a match (none: no decision, so no accuracy).
    """

    def __init__(
        self,
        k1: float = 1.5,
        b: float = 0.75,
        method: str = "lucene",
        threshold: float | None = None,
        **other: Any,
    ) -> None:
        reject_unknown("gecs-bm25", other, ("k1", "b", "method", "threshold"))
        super().__init__(BM25Scorer(k1=k1, b=b, method=method), threshold)


class EmbeddingModel(PairScorerLM):
    """``gecs-embedding``: a bi-encoder; a pair's score is the similarity of its two vectors.

    Model arguments: ``pretrained``, a Hub id, a folder or a served model's name; ``backend``, one of :data:`BACKENDS`;
    ``similarity`` (cosine, dot), ``normalize``, ``cache_dir``, ``progress``, ``threshold``; ``max_length``,
    ``query_prompt``, ``document_prompt``, ``batch_size`` (a number or auto); of local models ``revision``, ``device``,
    ``dtype``, ``trust_remote_code``; ``pooling`` of transformers; ``base_url``, ``dimensions``, ``concurrency``,
    ``timeout``, ``max_retries`` of openai; any engine argument of vllm.

    :raises SettingError: where an argument is unknown to the backend or its value is wrong.
    :raises ModelError: where the model cannot be loaded.
    """

    def __init__(self, pretrained: str | None = None, backend: str = BACKENDS[0], **given: Any) -> None:
        super().__init__(_embedding_scorer(pretrained, backend, given), given.get("threshold"))


def _embedding_scorer(pretrained: str | None, backend: str, given: dict[str, Any]) -> PairScorer:
    from gecs_tasks.scorers.embedding import EmbeddingScorer

    if backend not in BACKENDS:
        near = difflib.get_close_matches(str(backend), BACKENDS, n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise SettingError(f"backend is {backend!r}: expected one of {', '.join(BACKENDS)}{hint}")
    if not pretrained:
        raise SettingError("gecs-embedding needs a model: --model_args pretrained=<Hub id, folder or served model>")
    known = _OF_BACKEND[backend]
    if backend != "vllm":  # the rest is vLLM's own
        reject_unknown(f"gecs-embedding with backend={backend}", given, ("pretrained", "backend", *known, *_SCORING))
    settings = {name: value for name, value in given.items() if name in known}
    if backend == "vllm":
        settings |= {
            name: value
            for name, value in given.items()
            if name not in (*_SCORING, "device", "max_batch_size") and not name.startswith("gecs_")
        }
    if "pooling" in given and given["pooling"] is None:
        settings["pooling"] = "none"  # which some of the harness's ways of reading arguments take for nothing
    settings |= _checked(settings)
    settings["batch_size"] = _batch_size(given.get("batch_size"))
    if "max_length" in settings:
        settings["max_length"] = _positive("max_length", settings["max_length"])
    normalize = _flag("normalize", given.get("normalize", False))
    progress = None if given.get("progress") is None else _flag("progress", given["progress"])
    return EmbeddingScorer(
        _encoder(backend, str(pretrained), settings),
        model=str(pretrained),
        similarity=given.get("similarity", "cosine"),
        normalize=normalize,
        cache_dir=_folder(given.get("cache_dir")),
        progress=progress,
    )


def _encoder(backend: str, pretrained: str, settings: dict[str, Any]) -> Any:
    # Imported here: each brings libraries that only its own users have.
    if backend == "transformers":
        from gecs_tasks.scorers.encoders.auto_model import AutoModelEncoder

        return AutoModelEncoder(pretrained, **settings)
    if backend == "vllm":
        from gecs_tasks.scorers.encoders.vllm_pooling import VLLMEncoder

        return VLLMEncoder(pretrained, **settings)
    if backend == "openai":
        from gecs_tasks.scorers.encoders.openai_api import OpenAIEncoder

        return OpenAIEncoder(pretrained, **settings)
    from gecs_tasks.scorers.encoders.sentence_transformer import SentenceTransformerEncoder

    return SentenceTransformerEncoder(pretrained, **settings)


class CrossEncoderModel(PairScorerLM):
    """``gecs-cross-encoder``: a fine-tuned classifier that reads comment and code together.

    Model arguments: ``pretrained``, a Hub id or a folder, and those of
    :class:`gecs_tasks.scorers.cross_encoder.CrossEncoderScorer`; ``threshold`` in place of its own decision.

    :raises SettingError: where an argument is unknown or its value is wrong.
    :raises ModelError: where the model cannot be loaded, or is no classifier with two labels or one.
    """

    def __init__(self, pretrained: str | None = None, threshold: float | None = None, **given: Any) -> None:
        from gecs_tasks.scorers.cross_encoder import CrossEncoderScorer

        reject_unknown("gecs-cross-encoder", given, ("pretrained", "threshold", *_OF_CROSS_ENCODER))
        if not pretrained:
            raise SettingError("gecs-cross-encoder needs a model: --model_args pretrained=<Hub id or folder>")
        settings = {name: value for name, value in given.items() if name in _OF_CROSS_ENCODER}
        settings |= _checked(settings)
        settings["batch_size"] = _batch_size(given.get("batch_size")) or "auto"
        settings["cache_dir"] = _folder(given.get("cache_dir"))
        if settings.get("progress") is not None:
            _flag("progress", settings["progress"])
        super().__init__(CrossEncoderScorer(str(pretrained), **settings), threshold)


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    """Those of a model's settings that the harness may have read as something else than was meant."""
    checked: dict[str, Any] = {}
    if "trust_remote_code" in settings:  # "no" is a text, and every text is true
        checked["trust_remote_code"] = _flag("trust_remote_code", settings["trust_remote_code"])
    for name in ("revision", "query_prompt", "document_prompt"):  # digits alone arrive as a number
        if settings.get(name) is not None:
            checked[name] = str(settings[name])
    return checked


def _folder(value: Any) -> Path | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (str, int, Path))):
        raise SettingError(f"cache_dir is {value!r}: expected a folder")
    return None if value is None else Path(str(value))


def _batch_size(value: Any) -> int | None:
    """A number of texts, or None for auto."""
    if value is None or value == "auto" or str(value).startswith("auto:"):
        return None
    return _positive("batch_size", int(value) if isinstance(value, str) and value.isdigit() else value, " or auto")


def _positive(name: str, value: Any, otherwise: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(f"{name} is {value!r}: expected a whole number of at least 1{otherwise}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SettingError(f"{name} is {value!r}: expected True or False")
    return value


def reject_unknown(model: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse model arguments that a model does not have.

    :param given: the arguments left over after the model's own; the harness's own and ``gecs_`` task settings pass.
    :raises SettingError: naming all unknown arguments, and for each the nearest known one.
    """
    known = tuple(known)
    passing = (*known, *_FROM_THE_HARNESS)
    unknown = [name for name in given if name not in passing and not name.startswith("gecs_")]
    if not unknown:
        return
    hints = []
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=1)
        hints.append(f"{name} (did you mean {near[0]}?)" if near else name)
    raise SettingError(f"{model} has no model argument {', '.join(hints)}; it has {', '.join(known)}")
