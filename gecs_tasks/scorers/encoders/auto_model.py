"""Encoder on transformers' AutoModel, for models that no sentence-transformers configuration comes with."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

import numpy as np

from gecs_tasks.errors import MissingExtraError, ModelError, SettingError
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
    model_identity,
    pick_device,
    positions,
    refuse_missing,
)

POOLINGS: Final = ("mean", "cls", "last", "none")
_BATCH_ON_CPU, _BATCH_ON_GPU = 32, 256
_NO_LIMIT: Final = 1_000_000  # tokenizers without a limit say some 1e30


class AutoModelEncoder:
    """A transformers model and how its token states become one vector.

    :param pretrained: a Hub id, or a folder.
    :param pooling: ``mean`` over the text's tokens, ``cls`` the first, ``last`` the last token, ``none`` for models
        whose forward pass returns the vector (Salesforce/codet5p-110m-embedding); mean by default, except that a causal
        language model needs it said.
    :param max_length: tokens a text is cut at; by default the tokenizer's limit, else the model's positions.
    :raises ModelError: where the model cannot be loaded, or its forward pass does not suit the pooling.
    :raises SettingError: where a setting does not suit the model or this machine.

    The other parameters are those of
    :class:`gecs_tasks.scorers.encoders.sentence_transformer.SentenceTransformerEncoder`.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        pooling: str | None = None,
        revision: str | None = None,
        device: str | int | None = None,
        dtype: str = "auto",
        batch_size: int | None = None,
        max_length: int | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        if pooling is not None and pooling not in POOLINGS:
            raise SettingError(f"pooling is {pooling!r}: expected one of {', '.join(POOLINGS)}")
        if isinstance(device, (list, tuple)):
            raise SettingError("several devices need backend=sentence-transformers or vllm")
        try:
            import torch
            from transformers import AutoModel, AutoTokenizer  # brings torch: many seconds
        except ImportError:
            raise MissingExtraError("backend=transformers", "transformers", '"gecs-tasks[transformers]"') from None
        self._torch = torch
        self._device = pick_device(device)
        try:
            identity = model_identity(pretrained, revision)
            revision = identity.get("revision")
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                pretrained, revision=revision, trust_remote_code=trust_remote_code
            )
            self._model: Any
            self._model, report = AutoModel.from_pretrained(
                pretrained,
                revision=revision,
                trust_remote_code=trust_remote_code,
                dtype=check_dtype(dtype),
                output_loading_info=True,
            )
            refuse_missing(pretrained, report["missing_keys"])
        except Exception as error:
            raise load_error(pretrained, error) from None
        self._model.eval().to(self._device)
        config = self._model.config
        if pooling is None:
            _refuse_causal(pretrained, config)
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._pooling = pooling or "mean"
        self._prompts: dict[Role, str] = {"query": query_prompt or "", "document": document_prompt or ""}
        limit = positions(self._model)
        if max_length is not None:
            check_length(max_length, self._tokenizer, limit)
        self._max_length = max_length or _finite(min(self._tokenizer.model_max_length, limit))
        self._batch_size = batch_size or (_BATCH_ON_GPU if self._device.startswith("cuda") else _BATCH_ON_CPU)
        self._identity = {
            "backend": f"transformers {version('transformers')}",
            **identity,
            "pooling": self._pooling,
            "query_prompt": self._prompts["query"],
            "document_prompt": self._prompts["document"],
            "max_length": self._max_length,
            "dtype": str(next(self._model.parameters()).dtype).removeprefix("torch."),
            "device_type": self._device.partition(":")[0],
        }

    @property
    def batch_size(self) -> int:
        """Texts a forward pass."""
        return self._batch_size

    def encode(self, texts: Sequence[str], role: Role) -> VectorArray:
        """One vector a text, shape (n, d); where a GPU's memory runs out, again with half the batch."""
        done: list[VectorArray] = []
        start = 0
        while start < len(texts):
            part = texts[start : start + self._batch_size]
            try:
                done.append(self._forward(part, role))
                start += len(part)
            except Exception as error:
                if isinstance(error, ModelError):
                    raise
                if not is_out_of_memory(error):
                    raise failed_on(part, error) from error
                self._batch_size = halved(self._batch_size, part)
        return np.concatenate(done)

    def _forward(self, texts: Sequence[str], role: Role) -> VectorArray:
        torch = self._torch
        inputs = self._tokenizer(
            [self._prompts[role] + text for text in texts],
            padding=True,
            truncation=self._max_length is not None,
            max_length=self._max_length,
            return_tensors="pt",
        ).to(self._device)
        with torch.inference_mode():
            output = self._model(**inputs)
        vectors = output if self._pooling == "none" else self._pooled(output, inputs["attention_mask"])
        if not isinstance(vectors, torch.Tensor) or vectors.ndim != 2:
            shape = tuple(vectors.shape) if isinstance(vectors, torch.Tensor) else type(vectors).__name__
            raise ModelError(
                f"with pooling={self._pooling} the model gives {shape}, expected one vector a text: choose another "
                f"pooling of {', '.join(POOLINGS)}"
            )
        array: VectorArray = vectors.float().cpu().numpy()
        return array

    def _pooled(self, output: Any, mask: Any) -> Any:
        states = getattr(output, "last_hidden_state", None)
        if states is None:
            raise ModelError(
                f"the model's forward pass gives a {type(output).__name__} without token states: use pooling=none for "
                "a model that returns the vector itself"
            )
        if self._pooling == "cls":
            return states[:, 0]
        if self._pooling == "last":
            last = mask.cumsum(dim=1).argmax(dim=1)  # of the text's own tokens, on whichever side the padding is
            return states[self._torch.arange(len(states), device=states.device), last]
        weights = mask.unsqueeze(-1).to(states.dtype)
        return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)

    def cut(self, texts: Sequence[str], role: Role) -> list[bool] | None:
        """Which texts, with their prompt, have more tokens than :attr:`max_length`."""
        if self._max_length is None:
            return [False] * len(texts)
        prompted = [self._prompts[role] + text for text in texts]
        tokens = self._tokenizer(prompted, truncation=False, verbose=False)["input_ids"]
        return [len(ids) > self._max_length for ids in tokens]

    def identity(self) -> dict[str, Any]:
        """The model and every setting that changes a vector."""
        return self._identity

    def close(self) -> None:
        """Nothing to release."""


def _refuse_causal(pretrained: str, config: Any) -> None:
    if is_causal(config):
        raise ModelError(
            f"{pretrained} is a causal language model ({architecture(config)}): run it with --model hf or vllm. If it "
            "was trained to embed, say how: pooling=last or pooling=mean"
        )


def _finite(length: float) -> int | None:
    return int(length) if length < _NO_LIMIT else None
