"""Subsets rebuilt from raw rows, in memory and through the datasets library from folders in the Hub's form."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gecs_tasks.benchmark import SUBSETS, HubSource, Subset
from gecs_tasks.errors import DataError, FetchError
from gecs_tasks.sources import hub
from gecs_tasks.sources.fetch import cached, fetch

LINES = [
    '{"input": "Größe x [CODESPLIT] f ( )", "target": 1, "target_options": ["no_match", "match"]}',
    '{"input": " [CODESPLIT] g", "target": 1, "target_options": ["no_match", "match"]}',
]


@pytest.mark.parametrize(
    ("layout", "rows"),
    [
        (
            "codesearchnet",
            [
                {"func_documentation_tokens": ["Größe", "x"], "func_code_tokens": ["f", "(", ")"], "language": "ruby"},
                {"func_documentation_tokens": [], "func_code_tokens": ["g"]},
            ],
        ),
        (
            "advtest",
            [
                {"docstring_tokens": ["Größe", "x"], "function_tokens": ["f", "(", ")"], "function": "no"},
                {"docstring_tokens": [], "code_tokens": ["g"], "code": "no"},
            ],
        ),
        (
            "cosqa",
            [
                {"doc": "no", "docstring_tokens": "Größe x", "code_tokens": "f ( )", "label": 0},
                {"doc": "no", "docstring_tokens": "matching", "code_tokens": "dropped", "label": 1},
                {"doc": "no", "docstring_tokens": [], "code_tokens": ["g"], "label": 0},
            ],
        ),
        ("statcodesearch", [{"Comment": "Größe x", "Code": "f ( )"}, {"Comment": "", "Code": "g"}]),
    ],
)
def test_rebuild_follows_each_layout(layout: hub.Layout, rows: list[dict[str, object]]) -> None:
    assert list(hub.rebuild(rows, layout)) == LINES


@pytest.mark.parametrize("comment", ["a", " a", " a "])
def test_rebuild_restores_lost_outer_spaces(comment: str) -> None:
    rows = [{"Comment": comment, "Code": " b "}] * 610
    inputs = [json.loads(line)["input"] for line in hub.rebuild(rows, "statcodesearch")]
    assert inputs[128] == " a  [CODESPLIT]  b "
    assert inputs[608] == " a [CODESPLIT]  b "
    assert {inputs[number] for number in range(610) if number not in (128, 608)} == {f"{comment} [CODESPLIT]  b "}


def test_rebuild_streams() -> None:
    def rows() -> Iterator[dict[str, str]]:
        yield {"Comment": "a", "Code": "b"}
        raise AssertionError("the second row was asked for before the first was taken")

    assert json.loads(next(hub.rebuild(rows(), "statcodesearch")))["input"] == "a [CODESPLIT] b"


@pytest.mark.parametrize(
    ("layout", "row", "message"),
    [
        (
            "advtest",
            {"docstring_tokens": ["a"], "code": "f()"},
            "raw row 0 (from 0) lacks column function_tokens or code_tokens; found columns code, docstring_tokens; "
            "expected docstring_tokens, function_tokens or code_tokens",
        ),
        (
            "cosqa",
            {"docstring_tokens": "a", "code_tokens": "f"},
            "raw row 0 (from 0) lacks column label; found columns code_tokens, docstring_tokens; "
            "expected docstring_tokens, code_tokens, label",
        ),
        (
            "statcodesearch",
            {"Comment": None, "Code": "f"},
            "raw row 0 (from 0) lacks column Comment; found columns Code; expected Comment, Code",
        ),
        (
            "statcodesearch",
            {"Comment": ["a"], "Code": "f"},
            "raw row 0 (from 0) holds a list in column Comment; expected a text",
        ),
        (
            "codesearchnet",
            {"func_documentation_tokens": [1], "func_code_tokens": []},
            "raw row 0 (from 0) holds a list in column func_documentation_tokens; expected a text or a list of tokens",
        ),
    ],
)
def test_rebuild_names_a_missing_column(layout: hub.Layout, row: dict[str, object], message: str) -> None:
    with pytest.raises(DataError) as caught:
        list(hub.rebuild([row], layout))
    assert str(caught.value) == message


def folder_of(folder: Path, name: str, content: object) -> str:
    folder.mkdir(parents=True)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return str(folder)


def from_hub(rows: int, source: HubSource) -> Subset:
    """A subset that only the Hub has, so that no test here asks Zenodo."""
    return Subset("few", "Few", "test_few.jsonl", "R", (rows,), (), hub=source, released=False)


def test_a_local_folder_does_not_pass_for_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path / "someone" / "rows", "test.json", [{"Comment": "a", "Code": "b"}])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FetchError, match="a folder someone/rows in the working directory hides the repository"):
        fetch(from_hub(1, HubSource("someone/rows", "statcodesearch", None, "test")))


def test_a_subset_without_a_source_says_so() -> None:
    with pytest.raises(FetchError, match=r"no source is known for demo\.jsonl \(subset demo\).* Set GECS_DATA_DIR to"):
        fetch(SUBSETS["demo"])


def test_importing_the_module_loads_nothing_heavy() -> None:
    code = "import sys, gecs_tasks.sources.fetch; print({'datasets', 'pooch', 'requests'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.fixture
def raw(real_data: Path) -> Path:
    """The raw sources, which stand beside the real benchmark files."""
    folder = real_data.parent / "raw"
    if not folder.is_dir():
        pytest.skip("needs the raw sources: a folder raw beside GECS_DATA_DIR")
    return folder


def test_statcode_from_the_hubs_file_is_the_released_file(raw: Path, real_data: Path, tmp_path: Path) -> None:
    repo = folder_of(tmp_path / "hub", "test.json", json.loads((raw / "statcodesearch.json").read_text("utf-8")))
    source = HubSource(repo, "statcodesearch", None, "test")
    subset = dataclasses.replace(SUBSETS["statcode"], released=False, hub=source)
    fetched = fetch(subset)
    assert fetched.origin == f"Hugging Face Hub {repo} (sha256 verified)"
    assert fetched.path.read_bytes() == (real_data / "test_statcodesearch.jsonl").read_bytes()
    assert cached(subset) == fetched


@pytest.mark.parametrize(("name", "released"), [("test", "test_adv.jsonl"), ("train", "train_adv.jsonl")])
def test_advtest_from_raw_rows_is_the_released_sample(raw: Path, real_data: Path, name: str, released: str) -> None:
    text = (raw / f"advtest_{name}_sample.jsonl").read_text("utf-8")
    lines = hub.rebuild((json.loads(line) for line in text.split("\n") if line), "advtest")
    assert "".join(f"{line}\n" for line in lines) == (real_data / released).read_text("utf-8")


def test_cosqa_keeps_the_rows_with_label_0(raw: Path, tmp_path: Path) -> None:
    rows = json.loads((raw / "cosqa-dev.json").read_text("utf-8"))
    kept = [row for row in rows if row["label"] == 0]
    assert 0 < len(kept) < len(rows) == 604
    source = HubSource(folder_of(tmp_path / "hub", "cosqa-train.json", rows), "cosqa", None, "train")
    fetched = fetch(from_hub(len(kept), source))
    inputs = [json.loads(line)["input"] for line in fetched.path.read_text("utf-8").split("\n") if line]
    assert inputs == [f"{row['docstring_tokens']} [CODESPLIT] {row['code_tokens']}" for row in kept]
