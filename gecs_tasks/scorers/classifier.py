"""Loading a sequence classifier, and refusing what only looks like one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gecs_tasks.errors import ModelError
from gecs_tasks.scorers.torch_support import architecture, is_causal, load_error, model_identity


class Classifier(NamedTuple):
    """A loaded classifier, its labels in the order of its logits, and what its weights are known by."""

    model: Any
    tokenizer: Any
    labels: tuple[str, ...]
    identity: dict[str, str]


def load_classifier(pretrained: str, revision: str | None, trust_remote_code: bool, dtype: str) -> Classifier:
    """Load a sequence classifier with two labels or one.

    :raises ModelError: where it cannot be loaded, or is something else: a head with random weights is never scored.
    """
    import transformers  # takes seconds to import

    def load(kind: Any, **settings: Any) -> Any:
        return kind.from_pretrained(pretrained, revision=commit, trust_remote_code=trust_remote_code, **settings)

    try:
        identity = model_identity(pretrained, revision)
        commit = identity.get("revision")
        with _quiet(transformers.utils.logging):
            config = load(transformers.AutoConfig)
            _check_classifier(pretrained, commit, config)
            tokenizer = load(transformers.AutoTokenizer)
            model, report = load(
                transformers.AutoModelForSequenceClassification, config=config, dtype=dtype, output_loading_info=True
            )
    except Exception as error:  # the libraries raise errors of a dozen kinds here, and a model's own code any
        raise load_error(pretrained, error) from None
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"{pretrained} is {architecture(config)} without a trained classification head: {len(missing)} of its "
            f"weights are missing ({', '.join(missing[:4])}). Give a fine-tuned classifier, or run an embedding model "
            "with gecs-embedding"
        )
    labels = tuple(str(config.id2label.get(index, f"LABEL_{index}")) for index in range(config.num_labels))
    return Classifier(model, tokenizer, labels, identity)


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Without transformers' own progress bars and reports: what is wrong is said in our error."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _check_classifier(pretrained: str, commit: str | None, config: Any) -> None:
    """Refuse what can be told from the configuration not to be a classifier with two labels or one."""
    modules = _json_file(pretrained, commit, "modules.json")
    saved = _json_file(pretrained, commit, "config_sentence_transformers.json")
    if modules and saved and saved.get("model_type") == "CrossEncoder":
        text = _json_file(pretrained, commit, "sentence_bert_config.json") or {}
        task = text.get("transformer_task", "sequence-classification")
        if len(modules) > 1 or task != "sequence-classification" or "message" in text.get("modality_config", {}):
            names = ", ".join(module["type"].rpartition(".")[2] for module in modules)
            raise ModelError(
                f"{pretrained} is a CrossEncoder of {names} for {task}: expected one that is a sequence classifier"
            )
        if saved.get("default_prompt_name"):
            raise ModelError(f"{pretrained} is a CrossEncoder with a prompt: expected one without")
    if is_causal(config):
        raise ModelError(
            f"{pretrained} is a causal language model ({architecture(config)}): expected a sequence classifier. Run "
            "it with --model hf or vllm"
        )
    if config.num_labels not in (1, 2):
        raise ModelError(
            f"{pretrained} has {config.num_labels} labels ({', '.join(map(str, config.id2label.values()))}): expected "
            "two, no match and match, or one"
        )


def _json_file(pretrained: str, commit: str | None, name: str) -> Any:
    """A file of the model, or None where it has none of this name."""
    from transformers.utils import cached_file

    try:
        return json.loads(Path(cached_file(pretrained, name, revision=commit)).read_text(encoding="utf-8"))
    except OSError:
        return None
