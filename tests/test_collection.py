from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import numpy as np
import pytest

from gecs_tasks.benchmark import RELEASED, SUBSETS
from gecs_tasks.collection import load
from gecs_tasks.errors import DataError, SettingError


def write_rows(folder: Path, filename: str, pairs: list[tuple[str, str]]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / filename
    path.write_text("".join(json.dumps({"input": f"{q} [CODESPLIT] {c}", "target": 1}) + "\n" for q, c in pairs))
    return path


def test_the_demo_set() -> None:
    demo = load("demo")
    assert len(demo) == SUBSETS["demo"].rows[0] >= 120
    assert demo.fingerprint.status == "demo"
    assert not demo.fingerprint.comparable
    assert len(set(demo.queries)) == len(demo.distinct_queries) == len(demo)
    assert len(set(demo.codes)) == len(demo.distinct_codes) == len(demo)
    content = (Path(__file__).parent.parent / "gecs_tasks/data/demo.jsonl").read_text(encoding="utf-8")
    assert {json.loads(line)["license"] for line in content.splitlines()} == {"CC0-1.0"}


def test_a_sample_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_rows(tmp_path / "data", "test_ruby.jsonl", [(f"comment {i}", f"code {i}") for i in range(120)])
    monkeypatch.setenv("GECS_DATA_DIR", str(path.parent))
    with caplog.at_level(logging.WARNING):
        ruby = load("ruby")
    found = ruby.fingerprint
    assert (found.status, found.rows, found.origin) == ("sample", 120, "GECS_DATA_DIR")
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert not found.comparable
    assert "found 120 rows" in caplog.text
    assert "expected 2,279 rows" in caplog.text


@pytest.mark.parametrize(
    ("subset", "rows", "status"),
    [
        ("ruby", 2279, "unverified"),  # the right number of rows, a digest that nobody knows
        ("ruby", 2280, "changed"),
        ("php", 28391, "unverified"),  # the Hub's count
        ("php", 29391, "unverified"),  # the paper's count
        ("php", 29000, "changed"),
        ("statcode", 1070, "changed"),  # the right number of rows, but not the released digest
        ("statcode", 1069, "sample"),
    ],
)
def test_status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, subset: str, rows: int, status: str) -> None:
    write_rows(tmp_path / "data", SUBSETS[subset].filename, [(f"q{i}", f"c{i}") for i in range(rows)])
    monkeypatch.setenv("GECS_DATA_DIR", str(tmp_path / "data"))
    fingerprint = load(subset).fingerprint
    assert fingerprint.status == status
    assert fingerprint.comparable == (status == "unverified")


def test_the_real_statcode_is_official(real_data: Path) -> None:
    statcode = load("statcode")
    assert statcode.fingerprint.status == "official"
    assert len(statcode) == 1070
    assert sum(query.startswith(" ") for query in statcode.queries) == 152
    assert sum(code.endswith(" ") for code in statcode.codes) == 679


def test_texts_are_shared_and_numbered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pairs = [("q1", "c1"), ("q2", "c1"), ("q1", "c2"), ("q1", "c1")]
    write_rows(tmp_path / "data", "test_go.jsonl", pairs)
    monkeypatch.setenv("GECS_DATA_DIR", str(tmp_path / "data"))
    go = load("go")
    assert go.query_ids.tolist() == [0, 1, 0, 0]
    assert go.code_ids.tolist() == [0, 0, 1, 0]
    assert (go.distinct_queries, go.distinct_codes) == (["q1", "q2"], ["c1", "c2"])
    assert go.queries[0] is go.queries[2]
    assert load("go") is go
    write_rows(tmp_path / "data", "test_go.jsonl", pairs[:2])
    assert len(load("go")) == 2  # another content is another collection


def test_an_unknown_subset() -> None:
    with pytest.raises(SettingError, match="no subset is named 'perl'; there are advtest, cosqa"):
        load("perl")


def test_a_data_directory_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GECS_DATA_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"GECS_DATA_DIR=.*nowhere is not a directory"):
        load("statcode")


def test_a_directory_in_place_of_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "test_ruby.jsonl").mkdir()
    monkeypatch.setenv("GECS_DATA_DIR", str(tmp_path))
    with pytest.raises(DataError, match=r"test_ruby\.jsonl is a directory: expected the file"):
        load("ruby")


def test_every_real_file_parses(real_data: Path) -> None:
    for name in RELEASED:
        collection = load(name)
        assert len(collection.pools) == len(collection) == len(collection.negatives)
        assert np.all(collection.negatives != np.arange(len(collection)))


def test_a_perfect_scorer_is_capped_by_copies_of_the_gold(real_data: Path) -> None:
    cosqa = load("cosqa")
    if len(cosqa) != 1500:
        pytest.skip("these figures are of the 1,500-row sample")
    copies = cosqa.code_ids[cosqa.pools] == cosqa.code_ids[:, None]
    assert int((copies.sum(axis=1) > 1).sum()) == 32
    assert (1 / copies.sum(axis=1)).mean() == pytest.approx(0.98933, abs=5e-6)
    assert len(set(cosqa.inputs)) == 1260
    assert sum(not query.strip() for query in cosqa.queries) == 8
