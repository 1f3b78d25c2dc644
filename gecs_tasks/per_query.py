"""The per-query file: one compact Parquet file a task, written without ``--log_samples``.

Its columns are one row a document (``doc_id`` is the harness's document number in the full task); its schema
metadata, under the key ``gecs``, is a JSON object that says what the values were measured on. Reports, comparisons
and submissions read these files.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from gecs_tasks.errors import DataError, SettingError
from gecs_tasks.folders import make_writable

DIRECTORY_VARIABLE: Final = "GECS_PER_QUERY"
_METADATA_KEY: Final = b"gecs"


class RankRecord(NamedTuple):
    """One query's outcome: its document, the gold's rank and score, how many answers were none (NaN, or no list)."""

    task_key: str
    doc_id: int
    rank: int
    score: float
    n_invalid: int


class MatchRecord(NamedTuple):
    """One pair's outcome: its document, true label, decision and score (NaN for none), how many answers were none."""

    task_key: str
    doc_id: int
    label: int
    decision: float
    score: float
    n_invalid: int


Record = RankRecord | MatchRecord


@dataclass(frozen=True)
class PerQuery:
    """A per-query file's content: what it was measured on, and its columns by name."""

    metadata: dict[str, Any]
    columns: dict[str, list[Any]]


def directory(setting: object) -> Path | None:
    """Where per-query files go: the task setting ``gecs_per_query``, else ``GECS_PER_QUERY``, else nowhere.

    The directory is made at once, so that a wrong one is an error before the model runs rather than after.

    :raises SettingError: where the setting is not a path, or not one of a directory that can be written.
    """
    value = setting or os.environ.get(DIRECTORY_VARIABLE)
    if not value:
        return None
    if not isinstance(value, str):
        raise SettingError(f"gecs_per_query is {value!r}: give the directory that per-query files are written to")
    folder = Path(value).expanduser()
    try:
        make_writable(folder)
    except OSError as error:
        raise SettingError(
            f"per-query files cannot be written to {folder} ({error.strerror}): set {DIRECTORY_VARIABLE} to a "
            "directory that can be written"
        ) from None
    return folder


def write(folder: Path, task: str, metadata: Mapping[str, Any], records: Sequence[Record]) -> Path:
    """Write one task's records, in document order; the file appears whole or not at all.

    :param folder: made where it does not exist.
    :param metadata: what the values were measured on; JSON-serialisable.
    :return: the file, named ``per_query_<task>_<time>.parquet``.
    :raises DataError: where it cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq  # a quarter of a second to import

    ordered = sorted(records, key=lambda record: record.doc_id)
    columns: dict[str, Any] = {"doc_id": pa.array([r.doc_id for r in ordered], pa.int32())}
    if isinstance(ordered[0], RankRecord):
        columns["rank"] = pa.array([r.rank for r in ordered if isinstance(r, RankRecord)], pa.int16())
    else:
        matches = [r for r in ordered if isinstance(r, MatchRecord)]
        columns["label"] = pa.array([r.label for r in matches], pa.int8())
        decisions = [None if math.isnan(r.decision) else int(r.decision) for r in matches]
        columns["decision"] = pa.array(decisions, pa.int8())
    columns["score"] = pa.array([r.score for r in ordered], pa.float64())
    columns["n_invalid"] = pa.array([r.n_invalid for r in ordered], pa.int8())
    table = pa.table(columns).replace_schema_metadata({_METADATA_KEY: json.dumps(dict(metadata)).encode()})
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S") + f".{time.time_ns() // 1000 % 1_000_000:06d}"
    path = folder / f"per_query_{task}_{stamp}.parquet"
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, partial, compression="zstd")
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise DataError(
            f"{path} cannot be written ({error.strerror}): choose another directory with {DIRECTORY_VARIABLE}"
        ) from None
    return path


def read(path: Path) -> PerQuery:
    """Read a per-query file.

    :raises DataError: where it is missing, damaged, or not a per-query file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq  # a quarter of a second to import

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as a per-query file: {error}") from None
    raw = (table.schema.metadata or {}).get(_METADATA_KEY)
    if raw is None:
        raise DataError(
            f"{path} is a Parquet file but not one that gecs-tasks wrote: its schema has no 'gecs' metadata"
        )
    return PerQuery(json.loads(raw), {name: table.column(name).to_pylist() for name in table.column_names})
