"""Tiny models with random weights from a seed and a real tokenizer, saved as any model is: they load offline."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

LINES = (
    "read a csv file into a data frame",
    "plot the mean of a column by group",
    "def add(a, b): return a + b",
    "for (i in seq_along(x)) { y[i] <- mean(x[[i]], na.rm = TRUE) }",
    "fit a linear model and print its summary, residuals and coefficients",
    "data <- read.csv('file.csv'); model <- lm(y ~ x, data = data); summary(model)",
)


def tiny_bert(folder: Path, num_labels: int | None = None, max_length: int = 64, **config: Any) -> Path:
    """Save a BERT to ``folder``: an encoder, or with ``num_labels`` a classifier. Positions: ``max_length``."""
    import torch
    import transformers
    from tokenizers import BertWordPieceTokenizer

    words = BertWordPieceTokenizer()
    words.train_from_iterator(LINES, vocab_size=300, min_frequency=1, show_progress=False)
    tokenizer = transformers.BertTokenizerFast(vocab=words.get_vocab(), model_max_length=max_length)
    labels = {} if num_labels is None else {"num_labels": num_labels}
    settings = transformers.BertConfig(
        **{**_sizes(len(tokenizer)), "max_position_embeddings": max_length, **labels, **config}
    )
    kind = transformers.BertModel if num_labels is None else transformers.BertForSequenceClassification
    torch.manual_seed(0)
    return _save(kind(settings), tokenizer, folder)


def tiny_roberta_classifier(folder: Path, num_labels: int = 2, max_length: int = 512, **config: Any) -> Path:
    """Save a RoBERTa with a classification head to ``folder``, for texts of up to ``max_length`` tokens."""
    import torch
    import transformers

    tokenizer = _roberta_tokenizer(max_length)
    settings = transformers.RobertaConfig(
        **{
            **_sizes(len(tokenizer)),
            "max_position_embeddings": max_length + 2,  # RoBERTa counts positions from 2
            "type_vocab_size": 1,
            "num_labels": num_labels,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            **config,
        }
    )
    torch.manual_seed(0)
    return _save(transformers.RobertaForSequenceClassification(settings), tokenizer, folder)


def tiny_gpt2(folder: Path, num_labels: int | None = None) -> Path:
    """Save a GPT-2 to ``folder``: a causal language model, or with ``num_labels`` a classifier without a pad token."""
    import torch
    import transformers

    tokenizer = _roberta_tokenizer(64)
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64, "initializer_range": 0.3}
    labels = {} if num_labels is None else {"num_labels": num_labels}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    settings = transformers.GPT2Config(vocab_size=len(tokenizer), **ends, **sizes, **labels)
    kind = transformers.GPT2LMHeadModel if num_labels is None else transformers.GPT2ForSequenceClassification
    torch.manual_seed(0)
    return _save(kind(settings), tokenizer, folder)


def tiny_causal(folder: Path, corpus: Iterable[str], *, chat: bool = True, max_length: int = 2048) -> Path:
    """Save a Qwen2 of random weights to ``folder``, its tokenizer trained on the corpus, with a chat template or none.

    Its heads are wide enough for vLLM's kernels.
    """
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=["<end>"], initial_alphabet=alphabet)
    pieces.train_from_iterator(corpus, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=pieces, eos_token="<end>", pad_token="<end>", model_max_length=max_length
    )
    if chat:
        tokenizer.chat_template = (
            "{% for turn in messages %}[{{ turn.role }}] {{ turn.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}"
        )
    settings = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    return _save(transformers.Qwen2ForCausalLM(settings), tokenizer, folder)


def _roberta_tokenizer(max_length: int) -> Any:
    import json
    import tempfile

    import transformers
    from tokenizers import ByteLevelBPETokenizer

    pieces = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces.train_from_iterator(LINES, vocab_size=330, min_frequency=2, special_tokens=specials, show_progress=False)
    with tempfile.TemporaryDirectory() as folder:
        pieces.save_model(folder)
        vocab = json.loads((Path(folder) / "vocab.json").read_text(encoding="utf-8"))
        merges = (Path(folder) / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
    pairs = [tuple(merge.split()) for merge in merges]
    return transformers.RobertaTokenizerFast(vocab=vocab, merges=pairs, model_max_length=max_length)


def _sizes(vocab_size: int) -> dict[str, Any]:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 37}
    return {"vocab_size": vocab_size, "initializer_range": 0.3, **sizes}  # wide enough for scores that differ


def _save(model: Any, tokenizer: Any, folder: Path) -> Path:
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
