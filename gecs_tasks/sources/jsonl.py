"""The benchmark's own file format: one JSON object a line, comment and code in one string."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gecs_tasks.benchmark import DELIMITER
from gecs_tasks.errors import DataError, RowError

_FORM = '{"input": "<comment> [CODESPLIT] <code>", ...}'


class Row(NamedTuple):
    """One comment-code pair. ``input`` is the record's own string; nothing in ``query`` or ``code`` is touched."""

    input: str
    query: str
    code: str


def parse_rows(path: Path, content: bytes) -> list[Row]:
    """Parse a whole file; nothing is skipped, save for nothing after the last line's end.

    Empty comments, copies of other rows, newlines inside a code and non-ASCII text are legal.

    :param path: the file's name, for messages.
    :param content: the file's bytes, UTF-8.
    :return: the rows in file order.
    :raises RowError: at the first row that is not valid, with its line number.
    :raises DataError: where the file holds no row.
    """
    rows = list(_rows(path, content))
    if not rows:
        raise DataError(f"{path} is empty: expected one JSON object a line, {_FORM}")
    return rows


def _rows(path: Path, content: bytes) -> Iterator[Row]:
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        yield _row(path, number, line)


def _row(path: Path, number: int, line: bytes) -> Row:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = line[error.start : error.start + 1].hex()
        raise RowError(
            path, number, f"byte {error.start + 1} of the line (0x{bad}) is not UTF-8", "Save the file as UTF-8."
        ) from None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.startswith("\ufeff"):
            raise RowError(path, number, "a byte order mark", "Save the file as UTF-8 without one.") from None
        shown = repr(text.strip()[:60]) if text.strip() else "an empty line"
        raise RowError(path, number, f"not JSON ({error}): {shown}", f"Each line must be {_FORM}.") from None
    if not isinstance(record, dict):
        raise RowError(path, number, f"a JSON {type(record).__name__}", f"Each line must be an object, {_FORM}.")
    if "input" not in record:
        raise RowError(path, number, f"no field 'input' among {sorted(record)}", f"Each line must be {_FORM}.")
    pair = record["input"]
    if not isinstance(pair, str):
        raise RowError(path, number, f"'input' is of type {type(pair).__name__}", "It must be a string.")
    # The released sets hold positives only; a file with negatives would silently spoil every draw.
    if record.get("target", 1) != 1:
        raise RowError(
            path,
            number,
            f"'target' is {record['target']!r}",
            "Keep the matching rows (target 1) only: negatives are drawn.",
        )
    parts = pair.split(DELIMITER)
    n_delimiters = len(parts) - 1 + pair.count(f"{DELIMITER}{DELIMITER.lstrip()}")  # two may share a space
    if n_delimiters != 1:
        raise RowError(
            path,
            number,
            f"{n_delimiters} delimiters {DELIMITER!r} in 'input'",
            "Exactly one must stand between the comment and the code.",
        )
    if _has_surrogate(pair):
        raise RowError(
            path, number, "'input' holds half a surrogate pair (\\ud800-\\udfff)", "Escape whole characters."
        )
    return Row(pair, parts[0], parts[1])


def _has_surrogate(text: str) -> bool:
    """Whether a text cannot be written as UTF-8: JSON may escape half a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
