"""Encoder on sentence-transformers: any model that library loads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from gecs_tasks.errors import MissingExtraError, ModelError
from gecs_tasks.scorers.encoders.base import Role, VectorArray
from gecs_tasks.scorers.torch_support import (
    architecture,
    check_dtype,
    check_length,
    failed_on,
    halved,
    is_causal,
    is_out_of_memory,
    load_error,
    missing_weights,
    model_identity,
    pick_device,
    positions,
    refuse_missing,
)

_BATCH_ON_CPU, _BATCH_ON_GPU = 32, 256


class SentenceTransformerEncoder:
    """A sentence-transformers model.

    :param pretrained: a Hub id, or a folder.
    :param device: where it runs; a list of devices starts one process for each.
    :param dtype: the weights' number type: auto, float32, float16, bfloat16.
    :param batch_size: texts a forward pass; None starts high on a GPU and halves when memory runs out.
    :param max_length: tokens a text is cut at, where not the model's own.
    :param query_prompt: text before each query, or the name of one of the model's own prompts; by default the model's
        own prompt for queries where it has one.
    :param document_prompt: likewise before each code.
    :raises ModelError: where the model cannot be loaded or is a causal language model.
    :raises SettingError: where a setting does not suit the model or this machine.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        revision: str | None = None,
        device: str | int | Sequence[str] | None = None,
        dtype: str = "auto",
        batch_size: int | None = None,
        max_length: int | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        try:
            from sentence_transformers import SentenceTransformer  # brings torch: many seconds
        except ImportError:
            raise MissingExtraError(
                "gecs-embedding", "sentence-transformers", '"gecs-tasks[sentence-transformers]"'
            ) from None
        devices = list(device) if isinstance(device, (list, tuple)) else None
        single = device if isinstance(device, (str, int)) else None
        first = pick_device(devices[0] if devices else single)
        try:
            identity = model_identity(pretrained, revision)
            with missing_weights() as missing:
                self._model: Any = SentenceTransformer(
                    pretrained,
                    revision=identity.get("revision"),
                    device=first,
                    trust_remote_code=trust_remote_code,
                    model_kwargs={"dtype": check_dtype(dtype)},
                )
            refuse_missing(pretrained, missing)
        except Exception as error:
            raise load_error(pretrained, error) from None
        config = getattr(getattr(self._model[0], "auto_model", None), "config", None)
        _refuse_causal(pretrained, config, self._model)
        self._set_length(max_length)
        prompts = self._model.prompts or {}
        self._prompts: dict[Role, str] = {
            "query": _prompt(query_prompt, prompts, ("query",)),
            "document": _prompt(document_prompt, prompts, ("document", "passage", "corpus")),
        }
        self._pool = self._model.start_multi_process_pool([pick_device(name) for name in devices]) if devices else None
        self._n_devices = len(devices) if devices else 1
        self._batch_size = batch_size or (_BATCH_ON_GPU if first.startswith("cuda") else _BATCH_ON_CPU)
        self._identity = {
            "backend": f"sentence-transformers {version('sentence-transformers')}",
            **identity,
            "modules": [type(module).__name__ for module in self._model],
            "pooling": _pooling(self._model),
            "query_prompt": self._prompts["query"],
            "document_prompt": self._prompts["document"],
            "max_length": _finite(self._model.max_seq_length),
            "dtype": str(next(self._model.parameters()).dtype).removeprefix("torch."),
            "device_type": first.partition(":")[0],
        }

    def _set_length(self, max_length: int | None) -> None:
        if max_length is None:
            return
        check_length(max_length, getattr(self._model, "tokenizer", None), positions(self._model))
        self._model.max_seq_length = max_length

    @property
    def batch_size(self) -> int:
        """Texts one call of :meth:`encode` should bring: a forward pass's batch for each device."""
        return self._batch_size * self._n_devices

    def encode(self, texts: Sequence[str], role: Role) -> VectorArray:
        """One vector a text, shape (n, d); where a GPU's memory runs out, again with half the batch."""
        encode = self._model.encode_query if role == "query" else self._model.encode_document
        while True:
            try:
                vectors = encode(
                    list(texts),
                    prompt=self._prompts[role],
                    batch_size=self._batch_size,
                    show_progress_bar=False,
                    convert_to_numpy=True,
                    pool=self._pool,
                    chunk_size=self._batch_size if self._pool else None,
                )
                return np.asarray(vectors, dtype=np.float32)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise failed_on(texts, error) from error
            self._batch_size = halved(self._batch_size, texts)

    def cut(self, texts: Sequence[str], role: Role) -> list[bool] | None:
        """Which texts, with their prompt, have more tokens than the model takes; None where it cannot be told."""
        limit = _finite(self._model.max_seq_length)
        tokenizer = getattr(self._model, "tokenizer", None)
        if limit is None or not callable(tokenizer):
            return None
        prompt = self._prompts[role]
        tokens = tokenizer([prompt + text for text in texts], truncation=False, verbose=False)["input_ids"]
        return [len(ids) > limit for ids in tokens]

    def identity(self) -> dict[str, Any]:
        """The model and every setting that changes a vector."""
        return self._identity

    def close(self) -> None:
        """End the processes of several devices."""
        if self._pool is not None:
            self._model.stop_multi_process_pool(self._pool)
            self._pool = None


def _refuse_causal(pretrained: str, config: Any, model: Any) -> None:
    """Refuse a causal LM that nobody made an embedding model of: its mean-pooled states only look like vectors."""
    made_for_sentences = getattr(model, "_model_config", None)  # what a folder's own configuration brought
    if config is not None and is_causal(config) and not made_for_sentences:
        raise ModelError(
            f"{pretrained} is a causal language model ({architecture(config)}), not an embedding model: run it with "
            "--model hf or vllm. If it was trained to embed, say how: backend=transformers,pooling=last"
        )


def _finite(length: Any) -> int | None:
    """A model's maximum length; None where it has none, which some say as infinity."""
    return int(length) if isinstance(length, (int, float)) and math.isfinite(length) else None


def _prompt(given: str | None, named: dict[str, str], defaults: Sequence[str]) -> str:
    if given is not None:
        return named.get(given, given)
    return next((named[name] for name in defaults if named.get(name)), "")


def _pooling(model: Any) -> str | None:
    for module in model:
        if type(module).__name__ == "Pooling":
            mode = module.get_config_dict().get("pooling_mode")
            return mode if isinstance(mode, str) else str(mode)
    return None
