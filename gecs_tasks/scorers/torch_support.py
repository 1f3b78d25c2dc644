"""What every backend on torch needs: devices, number types, memory that runs out, and what a model's weights are."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from gecs_tasks.errors import EncodingError, GecsError, ModelError, SettingError

logger = logging.getLogger(__name__)

DTYPES: Final = ("auto", "float32", "float16", "bfloat16")
_SPELLINGS: Final = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_MISSING: Final = re.compile(r"^([\w.{}, -]+?)\s*\|\s*MISSING\b", re.MULTILINE)
# What stands in a model's folder without changing a score: other formats, documents, what training left behind.
_OTHER_FOLDERS: Final = ("onnx", "openvino", "coreml", "runs", "checkpoint-")
_OTHER_FILES: Final = (
    *(".h5", ".msgpack", ".onnx", ".onnx_data", ".ot", ".tflite", ".md", ".log"),
    *("optimizer.pt", "scheduler.pt", "training_args.bin", "trainer_state.json"),
)


def pick_device(asked: str | int | None) -> str:
    """The device to use: the one asked for (a number is a GPU's), else the first GPU, else the CPU.

    On several ranks each takes its own GPU.

    :raises SettingError: where the device asked for does not exist here.
    """
    import os

    import torch  # seconds to import

    if asked is None:
        if torch.cuda.is_available():
            return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    if isinstance(asked, int) and not isinstance(asked, bool):
        asked = f"cuda:{asked}"
    try:
        torch.ones(1, device=asked).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise SettingError(f"device is {asked!r}, which this machine does not have ({reason})") from None
    return str(asked)


def check_dtype(dtype: str) -> str:
    """The number type, one of :data:`DTYPES`, from any of its usual spellings.

    :raises SettingError: for another.
    """
    dtype = str(dtype).removeprefix("torch.")
    dtype = _SPELLINGS.get(dtype, dtype)
    if dtype not in DTYPES:
        raise SettingError(f"dtype is {dtype!r}: expected one of {', '.join(DTYPES)}")
    return dtype


def check_length(max_length: int, tokenizer: Any, limit: float) -> None:
    """Refuse a maximum length that the model has no positions for, or that leaves room for special tokens alone.

    :raises SettingError: saying what is possible.
    """
    count = getattr(tokenizer, "num_special_tokens_to_add", None)
    least = (count() if callable(count) else 0) + 1
    if max_length > limit:
        raise SettingError(f"max_length is {max_length}, and the model has {limit} positions: give at most that")
    if max_length < least:
        raise SettingError(f"max_length is {max_length}, which special tokens fill: give at least {least}")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an exception says that a device's memory ran out."""
    import torch  # loaded already where such an error comes from

    return isinstance(error, torch.OutOfMemoryError)


def refuse_missing(pretrained: str, missing: Iterable[str]) -> None:
    """Refuse a model some of whose weights its files do not hold: they would be random. An unused pooler may be.

    :raises ModelError: naming some of the weights.
    """
    names = sorted(name for name in missing if "pooler." not in name)
    if names:
        raise ModelError(
            f"{pretrained} lacks {len(names)} of its weights ({', '.join(names[:3])}, ...), which would be random: "
            "give a complete model"
        )


@contextmanager
def missing_weights() -> Iterator[list[str]]:
    """Collect, from transformers' own report, the names of weights that a library's loading finds missing."""
    names: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            names.extend(_MISSING.findall(_COLOUR.sub("", record.getMessage())))

    reporting = logging.getLogger("transformers")
    listener, level = Listener(), reporting.level
    reporting.addHandler(listener)
    reporting.setLevel(min(level or logging.WARNING, logging.WARNING))
    try:
        yield names
    finally:
        reporting.removeHandler(listener)
        reporting.setLevel(level)


def failed_on(texts: Sequence[str], error: Exception) -> EncodingError:
    """One clear line for texts, the longest first, that a model failed on."""
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return EncodingError(
        f"the model failed on {len(texts)} texts, the longest of {len(texts[0])} characters beginning "
        f"{texts[0][:60]!r} ({type(error).__name__}: {reason})"
    )


def halved(batch_size: int, texts: Sequence[str]) -> int:
    """The batch size to go on with where a device's memory ran out.

    :raises EncodingError: where a single text was too much.
    """
    if batch_size == 1:
        raise EncodingError(
            f"one text of {len(texts[0])} characters, beginning {texts[0][:60]!r}, does not fit into the device's "
            "memory: set a smaller max_length"
        )
    logger.warning("the device's memory ran out: going on with batches of %d texts", batch_size // 2)
    return batch_size // 2


def load_error(pretrained: str, error: Exception) -> GecsError:
    """One clear line for a model that cannot be loaded, from whatever its library raised."""
    if isinstance(error, GecsError):
        return error
    text = " ".join(str(error).split()) or type(error).__name__
    if "trust_remote_code" in text:
        return ModelError(
            f"{pretrained} brings Python code of its own, which is not run unasked: read it, and pass "
            "trust_remote_code=True if you trust it"
        )
    if isinstance(error, ModuleNotFoundError):
        return ModelError(
            f"{pretrained} needs the package {error.name}, which is not installed: pip install {error.name}"
        )
    shown = text if len(text) <= 300 else f"{text[:300]}..."
    return ModelError(
        f"{pretrained} cannot be loaded ({type(error).__name__}: {shown}). Give a Hugging Face Hub id that can be "
        "reached, or the path of a model's folder"
    )


def architecture(config: Any) -> str:
    """The class that a model was saved from, by its configuration."""
    return str((getattr(config, "architectures", None) or [f"a {config.model_type} model"])[0])


def is_causal(config: Any) -> bool:
    """Whether a model was saved as a causal language model."""
    return architecture(config).endswith(("ForCausalLM", "LMHeadModel"))


def model_identity(pretrained: str, revision: str | None) -> dict[str, str]:
    """What a model's weights, configuration and tokenizer are known by, on any machine.

    A folder: the sha256 of its files' names and contents. A Hub id: the commit that the revision stands for now.

    :raises OSError: where there is neither.
    """
    folder = Path(pretrained)
    if not folder.is_dir():
        from transformers.utils import cached_file, extract_commit_hash

        # not from the configuration object: transformers 5 no longer notes the commit there
        settings = {"revision": revision, "_raise_exceptions_for_missing_entries": False}
        # sentence-transformers models of other kinds have no config.json of their own
        known = cached_file(pretrained, "config.json", **settings) or cached_file(
            pretrained, "modules.json", revision=revision
        )
        commit = extract_commit_hash(known, None)
        return {"model": pretrained, "revision": commit or revision or "main"}
    digest = hashlib.sha256()
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted(files):
        *parents, last = name.split("/")
        if any(part.startswith((".", *_OTHER_FOLDERS)) for part in parents):
            continue
        if last.startswith(".") or last.endswith(_OTHER_FILES):
            continue
        digest.update(f"{len(name.encode())} {name} {files[name].stat().st_size} ".encode())
        with files[name].open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return {"weights_sha256": digest.hexdigest()}


def positions(model: Any) -> float:
    """How many tokens the model has positions for; infinity where there is no such limit."""
    import torch  # takes seconds to import

    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            # RoBERTa and its kin count from the row after the padding's
            return int(module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1))
    limit = getattr(model.config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else math.inf
