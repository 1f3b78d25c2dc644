from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gecs_tasks.benchmark import DELIMITER
from gecs_tasks.errors import DataError, RowError
from gecs_tasks.sources.jsonl import parse_rows

FILE = Path("test_x.jsonl")
GOOD = b'{"input": "a comment [CODESPLIT] some code", "target": 1, "target_options": ["no_match", "match"]}\n'


def row(text: str) -> bytes:
    return json.dumps({"input": text, "target": 1}).encode() + b"\n"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"not json\n", "not JSON"),
        (b'{"input": "cut [CODESPLIT] of\n', "not JSON"),
        (b"\n", "an empty line"),
        (b"[1, 2]\n", "a JSON list"),
        (b'{"comment": "a", "code": "b"}\n', r"no field 'input' among \['code', 'comment'\]"),
        (b'{"input": 3}\n', "'input' is of type int"),
        (b'{"input": null}\n', "'input' is of type NoneType"),
        (b"\xef\xbb\xbf" + GOOD, "a byte order mark"),
        (b"[" * 200_000 + b"\n", "not JSON"),
        (b"\x00\x1b[31m\n", r"not JSON .*: '\\x00"),
        (row("a [CODESPLIT] [CODESPLIT] b"), "2 delimiters"),
        (row("no delimiter"), "0 delimiters"),
        (row("glued[CODESPLIT]code"), "0 delimiters"),
        (row("a [CODESPLIT] b [CODESPLIT] c"), "2 delimiters"),
        (b'{"input": "caf\xe9 [CODESPLIT] b"}\n', r"byte 15 of the line \(0xe9\) is not UTF-8"),
        (b'{"input": "\\ud800 [CODESPLIT] b"}\n', "half a surrogate pair"),
        (b'{"input": "a [CODESPLIT] b", "target": 0}\n', "'target' is 0"),
    ],
)
def test_a_broken_row_is_named(line: bytes, found: str) -> None:
    with pytest.raises(RowError, match=rf"^test_x\.jsonl, line 3: .*{found}") as caught:
        parse_rows(FILE, GOOD + GOOD + line + GOOD)
    assert caught.value.line == 3


def test_an_empty_file_is_an_error() -> None:
    with pytest.raises(DataError, match=r"test_x\.jsonl is empty"):
        parse_rows(FILE, b"")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "code without a comment"),
        (" leading space", "trailing space "),
        ("newlines", "a\nb\r\nc\u2028d"),
        ("Schätzung ± 1 für 数据", "x <- 'ü'"),
        ("long", "x" * 100_000),
        ("", ""),
    ],
)
def test_unusual_rows_are_legal_and_untouched(query: str, code: str) -> None:
    rows = parse_rows(FILE, row(f"{query}{DELIMITER}{code}") * 2)
    assert [(r.query, r.code) for r in rows] == [(query, code)] * 2


def test_a_missing_newline_at_the_end_loses_nothing() -> None:
    assert len(parse_rows(FILE, GOOD + GOOD.rstrip())) == 2


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40).filter(lambda text: "[CODESPLIT]" not in text)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=8), st.booleans())
def test_what_was_written_is_read(pairs: list[tuple[str, str]], ascii_only: bool) -> None:
    lines = [json.dumps({"input": f"{query}{DELIMITER}{code}"}, ensure_ascii=ascii_only) for query, code in pairs]
    rows = parse_rows(FILE, "\n".join(lines).encode())
    assert [(r.query, r.code) for r in rows] == pairs


@given(st.binary(max_size=200))
def test_any_bytes_are_rows_or_one_clear_error(content: bytes) -> None:
    try:
        parse_rows(FILE, content)
    except DataError as error:
        message = str(error)
    else:
        return
    assert message.startswith("test_x.jsonl")
