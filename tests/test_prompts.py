from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gecs_tasks.benchmark import SUBSETS
from gecs_tasks.prompts import cut_code, instruction, render

# the paper's appendix A.3.2, with R filled in and for CoSQA
COMMENT_R = (
    "Given a code comment and a R programming language code snippet, determine if the comment accurately represents "
    "the code's function. Respond with 'True' if the code matches the comment and 'False' if it does not. The input "
    'format is defined as "comment" "[CODESPLIT]" "code". '
)
COSQA = (
    "Given a search query and a Python programming language code snippet, determine if the query accurately represents "
    "the code's function. Respond with 'True' if the code matches the query and 'False' if it does not. The input "
    'format is defined as "query" "[CODESPLIT]" "code". '
)


def test_instructions_are_the_papers() -> None:
    assert instruction(SUBSETS["statcode"]) == COMMENT_R
    assert instruction(SUBSETS["cosqa"]) == COSQA


@pytest.mark.parametrize(
    ("subset", "language"),
    [
        ("advtest", "Python"),
        ("ruby", "Ruby"),
        ("go", "Go"),
        ("java", "Java"),
        ("javascript", "JavaScript"),
        ("php", "PHP"),
    ],
)
def test_every_comment_prompt_names_its_language(subset: str, language: str) -> None:
    assert instruction(SUBSETS[subset]) == COMMENT_R.replace(" R ", f" {language} ")


def test_a_pair_becomes_the_released_input() -> None:
    assert render("Prompt: ", "add one", "x + 1") == "Prompt: add one [CODESPLIT] x + 1"


@pytest.mark.parametrize("code", ["x + 1", "x + 1 ", "x + 1 \n\t "])
def test_trailing_space_of_a_code_changes_nothing(code: str) -> None:
    assert render("", "add one", code) == "add one [CODESPLIT] x + 1"


def test_leading_space_of_a_comment_stays() -> None:
    assert render("Prompt: ", " 2. compare", "x") == "Prompt:  2. compare [CODESPLIT] x"


def test_an_empty_code_leaves_no_space_at_the_end() -> None:
    assert render("", "nothing", "") == "nothing [CODESPLIT]"


def test_a_long_code_is_cut_in_its_middle() -> None:
    assert cut_code("0123456789", 10) == "0123456789"
    assert cut_code("0123456789", 5) == "012\n[... 5 characters left out ...]\n89"
    assert cut_code("0123456789", 1) == "0\n[... 9 characters left out ...]\n"


def test_the_cut_keeps_instruction_and_comment() -> None:
    prompt = render(COMMENT_R, "the comment", "y" * 100_000, 4000)
    assert prompt.startswith(COMMENT_R + "the comment [CODESPLIT] yyy")
    assert prompt.endswith("yyy")
    assert len(prompt) < len(COMMENT_R) + 4100


@given(st.text(), st.integers(1, 50))
def test_the_cut_keeps_so_many_characters(code: str, limit: int) -> None:
    cut = cut_code(code, limit)
    if len(code) <= limit:
        assert cut == code
    else:
        note = f"\n[... {len(code) - limit} characters left out ...]\n"
        head, tail = cut.split(note, 1) if cut.count(note) == 1 else (code[: limit - limit // 2], code[-(limit // 2) :])
        assert code.startswith(head)
        assert len(cut) == limit + len(note)
        assert code.endswith(tail) or limit == 1
