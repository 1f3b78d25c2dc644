"""Finding a subset's file: the user's data directory, then the cache, then a download."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from gecs_tasks.benchmark import Subset
from gecs_tasks.errors import DataError
from gecs_tasks.sources import fetch

DATA_DIR_VARIABLE: Final = "GECS_DATA_DIR"
_EMBEDDED: Final = Path(__file__).parent.parent / "data"


class Located(NamedTuple):
    """A subset's file and, for people, where it came from."""

    path: Path
    origin: str


def data_dir() -> Path | None:
    """The user's data directory, ``GECS_DATA_DIR``, or None where it is not set.

    :raises DataError: where it is set to something that is not a directory.
    """
    value = os.environ.get(DATA_DIR_VARIABLE)
    if not value:
        return None
    directory = Path(value).expanduser()
    if not directory.is_dir():
        raise DataError(
            f"{DATA_DIR_VARIABLE}={value} is not a directory: point it at the folder that holds the benchmark's files "
            "(test_statcodesearch.jsonl, ...), or unset it to download them"
        )
    return directory


def locate(subset: Subset, *, download: bool = True) -> Located | None:
    """Find a subset's file.

    :param download: whether to fetch the file where it is neither in the data directory nor in the cache.
    :return: the file, or None where it would have to be downloaded and ``download`` is false.
    :raises DataError: where the data directory is not one, or the file can neither be found nor fetched.
    """
    if not subset.released:
        return Located(_EMBEDDED / subset.filename, "embedded in the package")
    directory = data_dir()
    if directory is not None and (path := directory / subset.filename).exists():
        if not path.is_file():
            raise DataError(f"{path} is a directory: expected the file {subset.filename}, one JSON object a line")
        return Located(path, DATA_DIR_VARIABLE)
    found = fetch.cached(subset)
    if found is None and download:
        found = fetch.fetch(subset)
    return None if found is None else Located(found.path, found.origin)
