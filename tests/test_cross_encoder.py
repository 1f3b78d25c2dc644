"""The cross-encoder scorer, on tiny classifiers with random weights that the tests make."""

from __future__ import annotations

import json
import logging
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gecs_tasks.errors import MissingExtraError, ModelError, SettingError
from gecs_tasks.harness import PairScorerLM
from gecs_tasks.scorers.base import PairBatch
from gecs_tasks.scorers.cross_encoder import CrossEncoderScorer
from gecs_tasks.scorers.pair_inputs import PairInputs, kept_lengths
from gecs_tasks.scorers.torch_support import model_identity
from tests.conftest import Evaluate
from tests.tiny_models import tiny_bert, tiny_gpt2, tiny_roberta_classifier

torch = pytest.importorskip("torch", reason="cross-encoders need torch")
transformers = pytest.importorskip("transformers", reason="cross-encoders need transformers")

QUERIES = ["read a csv file", "plot the mean of a column by group " * 12, "", "fit a linear model"]
CODES = ["def add(a, b): return a + b", "x <- mean(y, na.rm = TRUE) # the mean\n" * 30, "", "lm(y ~ x)", "π = 3"]


@pytest.fixture(scope="module")
def two_labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_roberta_classifier(tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def one_label(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("one"), num_labels=1)


def all_pairs(queries: Sequence[str] = QUERIES, codes: Sequence[str] = CODES) -> PairBatch:
    pairs = np.array([(q, c) for q in range(len(queries)) for c in range(len(codes))], dtype=np.intp)
    return PairBatch(queries, codes, pairs, [codes], np.zeros(len(pairs), dtype=np.intp))


def by_hand(folder: Path, batch: PairBatch, input_ids: Callable[[Any, str, str], list[int]] | None = None) -> Any:
    """Every pair's logits, computed one pair at a time without the scorer, shape (n, labels)."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype="float32").eval()
    rows = []
    for query, code in batch.pairs.tolist():
        if input_ids is None:
            longest = {"truncation": "longest_first", "max_length": min(512, tokenizer.model_max_length)}
            made = tokenizer([batch.queries[query]], [batch.codes[code]], return_tensors="pt", **longest)
        else:
            made = {"input_ids": torch.tensor([input_ids(tokenizer, batch.queries[query], batch.codes[code])])}
        with torch.no_grad():
            rows.append(model(**made).logits[0].double().numpy())
    return np.array(rows)


def paper_ids(tokenizer: Any, query: str, code: str, max_length: int = 512) -> list[int]:
    """<s> comment </s></s> code </s>, cut as CodeBERT's scripts cut it."""
    first = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(query))[:50]
    second = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(code))
    pop_longer(first, second, max_length - 4)
    start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    return [start, *first, end, end, *second, end]


