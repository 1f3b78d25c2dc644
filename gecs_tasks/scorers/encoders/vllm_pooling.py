"""Encoder on vLLM's pooling runner, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

import numpy as np

from gecs_tasks.errors import GecsError, MissingExtraError, ModelError, SettingError
from gecs_tasks.scorers.encoders.base import Role, VectorArray
from gecs_tasks.scorers.torch_support import failed_on, load_error, model_identity

_TEXTS_A_CALL: Final = 1024  # vLLM makes batches of its own; this is what a killed run may lose


class VLLMEncoder:
    """A model in vLLM's pooling runner, which batches and spreads over GPUs by itself.

    :param pretrained: a Hub id, or a folder.
    :param dtype: the weights' number type; auto is what they are stored in, as in the other backends. vLLM's own auto
        makes float16 of float32, which moves close candidates past each other.
    :param max_length: tokens a text is cut at; by default what vLLM takes from the model's configuration.
    :param engine: vLLM's own engine arguments, passed through (``tensor_parallel_size``, ``max_model_len``, ...).
    :raises ModelError: where vLLM cannot load the model.
    :raises SettingError: where vLLM refuses an engine argument.

    The other parameters are those of
    :class:`gecs_tasks.scorers.encoders.sentence_transformer.SentenceTransformerEncoder`.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        revision: str | None = None,
        dtype: str = "auto",
        batch_size: int | None = None,
        max_length: int | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        trust_remote_code: bool = False,
        **engine: Any,
    ) -> None:
        try:
            from vllm import LLM  # brings torch and starts nothing yet: many seconds
        except ImportError:
            raise MissingExtraError("backend=vllm", "vllm", "vllm") from None
        if max_length is not None:
            engine.setdefault("max_model_len", max_length)
        try:
            identity = model_identity(pretrained, revision)
            revision = identity.get("revision")
            self._llm: Any = LLM(
                model=pretrained,
                revision=revision,
                runner="pooling",
                dtype=_stored_dtype(pretrained, revision, trust_remote_code) if dtype == "auto" else dtype,
                trust_remote_code=trust_remote_code,
                **engine,
            )
        except Exception as error:
            raise _start_error(pretrained, error) from None
        config = self._llm.llm_engine.model_config
        # An engine of a greater max_model_len takes more than a text may have.
        self._max_length = min(max_length or int(config.max_model_len), int(config.max_model_len))
        self._lowercase = bool((getattr(config, "encoder_config", None) or {}).get("do_lower_case"))
        self._tokenizer: Any = self._llm.get_tokenizer()
        self._batch_size = batch_size or _TEXTS_A_CALL
        self._prompts: dict[Role, str] = {"query": query_prompt or "", "document": document_prompt or ""}
        pooler = getattr(config, "pooler_config", None)
        self._identity = {
            "backend": f"vllm {version('vllm')}",
            **identity,
            "pooling": str(getattr(pooler, "seq_pooling_type", None) or getattr(pooler, "pooling_type", None)),
            "query_prompt": self._prompts["query"],
            "document_prompt": self._prompts["document"],
            "max_length": self._max_length,
            "dtype": str(config.dtype).removeprefix("torch."),
            "engine": {name: str(value) for name, value in sorted(engine.items())},
        }

    @property
    def batch_size(self) -> int:
        """Texts one call of :meth:`encode` should bring."""
        return self._batch_size

    def encode(self, texts: Sequence[str], role: Role) -> VectorArray:
        """One vector a text, shape (n, d)."""
        prompts = [{"prompt_token_ids": ids} for ids in self._tokens(texts, role, cut=True)]
        try:
            outputs = self._llm.embed(prompts, use_tqdm=False)
        except Exception as error:
            raise failed_on(texts, error) from error
        return np.array([output.outputs.embedding for output in outputs], dtype=np.float32)

    def cut(self, texts: Sequence[str], role: Role) -> list[bool] | None:
        """Which texts, with their prompt, have more tokens than the engine takes."""
        return [len(ids) > self._max_length for ids in self._tokens(texts, role, cut=False)]

    def _tokens(self, texts: Sequence[str], role: Role, cut: bool) -> list[list[int]]:
        # Tokenized here, since vLLM refuses a text over its length rather than cut it.
        prompted = [self._prompts[role] + text for text in texts]
        if self._lowercase:  # some sentence-transformers configurations ask for it
            prompted = [text.lower() for text in prompted]
        limit = {"truncation": True, "max_length": self._max_length} if cut else {"truncation": False}
        tokens: list[list[int]] = self._tokenizer(prompted, verbose=False, **limit)["input_ids"]
        return tokens

    def identity(self) -> dict[str, Any]:
        """The model and every setting that changes a vector."""
        return self._identity

    def close(self) -> None:
        """vLLM ends its processes with this one."""


def _stored_dtype(pretrained: str, revision: str | None, trust_remote_code: bool) -> str:
    from transformers import AutoConfig  # loaded already, by vLLM

    config = AutoConfig.from_pretrained(pretrained, revision=revision, trust_remote_code=trust_remote_code)
    stored = str(getattr(config, "dtype", None)).removeprefix("torch.")
    return "float32" if stored in ("None", "float32") else "auto"


def _start_error(pretrained: str, error: Exception) -> GecsError:
    """One clear line for an engine that did not start: an argument of vLLM's, its processes, or the model itself."""
    reason = " ".join(str(error).split())
    shown = reason if len(reason) <= 300 else f"{reason[:300]}..."
    invalid = (
        type(error).__name__ == "ValidationError"
    )  # pydantic's: value_error is a check of vLLM's, mostly the model
    if isinstance(error, TypeError) or (invalid and ("type=value_error" not in reason or "max_model_len" in reason)):
        return SettingError(f"vLLM refuses an engine argument for {pretrained} ({type(error).__name__}: {shown})")
    if reason.startswith("Engine core initialization failed"):
        return ModelError(f"{pretrained}: vLLM's engine did not start; its own lines above say why ({shown})")
    return load_error(pretrained, error)
