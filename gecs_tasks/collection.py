"""A loaded subset: its pairs, its draws and the fingerprint of what it was read from."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gecs_tasks.benchmark import SUBSETS, TRAINING, Subset
from gecs_tasks.errors import DataError, DrawError, SettingError
from gecs_tasks.sampling import IndexArray, candidate_pools, matching_negatives
from gecs_tasks.sources.jsonl import parse_rows
from gecs_tasks.sources.locate import locate

logger = logging.getLogger(__name__)

Status = Literal["official", "unverified", "sample", "changed", "demo"]


@dataclass(frozen=True)
class Fingerprint:
    """What a subset was read from.

    ``status`` is ``official`` where the file's digest is the released file's; ``unverified`` where the released
    digest is not known and the row count is right; ``sample`` where there are fewer rows than in the released set;
    ``changed`` where anything else differs; ``demo`` for the embedded set, which is not part of the benchmark.
    """

    subset: str
    file: str
    origin: str
    sha256: str
    rows: int
    status: Status

    @property
    def comparable(self) -> bool:
        """Whether a result on this file may stand beside published ones, as far as the data goes."""
        return self.status in ("official", "unverified")


@dataclass(frozen=True)
class Collection:
    """A subset's pairs in file order, with its draws. Strings are held once and shared by every task.

    ``queries`` and ``codes`` have one entry a row; ``query_ids`` and ``code_ids`` map a row to its distinct text,
    whose first row stands in ``distinct_queries`` and ``distinct_codes``.
    """

    subset: Subset
    fingerprint: Fingerprint
    inputs: Sequence[str] = field(repr=False)
    queries: Sequence[str] = field(repr=False)
    codes: Sequence[str] = field(repr=False)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.inputs)

    @property
    def key(self) -> str:
        """Names the collection and the data it holds, e.g. ``statcode@2053a12b3b36``."""
        return f"{self.subset.name}@{self.fingerprint.sha256[:12]}"

    @cached_property
    def pools(self) -> IndexArray:
        """Candidate pools, shape (n_rows, 100), column 0 the gold; see :func:`gecs_tasks.sampling.candidate_pools`."""
        with self._naming_the_file():
            return candidate_pools(len(self))

    @cached_property
    def negatives(self) -> IndexArray:
        """Matching negatives, shape (n_rows,); see :func:`gecs_tasks.sampling.matching_negatives`."""
        with self._naming_the_file():
            return matching_negatives(self.inputs)

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except DrawError as error:
            raise DrawError(f"{self.fingerprint.file} ({self.fingerprint.origin}): {error}") from None

    @cached_property
    def query_ids(self) -> NDArray[np.intp]:
        """Distinct-query index of each row, shape (n_rows,), numbered by first appearance."""
        return _distinct_ids(self.queries)

    @cached_property
    def code_ids(self) -> NDArray[np.intp]:
        """Distinct-code index of each row, shape (n_rows,), numbered by first appearance."""
        return _distinct_ids(self.codes)

    @cached_property
    def distinct_queries(self) -> list[str]:
        """The distinct queries, in order of first appearance."""
        return list(dict.fromkeys(self.queries))

    @cached_property
    def distinct_codes(self) -> list[str]:
        """The distinct codes, in order of first appearance."""
        return list(dict.fromkeys(self.codes))


def _distinct_ids(texts: Sequence[str]) -> NDArray[np.intp]:
    ids: dict[str, int] = {}
    return np.fromiter((ids.setdefault(text, len(ids)) for text in texts), dtype=np.intp, count=len(texts))


_loaded: dict[tuple[str, str], Collection] = {}


def load(name: str) -> Collection:
    """Load a subset from wherever it is found first (data directory, cache, download).

    The same file's content is parsed once a process, however many tasks use it.

    :param name: a subset's name, e.g. ``statcode``.
    :raises SettingError: where no subset has that name.
    :raises DataError: where the file cannot be found, fetched, read or parsed.
    """
    subset = TRAINING if name == TRAINING.name else SUBSETS.get(name)
    if subset is None:
        raise SettingError(f"no subset is named {name!r}; there are {', '.join(SUBSETS)}")
    located = locate(subset)
    assert located is not None  # locate() downloads or raises
    try:
        content = located.path.read_bytes()
    except OSError as error:
        raise DataError(f"{located.path} cannot be read: {error.strerror}") from None
    sha256 = hashlib.sha256(content).hexdigest()
    if (collection := _loaded.get((name, sha256))) is None:
        rows = parse_rows(located.path, content)
        fingerprint = Fingerprint(
            subset=name,
            file=located.path.name,
            origin=located.origin,
            sha256=sha256,
            rows=len(rows),
            status=_status(subset, sha256, len(rows)),
        )
        _warn_unless_released(subset, fingerprint)
        inputs, queries, codes = ([row[column] for row in rows] for column in range(3))
        collection = Collection(subset, fingerprint, inputs, _shared(queries), _shared(codes))
        _loaded[name, sha256] = collection
    return collection


def _shared(texts: list[str]) -> list[str]:
    """The same texts, equal ones being one object."""
    first: dict[str, str] = {}
    return [first.setdefault(text, text) for text in texts]


def _status(subset: Subset, sha256: str, rows: int) -> Status:
    if not subset.released:
        return "demo"
    if subset.sha256 is not None:
        if sha256 == subset.sha256:
            return "official"
    elif rows in subset.rows:
        return "unverified"
    return "sample" if rows < min(subset.rows) else "changed"


def _warn_unless_released(subset: Subset, found: Fingerprint) -> None:
    if found.status == "unverified" and len(subset.rows) > 1:
        stated = " or ".join(f"{count:,}" for count in subset.rows)
        logger.warning("%s: %s rows, of the %s that its documents state", found.file, f"{found.rows:,}", stated)
    if found.status in ("sample", "changed"):
        rows = " or ".join(f"{count:,}" for count in subset.rows)
        digest = f", sha256 {subset.sha256}" if subset.sha256 else ""
        logger.warning(
            "%s (%s) is not the released file: found %s rows, sha256 %s; expected %s rows%s. "
            "Results on it are not comparable with published ones (status: %s).",
            found.file,
            found.origin,
            f"{found.rows:,}",
            found.sha256,
            rows,
            digest,
            found.status,
        )
