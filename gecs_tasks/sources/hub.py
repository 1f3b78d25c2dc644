"""A subset rebuilt from its raw rows on the Hugging Face Hub, by the rules the released files were built with.

Those rules are those of the benchmark authors' own scripts (their repository drndr/gencodesearchnet): the comment,
the delimiter, the code; tokens are joined by one space, StatCodeSearch's texts stay as they are, and non-ASCII
characters are written as such.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from tqdm import tqdm

from gecs_tasks.benchmark import DELIMITER, HubSource
from gecs_tasks.errors import DataError, FetchError

logger = logging.getLogger(__name__)

Layout: TypeAlias = Literal["codesearchnet", "advtest", "cosqa", "statcodesearch"]

# Seconds within which the Hub has to answer its first request.
TIMEOUT: float = 10.0
# Further attempts where a stream of rows breaks, of some 20 s each: the library's own 20 would take minutes to fail.
RETRIES: int = 1
# The Hub's StatCodeSearch lacks outer spaces that two comments (rows from 0) have in the released file.
_LOST_SPACES: Final = {128: " {} ", 608: " {}"}
_SHOWN: Final = 300


class _Columns(NamedTuple):
    """Where a layout keeps the comment and the code; of several code columns the first one present counts."""

    comment: str
    code: tuple[str, ...]
    tokens: bool
    label: str | None = None

    @property
    def expected(self) -> str:
        names = [self.comment, " or ".join(self.code)]
        return ", ".join(names if self.label is None else [*names, self.label])


_LAYOUTS: Final[dict[Layout, _Columns]] = {
    "codesearchnet": _Columns("func_documentation_tokens", ("func_code_tokens",), tokens=True),
    # The raw test set has function_tokens; the training set, and the Hub's form of both, code_tokens.
    "advtest": _Columns("docstring_tokens", ("function_tokens", "code_tokens"), tokens=True),
    "cosqa": _Columns("docstring_tokens", ("code_tokens",), tokens=True, label="label"),
    "statcodesearch": _Columns("Comment", ("Code",), tokens=False),
}


def rebuild(rows: Iterable[Mapping[str, Any]], layout: Layout) -> Iterator[str]:
    """Turn raw rows into the released file's lines, one at a time.

    CoSQA keeps its rows with label 0 only, as the released file does (that they are the non-matching ones is the
    benchmark's own mistake, and part of it).

    :param rows: raw rows in the source's order, all of them: StatCodeSearch is mended by position.
    :param layout: the names of their columns, see :class:`gecs_tasks.benchmark.HubSource`.
    :return: JSON lines without line ends.
    :raises DataError: at the first row that lacks a column or holds something else than text or tokens in it.
    """
    columns = _LAYOUTS[layout]
    for number, row in enumerate(rows):
        if columns.label is not None and _cell(row, (columns.label,), number, columns) != 0:
            continue
        comment = _text(row, (columns.comment,), number, columns)
        code = _text(row, columns.code, number, columns)
        if layout == "statcodesearch" and number in _LOST_SPACES:
            comment = _LOST_SPACES[number].format(comment.strip(" "))
        record = {"input": comment + DELIMITER + code, "target": 1, "target_options": ["no_match", "match"]}
        yield json.dumps(record, ensure_ascii=False)


def _cell(row: Mapping[str, Any], names: tuple[str, ...], number: int, columns: _Columns) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    found = ", ".join(sorted(name for name, value in row.items() if value is not None)) or "none"
    raise DataError(
        f"raw row {number} (from 0) lacks column {' or '.join(names)}; found columns {found}; "
        f"expected {columns.expected}"
    )


def _text(row: Mapping[str, Any], names: tuple[str, ...], number: int, columns: _Columns) -> str:
    value = _cell(row, names, number, columns)
    if isinstance(value, str):
        return value
    if columns.tokens and isinstance(value, (list, tuple)) and all(isinstance(token, str) for token in value):
        return " ".join(value)
    expected = "a text or a list of tokens" if columns.tokens else "a text"
    raise DataError(
        f"raw row {number} (from 0) holds a {type(value).__name__} in column {' or '.join(names)}; expected {expected}"
    )


def download(source: HubSource, path: Path, *, total: int | None = None, progress: bool = False) -> str:
    """Stream a subset's raw rows from the Hub and write them to a file in the released form.

    :param source: the Hub's repository; an absolute path of a local folder in the same form works as well.
    :param path: the file to write; an interrupted download leaves a part of it.
    :param total: the number of rows for the progress bar, where it is known.
    :param progress: whether to show a progress bar on stderr.
    :return: the repository and, where the Hub states one, its revision: ``drndr/statcodesearch@f0bee9e``.
    :raises FetchError: where the Hub cannot be reached or does not deliver; the message is one clause.
    :raises DataError: where a row is not of the source's layout.
    :raises OSError: where the file cannot be written.
    """
    revision = _revision(source.repo)
    with _bounded_retries():
        logger.info("rebuilding %s from %s at revision %s", path.name, source.repo, revision)
        lines = rebuild(_rows(source, revision), source.layout)
        with (
            path.open("w", encoding="utf-8", newline="\n") as file,
            tqdm(lines, desc=path.name, total=total, unit=" rows", disable=not progress) as bar,
        ):
            for line in bar:
                file.write(f"{line}\n")
    return source.repo if revision is None else f"{source.repo}@{revision[:7]}"


def _revision(repo: str) -> str | None:
    """The repository's newest commit, or None for a local folder.

    One request without retries: where the Hub is out of reach it fails at once, where ``load_dataset`` would take
    some 25 s of retries to say the same.
    """
    if Path(repo).is_dir():
        if Path(repo).is_absolute():
            return None
        # load_dataset would silently read that folder.
        raise FetchError(f"a folder {repo} in the working directory hides the repository; run from elsewhere")
    # Here, and not above: only a download needs it.
    from huggingface_hub import HfApi

    revision: str | None = _delivered(lambda: HfApi().dataset_info(repo, timeout=TIMEOUT).sha)
    return revision


def _rows(source: HubSource, revision: str | None) -> Iterator[Mapping[str, Any]]:
    # Here, and not above: datasets takes most of a second to import, and only this fallback needs it.
    from datasets import load_dataset

    rows = _delivered(
        lambda: iter(load_dataset(source.repo, source.config, split=source.split, revision=revision, streaming=True))
    )
    end: Mapping[str, Any] = {}
    while (row := _delivered(lambda: next(rows, end))) is not end:
        yield row


def _delivered(ask: Callable[[], Any]) -> Any:
    """The answer to one question to the Hub; any failure becomes one clause.

    The libraries below raise what theirs raise (httpx, fsspec, pyarrow, ValueError for a missing split), so every
    exception counts as the Hub's; what is raised while the file is written does not pass here.
    """
    try:
        return ask()
    except Exception as error:
        raise FetchError(_reason(error)) from error


def _reason(error: Exception) -> str:
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "offline mode is on: unset HF_HUB_OFFLINE and HF_DATASETS_OFFLINE to use the Hub"
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}"
    name = type(error).__name__
    if "Timeout" in name:
        return f"timeout, no answer within {TIMEOUT:g} s"
    text = " ".join(str(error).split())[:_SHOWN] or "no details"
    if name == "ConnectError":
        return f"no connection (offline?): {text}"
    return f"{name}: {text}"


@contextlib.contextmanager
def _bounded_retries() -> Iterator[None]:
    """Let a stream of rows that stays broken fail in half a minute."""
    import datasets.config

    names = ("STREAMING_READ_MAX_RETRIES", "STREAMING_OPEN_MAX_RETRIES")
    before = {name: getattr(datasets.config, name) for name in names}
    for name, value in before.items():
        setattr(datasets.config, name, min(value, 1 + RETRIES))
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(datasets.config, name, value)
