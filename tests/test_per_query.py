from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gecs_tasks import per_query
from gecs_tasks.errors import DataError, SettingError
from gecs_tasks.per_query import MatchRecord, RankRecord
from tests.conftest import Evaluate


def test_rank_records_come_back_in_document_order(tmp_path: Path) -> None:
    records = [RankRecord("key", 2, 7, -1.5, 0), RankRecord("key", 0, 1, math.nan, 3)]
    path = per_query.write(tmp_path / "new" / "folder", "gecs_x_rank", {"task": "gecs_x_rank"}, records)
    assert path.name.startswith("per_query_gecs_x_rank_")
    read = per_query.read(path)
    assert read.metadata == {"task": "gecs_x_rank"}
    assert read.columns["doc_id"] == [0, 2]
    assert read.columns["rank"] == [1, 7]
    assert math.isnan(read.columns["score"][0])
    assert read.columns["score"][1] == -1.5
    assert read.columns["n_invalid"] == [3, 0]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_match_records_keep_that_there_is_no_decision(tmp_path: Path) -> None:
    records = [MatchRecord("key", 0, 1, math.nan, 2.0, 0), MatchRecord("key", 1, 0, 1.0, 0.5, 0)]
    columns = per_query.read(per_query.write(tmp_path, "t", {}, records)).columns
    assert columns["label"] == [1, 0]
    assert columns["decision"] == [None, 1]
    assert columns["score"] == [2.0, 0.5]


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing", b"x" * 100])
def test_a_damaged_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.parquet"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged\.parquet cannot be read as a per-query file"):
        per_query.read(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        per_query.read(tmp_path / "none.parquet")


def test_somebody_elses_parquet_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="not one that gecs-tasks wrote"):
        per_query.read(tmp_path / "other.parquet")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="choose another directory with GECS_PER_QUERY"):
        per_query.write(tmp_path / "file" / "folder", "t", {}, [RankRecord("key", 0, 1, 0.0, 0)])


def test_where_files_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert per_query.directory(None) is None
    monkeypatch.setenv("GECS_PER_QUERY", str(tmp_path / "from" / "environment"))
    assert per_query.directory(None) == tmp_path / "from" / "environment"
    assert per_query.directory(str(tmp_path)) == tmp_path
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"cannot be written to .*file \(File exists\): set GECS_PER_QUERY"):
        per_query.directory(str(tmp_path / "file"))
    with pytest.raises(SettingError, match="gecs_per_query is 3"):
        per_query.directory(3)


def test_the_results_can_be_recomputed_from_the_file(evaluate: Evaluate, tmp_path: Path) -> None:
    results = evaluate(
        "gecs-bm25", "gecs_demo", model_args={"threshold": 4}, metadata={"gecs_per_query": str(tmp_path)}
    )

    def figures(task: str) -> tuple[dict[str, Any], dict[str, Any]]:
        info = results["configs"][task]["metadata"]["gecs"]
        read = per_query.read(tmp_path / info["per_query"]["file"])
        assert read.metadata["task"] == task
        assert read.metadata["draws"] == info["draws"]
        assert read.metadata["data"] == info["data"]
        return results["results"][task], read.columns

    shown, columns = figures("gecs_demo_rank")
    ranks = np.array(columns["rank"])
    assert shown["mrr,none"] == pytest.approx((1 / ranks).mean())
    assert shown["recall@5,none"] == pytest.approx((ranks <= 5).mean())
    shown, columns = figures("gecs_demo_match")
    assert columns["doc_id"] == list(range(320))
    assert columns["label"] == [1, 0] * 160
    correct = np.array(columns["decision"]) == np.array(columns["label"])
    assert shown["acc,none"] == pytest.approx(correct.mean())


def test_sizes_on_real_data(evaluate: Evaluate, real_data: Path, tmp_path: Path) -> None:
    evaluate("gecs-bm25", "gecs_statcode", metadata={"gecs_per_query": str(tmp_path)})
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) < 100_000


def test_size_of_a_whole_benchmark(tmp_path: Path) -> None:
    """109,926 queries, random scores (which do not compress), both families."""
    rng = np.random.default_rng(0)
    n = 109_926
    scores = rng.normal(size=2 * n)
    ranks = rng.integers(1, 101, n)
    rank_records = [RankRecord("k", i, int(ranks[i]), float(scores[i]), 0) for i in range(n)]
    match_records = [MatchRecord("k", i, 1 - i % 2, float(scores[i] > 0), float(scores[i]), 0) for i in range(2 * n)]
    files = [per_query.write(tmp_path, "r", {}, rank_records), per_query.write(tmp_path, "m", {}, match_records)]
    assert sum(path.stat().st_size for path in files) < 10_000_000