def pop_longer(first: list[int], second: list[int], room: int) -> None:
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class Counted:
    """Counts the scorer's calls of its model, and the pairs of each."""

    def __init__(self, scorer: CrossEncoderScorer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        original = scorer._logits

        def logits(features: dict[str, Any]) -> Any:
            self.sizes.append(len(features["input_ids"]))
            return original(features)

        monkeypatch.setattr(scorer, "_logits", logits)


# Scores.


def test_two_labels_score_the_log_probability(two_labels: Path) -> None:
    batch = all_pairs()
    logits = by_hand(two_labels, batch, paper_ids)
    expected = logits[:, 1] - np.log(np.exp(logits).sum(axis=1))
    scorer = CrossEncoderScorer(str(two_labels))
    scores = scorer.score(batch)
    assert scores == pytest.approx(expected, abs=1e-5)
    assert np.std(scores) > 0.01  # the tiny model does tell the pairs apart
    assert scorer.threshold == math.log(0.5)
    assert (scores > scorer.threshold).tolist() == (logits.argmax(axis=1) == 1).tolist()


def test_one_label_scores_the_logit(one_label: Path) -> None:
    batch = all_pairs()
    scorer = CrossEncoderScorer(str(one_label))
    assert scorer.score(batch) == pytest.approx(by_hand(one_label, batch)[:, 0], abs=1e-5)
    assert scorer.threshold == 0.0


def test_two_labels_in_the_pair_form(two_labels: Path) -> None:
    batch = all_pairs()
    logits = by_hand(two_labels, batch)
    scores = CrossEncoderScorer(str(two_labels), input_form="pair").score(batch)
    assert scores == pytest.approx(logits[:, 1] - np.log(np.exp(logits).sum(axis=1)), abs=1e-5)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_batch_size_and_order_change_nothing(two_labels: Path, size: int) -> None:
    batch = all_pairs()
    expected = CrossEncoderScorer(str(two_labels)).score(batch)
    order = np.random.default_rng(0).permutation(len(batch))
    shuffled = PairBatch(batch.queries, batch.codes, batch.pairs[order], batch.corpora, batch.corpus_ids)
    scores = CrossEncoderScorer(str(two_labels), batch_size=size).score(shuffled)
    assert scores == pytest.approx(expected[order], abs=1e-5)


@pytest.mark.parametrize("padding", ["both have it", "the model has none", "the tokenizer has none", "they differ"])
def test_a_decoder_and_its_padding_token(tmp_path: Path, padding: str) -> None:
    """It reads the last token that is not padding, so a wrong padding token would be a wrong score."""
    batch = all_pairs(codes=["lm(y ~ x)", "def add(a, b): return a + b"], queries=["read a csv file", "fit"])
    folder = tiny_gpt2(tmp_path, num_labels=2)
    pad = {"both have it": 1, "the model has none": None, "the tokenizer has none": None, "they differ": 2}[padding]
    edit_json(folder / "config.json", pad_token_id=pad)
    if padding == "the tokenizer has none":
        edit_json(folder / "tokenizer_config.json", pad_token=None)
    logits = by_hand(folder, batch)
    scores = CrossEncoderScorer(str(folder), input_form="pair").score(batch)
    assert scores == pytest.approx(logits[:, 1] - np.log(np.exp(logits).sum(axis=1)), abs=1e-5)


def test_the_same_as_sentence_transformers(one_label: Path, tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers", reason="compares with sentence-transformers")
    batch = all_pairs()
    pairs = [(batch.queries[query], batch.codes[code]) for query, code in batch.pairs.tolist()]
    st.CrossEncoder(str(one_label)).save_pretrained(str(tmp_path / "saved"))
    for folder in (one_label, tmp_path / "saved"):
        model = st.CrossEncoder(str(folder))
        scores = CrossEncoderScorer(str(folder)).score(batch)
        assert scores == pytest.approx(model.predict(pairs, activation_fn=torch.nn.Identity()), abs=1e-5)
        assert 1 / (1 + np.exp(-scores)) == pytest.approx(model.predict(pairs), abs=1e-5)


def test_a_pair_of_two_collections_is_scored_once(one_label: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = np.array([[0, 0], [0, 1], [0, 0]])
    batch = PairBatch(QUERIES, CODES, pairs, [CODES, CODES], np.array([0, 0, 1]))
    scorer = CrossEncoderScorer(str(one_label))
    counted = Counted(scorer, monkeypatch)
    scores = scorer.score(batch)
    assert scores[0] == scores[2] != scores[1]
    assert counted.sizes == [2]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(two_labels: Path, dtype: str) -> None:
    batch = all_pairs()
    scorer = CrossEncoderScorer(str(two_labels), dtype=dtype)
    scores = scorer.score(batch)
    assert scorer.info()["dtype"] == dtype
    assert scores == pytest.approx(CrossEncoderScorer(str(two_labels)).score(batch), abs=0.3)
    # the logits are coarse, the log-softmax is not: it is of them to double precision
    assert len({score for score in scores.tolist() if np.float32(np.float16(score)) != score}) > 3


def test_nan_logits_are_nan_scores_and_never_cached(two_labels: Path, tmp_path: Path) -> None:
    batch = all_pairs()

    class Broken(CrossEncoderScorer):
        def _logits(self, features: dict[str, Any]) -> Any:
            logits = super()._logits(features)
            logits[features["attention_mask"].sum(axis=1) == 4] = [np.nan, 1.0]  # the empty pair
            return logits

    scores = Broken(str(two_labels), cache_dir=tmp_path).score(batch)
    empty = QUERIES.index("") * len(CODES) + CODES.index("")
    assert np.flatnonzero(np.isnan(scores)).tolist() == [empty]
    again = CrossEncoderScorer(str(two_labels), cache_dir=tmp_path)
    assert not np.isnan(again.score(batch)).any()
    assert again.info()["pairs_scored"] == 1


# The input forms.


@pytest.mark.parametrize(
    ("first", "second", "room", "kept"),
    [
        (3, 4, 7, (3, 4)),  # they fit
        (3, 9, 8, (3, 5)),  # the longer one gives until they fit
        (9, 3, 8, (5, 3)),
        (9, 5, 8, (4, 4)),  # 9 falls to 5, then both in turn, the second first
        (9, 5, 7, (4, 3)),
        (5, 5, 9, (5, 4)),  # equal: the second gives
        (5, 5, 7, (4, 3)),
        (0, 9, 4, (0, 4)),
        (0, 0, 4, (0, 0)),
    ],
)
def test_the_papers_lengths(first: int, second: int, room: int, kept: tuple[int, int]) -> None:
    assert tuple(kept_lengths(np.array([first]), np.array([second]), room)[0].tolist()) == kept


lengths = st.integers(0, 40)


@given(lengths, lengths, st.integers(2, 50))
def test_the_papers_lengths_are_those_of_its_loop(first: int, second: int, room: int) -> None:
    one, two = list(range(first)), list(range(second))
    pop_longer(one, two, room)
    assert kept_lengths(np.array([first]), np.array([second]), room).tolist() == [[len(one), len(two)]]


@given(lengths, lengths, st.integers(2, 50))
def test_the_other_lengths_are_those_of_tokenizers(first: int, second: int, room: int) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="compares with tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.enable_truncation(room, strategy="longest_first")
    ids = words.encode("a " * first, "b " * second).ids
    kept = kept_lengths(np.array([first]), np.array([second]), room, longer_wins=True)
    assert kept.tolist() == [[ids.count(0), ids.count(1)]]


def rows_of(folder: Path, paper: bool, query: str, code: str, max_length: int, **settings: Any) -> dict[str, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **settings)
    inputs = PairInputs(tokenizer, paper, 3 if paper else 0, max_length, 512)
    batch = all_pairs([query], [code])
    made = inputs.padded(inputs.prepare(batch, batch.pairs), np.array([0]))
    return {key: rows[0].tolist() for key, rows in made.items()}


def test_the_papers_form_by_hand(two_labels: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(two_labels)
    letters = dict(zip("abcdefgxyz", tokenizer.convert_tokens_to_ids(list("abcdefgxyz")), strict=True))
    assert tokenizer.tokenize("xyzxy") == list("xyzxy")  # no merges: a token a letter
    assert tokenizer.tokenize("xgzgxgzgx") == list("xgzgxgzgx")
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id

    def expected(comment: str, code: str) -> list[int]:
        ids = {**letters, "<": start, "/": end}
        return [ids[symbol] for symbol in f"<{comment}//{code}/"]

    def made(comment: str, code: str, max_length: int) -> list[int]:
        row = rows_of(two_labels, True, comment, code, max_length)
        assert "token_type_ids" not in row
        return list(row["input_ids"])

    # a comment keeps 3 tokens here
    assert made("xy", "xgz", 20) == expected("xy", "xgz")
    assert made("xyzxy", "xgzgxgzgx", 20) == expected("xyz", "xgzgxgzgx")
    assert made("xyzxy", "xgzgxgzgx", 12) == expected("xyz", "xgzgx")  # 8 tokens are left: the code gives 4
    assert made("xyzxy", "xgzgxgzgx", 9) == expected("xyz", "xg")  # 5 left: 3 and 3, then the code gives one more
    assert made("", "xgz", 9) == expected("", "xgz")
    assert made("", "", 9) == expected("", "")


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_pair_form_is_the_tokenizers_own(one_label: Path, two_labels: Path, side: str) -> None:
    for folder in (one_label, two_labels):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, truncation_side=side)
        for query in QUERIES:
            for code in CODES:
                for length in (11, 12, 60):
                    own = tokenizer([query], [code], truncation="longest_first", max_length=length)
                    row = rows_of(folder, False, query, code, length, truncation_side=side)
                    assert row == {key: own[key][0] for key in row}


def test_padding_on_the_left(one_label: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(one_label, padding_side="left")
    inputs = PairInputs(tokenizer, False, 0, 64, 64)
    batch = all_pairs(["read"], ["", "lm(y ~ x)"])
    own = tokenizer(["read"] * 2, list(batch.codes), padding=True)
    made = inputs.padded(inputs.prepare(batch, batch.pairs), np.arange(2))
    assert {key: rows.tolist() for key, rows in made.items()} == {key: own[key] for key in made}


def test_half_a_surrogate_pair_is_a_question_mark(one_label: Path) -> None:
    scorer = CrossEncoderScorer(str(one_label))
    scores = scorer.score(all_pairs(["read \ud800", "read ?"], ["lm(y ~ x)"]))
    assert scores[0] == scores[1]


def test_a_tokenizer_with_pairs_of_its_own_is_refused(one_label: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(one_label)

    class Reversed:
        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def __call__(self, first: list[str], second: list[str] | None = None, **settings: Any) -> Any:
            return tokenizer(first, **settings) if second is None else tokenizer(second, first, **settings)

    with pytest.raises(ModelError, match="does not build a pair as one text's tokens, then the other's"):
        PairInputs(Reversed(), True, 50, 64, 64)


def test_cut_pairs_are_counted_and_the_length_is_a_setting(one_label: Path, two_labels: Path) -> None:
    scorer = CrossEncoderScorer(str(one_label))
    scorer.score(all_pairs(["read a csv file", "plot the mean " * 40], ["lm(y ~ x)", "x " * 70]))
    assert (scorer.info()["max_length"], scorer.info()["pairs_cut"]) == (64, 3)
    paper = CrossEncoderScorer(str(two_labels), max_length=100)
    paper.score(all_pairs(["read a csv file", "z" * 70], ["z" * 46, "z" * 47]))  # comment of 50, four special tokens
    assert (paper.info()["max_length"], paper.info()["comment_tokens"], paper.info()["pairs_cut"]) == (100, 50, 1)
    whole = CrossEncoderScorer(str(two_labels), comment_tokens=0)
    assert whole.score(all_pairs(["z" * 70], ["x"])) != paper.score(all_pairs(["z" * 70], ["x"]))


# Which label is the match.


@pytest.mark.parametrize(
    ("names", "wanted", "positive"),
    [
        (None, None, 1),
        (None, 0, 0),
        (None, "LABEL_0", 0),
        (None, "0", 0),
        (("entailment", "not_entailment"), None, 0),
        (("no", "Match"), None, 1),
        (("no", "Match"), "no", 0),
        (("true", "match"), None, 1),  # both could be meant: the second
    ],
)
def test_positive_label(
    two_labels: Path, tmp_path: Path, names: tuple[str, str] | None, wanted: Any, positive: int
) -> None:
    folder = shutil.copytree(two_labels, tmp_path / "model")
    if names:
        label2id = {name: index for index, name in enumerate(names)}
        edit_json(folder / "config.json", id2label=dict(enumerate(names)), label2id=label2id)
    batch = all_pairs(["read a csv file"], CODES[3:])
    logits = by_hand(folder, batch, paper_ids)
    scorer = CrossEncoderScorer(str(folder), positive_label=wanted)
    assert scorer.score(batch) == pytest.approx(logits[:, positive] - np.log(np.exp(logits).sum(axis=1)), abs=1e-5)
    assert scorer.info()["positive_label"] == (names or ("LABEL_0", "LABEL_1"))[positive]


@pytest.mark.parametrize("wanted", ["Match", 2, -1, True, 0.5])
def test_an_unknown_positive_label(two_labels: Path, wanted: Any) -> None:
    with pytest.raises(
        SettingError, match=r"positive_label is .*: expected one of .* labels, 0 \(LABEL_0\), 1 \(LABEL_1\)"
    ):
        CrossEncoderScorer(str(two_labels), positive_label=wanted)


# Through the harness.


def test_matching_in_the_harness_is_the_classifiers_own_decision(evaluate: Evaluate, two_labels: Path) -> None:
    from gecs_tasks.collection import load

    demo, limit = load("demo"), 24  # a document a pair, a row's own code and its negative in turn
    results = evaluate(PairScorerLM(CrossEncoderScorer(str(two_labels))), "gecs_demo_match", limit=limit)
    pairs = np.array([(row, code) for row in range(limit // 2) for code in (row, demo.negatives[row])])
    batch = PairBatch(demo.queries, demo.codes, pairs, [demo.codes], np.zeros(len(pairs), dtype=np.intp))
    decided = by_hand(two_labels, batch, paper_ids).argmax(axis=1) == 1
    accuracy = (decided == np.tile([True, False], limit // 2)).mean()
    assert results["results"]["gecs_demo_match"]["acc,none"] == pytest.approx(accuracy)
    recorded = results["config"]["gecs_scorer"]
    json.dumps(recorded)
    assert recorded["threshold"] == math.log(0.5)
    assert recorded["pairs_scored"] == limit
    assert recorded["weights_sha256"] == model_identity(str(two_labels), None)["weights_sha256"]
    assert set(recorded) >= {"model", "backend", "labels", "positive_label", "input_form", "dtype", "device"}


def test_ranking_in_the_harness(evaluate: Evaluate, one_label: Path) -> None:
    results = evaluate(PairScorerLM(CrossEncoderScorer(str(one_label), progress=False)), "gecs_demo_rank", limit=2)
    assert 0 < results["results"]["gecs_demo_rank"]["mrr,none"] <= 1
    assert results["config"]["gecs_scorer"]["pairs_scored"] == 200


# The cache.


def test_a_second_run_calls_the_model_never(
    two_labels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = all_pairs()
    first = CrossEncoderScorer(str(two_labels), cache_dir=tmp_path, max_length=100)
    expected = first.score(batch)
    first.close()
    second = CrossEncoderScorer(str(two_labels), cache_dir=tmp_path, max_length=100, batch_size=2)
    counted = Counted(second, monkeypatch)
    with caplog.at_level(logging.INFO):
        assert second.score(batch).tolist() == expected.tolist()
    assert counted.sizes == []
    assert f"0 pairs to score, {len(batch)} from the cache" in caplog.text
    same = ("pairs_cut", "weights_sha256", "max_length")
    assert [second.info()[key] for key in same] == [first.info()[key] for key in same]
    assert (second.info()["pairs_scored"], second.info()["pairs_from_cache"]) == (0, len(batch))
    # what the logits mean is no part of the key; what changes them is
    other = CrossEncoderScorer(str(two_labels), cache_dir=tmp_path, max_length=100, positive_label=0)
    assert np.exp(other.score(batch)) == pytest.approx(1 - np.exp(expected))
    assert other.info()["pairs_scored"] == 0
    for settings in ({"max_length": 99}, {"input_form": "pair"}, {"comment_tokens": 7}, {"dtype": "bfloat16"}):
        changed = CrossEncoderScorer(str(two_labels), cache_dir=tmp_path, **{"max_length": 100, **settings})  # type: ignore[arg-type]
        changed.score(batch)
        assert changed.info()["pairs_scored"] == len(batch)


def test_only_the_first_rank_shows_progress(one_label: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Second:
        rank, size = 1, 2

        def gather(self, value: Any) -> list[Any]:
            return [value, value]  # as if the first had done as much

    scorer = CrossEncoderScorer(str(one_label), progress=True)
    scorer.group = Second()
    scorer.score(all_pairs())
    assert "pairs/s" not in capfd.readouterr().err
    assert scorer.info()["pairs_scored"] == 2 * len(all_pairs())  # the record is of all ranks


def test_what_was_scored_before_a_crash_is_kept(
    two_labels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = all_pairs()
    scorer = CrossEncoderScorer(str(two_labels), cache_dir=tmp_path, batch_size=3)
    original, calls = scorer._logits, []

    def dies(features: dict[str, Any]) -> Any:
        calls.append(len(features["input_ids"]))
        if len(calls) == 5:
            raise KeyboardInterrupt
        return original(features)

    monkeypatch.setattr(scorer, "_logits", dies)
    with pytest.raises(KeyboardInterrupt):
        scorer.score(batch)
    resumed = CrossEncoderScorer(str(two_labels), cache_dir=tmp_path, batch_size=3)
    assert resumed.score(batch) == pytest.approx(CrossEncoderScorer(str(two_labels)).score(batch), abs=1e-5)
    assert resumed.info()["pairs_from_cache"] == 12


# What a model is known by.


def test_a_folder_is_known_by_what_changes_its_scores(two_labels: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(two_labels, tmp_path / "elsewhere")
    identity = model_identity(str(folder), None)
    assert identity == model_identity(str(two_labels), None)
    for name in (".lock", "README.md", "onnx/model.onnx", "tf_model.h5", "checkpoint-9/model.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    assert model_identity(str(folder), None) == identity
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert model_identity(str(folder), None) != identity


def test_a_hub_model_is_known_by_its_commit(one_label: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    stored = tmp_path / "hub" / "models--someone--tiny"
    shutil.copytree(one_label, stored / "snapshots" / commit)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(commit)
    script = (
        "from gecs_tasks.scorers.cross_encoder import CrossEncoderScorer\n"
        "import json; print(json.dumps(CrossEncoderScorer('someone/tiny').info()))"
    )
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))  # read when the library is imported
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    info = json.loads(done.stdout)
    assert (info["model"], info["revision"]) == ("someone/tiny", commit)
    assert "weights_sha256" not in info


# Batches and progress.


def test_batches_are_by_length_and_halve_when_memory_runs_out(
    two_labels: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = all_pairs()
    expected = CrossEncoderScorer(str(two_labels)).score(batch)
    scorer = CrossEncoderScorer(str(two_labels), batch_size=8)
    original, widths = scorer._logits, []

    def small_memory(features: dict[str, Any]) -> Any:
        if features["input_ids"].size > 1000:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        widths.append(features["input_ids"].shape[1])
        return original(features)

    monkeypatch.setattr(scorer, "_logits", small_memory)
    assert scorer.score(batch) == pytest.approx(expected, abs=1e-5)
    assert widths == sorted(widths, reverse=True)
    assert "GPU memory ran out with 8 pairs" in caplog.text

    monkeypatch.setattr(scorer, "_logits", lambda features: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError("no")))
    with pytest.raises(ModelError, match=r"memory does not hold a single pair .* smaller max_length"):
        scorer.score(batch)


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (None, False), (False, False)])
def test_the_progress_bar(
    one_label: Path, capfd: pytest.CaptureFixture[str], progress: bool | None, shown: bool
) -> None:
    CrossEncoderScorer(str(one_label), progress=progress).score(all_pairs())
    captured = capfd.readouterr()
    assert ("pairs/s" in captured.err) == shown
    assert shown or captured.err == ""
    assert captured.out == ""


# Models and settings that cannot be used.


def test_a_wrong_number_of_labels(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has 3 labels \(LABEL_0, LABEL_1, LABEL_2\): expected two, .* or one"):
        CrossEncoderScorer(str(tiny_bert(tmp_path, num_labels=3)))


def test_an_encoder_without_a_head(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tiny_bert(tmp_path)
    capfd.readouterr()
    with pytest.raises(ModelError, match=r"BertModel without a trained classification head: .*classifier\.weight"):
        CrossEncoderScorer(str(folder))
    assert capfd.readouterr().err == ""


def test_a_causal_language_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is a causal language model \(GPT2LMHeadModel\): expected a sequence class"):
        CrossEncoderScorer(str(tiny_gpt2(tmp_path)))


def test_a_cross_encoder_that_is_more_than_a_classifier(one_label: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(one_label, tmp_path / "model")
    modules = [{"type": "sentence_transformers.base.modules.transformer.Transformer"}, {"type": "x.y.LogitScore"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text('{"model_type": "CrossEncoder"}')
    (folder / "sentence_bert_config.json").write_text('{"transformer_task": "text-generation"}')
    with pytest.raises(ModelError, match="a CrossEncoder of Transformer, LogitScore for text-generation"):
        CrossEncoderScorer(str(folder))
    (folder / "modules.json").write_text(json.dumps(modules[:1]))
    (folder / "config_sentence_transformers.json").write_text(
        '{"model_type": "CrossEncoder", "default_prompt_name": "q"}'
    )
    (folder / "sentence_bert_config.json").unlink()
    with pytest.raises(ModelError, match="a CrossEncoder with a prompt"):
        CrossEncoderScorer(str(folder))


@pytest.mark.parametrize("name", ["/no/such/folder", "someone/nothing"])
def test_no_such_model(name: str) -> None:
    with pytest.raises(
        ModelError, match=rf"{name} cannot be loaded \(OSError: .*Give a Hugging Face Hub id that can be reached"
    ):
        CrossEncoderScorer(name)


def test_damaged_weights(two_labels: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(two_labels, tmp_path / "model")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"cannot be loaded \(SafetensorError: "):
        CrossEncoderScorer(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"cannot be loaded \(OSError: .*model\.safetensors"):
        CrossEncoderScorer(str(folder))


def test_a_model_with_code_of_its_own(two_labels: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(two_labels, tmp_path / "model")
    code = {"AutoConfig": "own.OwnConfig", "AutoModelForSequenceClassification": "own.OwnModel"}
    edit_json(folder / "config.json", model_type="own", auto_map=code)
    (folder / "own.py").write_text("raise SystemExit('code of a model that nobody trusts was run')")
    with pytest.raises(ModelError, match="pass trust_remote_code=True if you trust it"):
        CrossEncoderScorer(str(folder))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "dtype is 'int8': expected one of auto, float32, float16, bfloat16"),
        ({"input_form": "mine"}, "input_form is 'mine': expected one of paper, pair"),
        ({"batch_size": 0}, "batch_size is 0: expected a whole number of at least 1 or auto"),
        ({"batch_size": "many"}, "batch_size is 'many'"),
        ({"max_length": 2.5}, r"max_length is 2\.5"),
        ({"max_length": 5}, "max_length is 5: expected 6 to 512, the model's limit"),
        ({"max_length": 513}, "max_length is 513: expected 6 to 512, the model's limit"),
        ({"comment_tokens": -1}, "comment_tokens is -1: expected a whole number of at least 0 or 0 for all"),
        ({"device": "abacus"}, "device is 'abacus'"),
    ],
)
def test_a_bad_setting(two_labels: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        CrossEncoderScorer(str(two_labels), **settings)


def test_transformers_are_missing(two_labels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r'needs transformers, .*: pip install "gecs-tasks\[cross-encoder\]"'):
        CrossEncoderScorer(str(two_labels))


def test_importing_the_module_loads_nothing_heavy() -> None:
    script = "import gecs_tasks.scorers.cross_encoder, sys; print({'torch', 'transformers', 'tqdm'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "set()\n"
