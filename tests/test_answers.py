from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gecs_tasks.answers import read_decision, read_listing


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("True", True),
        ("False", False),
        (" true\n", True),
        ("FALSE", False),
        ("'False'", False),
        ('"True"', True),
        ("**True**.", True),
        ("`false`", False),
        ("The answer is False", False),
        ("The answer is: **True**!", True),
        ("Answer: [True]", True),
        ("True. The code plots the mean.", True),
        ("False, since the code reads a file.", False),
        # both words: the last committed answer
        ("True... no wait, False", False),
        ("At first False, but on reflection: True", True),
        ("I would say True, not False.", True),
        ("False rather than True", False),
        ("It isn't False. True.", True),
        ("This should not be True, it is False", False),
        # only rejected: the other one
        ("The statement is not True.", False),
        ("That is not false", True),
        # naming the choice commits to nothing
        ("True or False", None),
        ("'True' or 'False'? False.", False),
        ("True/False: True", True),
        ("Should I answer True or False", None),
        ("Respond with 'True' if the code matches the comment and 'False' if it does not.", None),
        ("Respond with 'True' if the code matches the comment and 'False' if it does not. True", True),
        # thoughts
        ("<think>False? No.</think>True", True),
        ("<think>\nIt looks True to me\n</think>\n\nFalse", False),
        ("It seems True at first</think> **False**", False),
        ("<think>True, surely True", None),
        ("True <think>hm, False", True),
        ("[THINK]False[/THINK]True", True),
        ("<thinking>a</thinking><thinking>False</thinking> true", True),
        # neither
        ("", None),
        ("Yes", None),
        ("The code matches the comment.", None),
        ("Untrue", None),
        ("truely falsehood", None),
        ("is_true <- TRUE_VALUE", None),
        ("Tru", None),
    ],
)
def test_decisions(text: str, decision: bool | None) -> None:
    assert read_decision(text) is decision


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    assert read_decision(text) in (True, False, None)
    listing = read_listing(text, 100, 10)
    assert len(listing.numbers) <= 10
    assert all(0 <= number <= 100 for number in listing.numbers)


@given(st.booleans(), st.sampled_from(["{}", " {}.", "'{}'", "**{}**", "The answer is {}", "I think it is {}!"]))
def test_plain_answers_are_always_read(decision: bool, form: str) -> None:
    assert read_decision(form.format(decision)) is decision


TEN = (3, 1, 4, 15, 9, 2, 6, 5, 35, 8)


@pytest.mark.parametrize(
    "text",
    [
        "3, 1, 4, 15, 9, 2, 6, 5, 35, 8",
        "[3], [1], [4], [15], [9], [2], [6], [5], [35], [8]",
        "[3] > [1] > [4] > [15] > [9] > [2] > [6] > [5] > [35] > [8]",
        "3 > 1 > 4 > 15 > 9 > 2 > 6 > 5 > 35 > 8",
        "3 1 4 15 9 2 6 5 35 8",
        "3\n1\n4\n15\n9\n2\n6\n5\n35\n8",
        "Here are the best 10 of 100: 3, 1, 4, 15, 9, 2, 6, 5, 35, 8.",
        "1. 3\n2. 1\n3. 4\n4. 15\n5. 9\n6. 2\n7. 6\n8. 5\n9. 35\n10. 8",
        "\n".join(f"{place}) Candidate {number}" for place, number in enumerate(TEN, start=1)),
        "Top 10:\n1. [3]\n2. [1]\n3. [4]\n4. [15]\n5. [9]\n6. [2]\n7. [6]\n8. [5]\n9. [35]\n10. [8]",
        "<think>perhaps 99, 98, 97</think>3, 1, 4, 15, 9, 2, 6, 5, 35 and 8",
    ],
)
def test_lists_of_ten(text: str) -> None:
    listing = read_listing(text, 100, 10)
    assert listing.numbers[:9] == TEN[:9]
    if " and " not in text:
        assert listing == (TEN, True)


@pytest.mark.parametrize(
    ("text", "numbers", "well_formed"),
    [
        ("7", (7,), False),  # partial
        ("7, 3", (7, 3), False),
        ("5, 5, 7", (5, 0, 7), False),  # a repeated number keeps its place
        ("101, 7", (0, 7), False),  # out of range
        ("0, 7", (0, 7), False),
        ("99999999999999999999, 7", (0, 7), False),
        ("", (), False),
        ("I cannot tell.", (), False),
        ("1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), False),  # more than asked for
        ("<think>1, 2, 3, 4, 5, 6, 7, 8, 9, 10", (), False),
    ],
)
def test_other_lists(text: str, numbers: tuple[int, ...], well_formed: bool) -> None:
    assert read_listing(text, 100, 10) == (numbers, well_formed)


@given(st.permutations(range(1, 101)).map(lambda order: order[:10]), st.sampled_from([", ", " > ", "\n", "; "]))
def test_a_plain_list_is_always_read(numbers: list[int], separator: str) -> None:
    assert read_listing(separator.join(map(str, numbers)), 100, 10) == (tuple(numbers), True)


@given(st.lists(st.integers(0, 130), max_size=15))
def test_no_candidate_moves_up_for_a_mistake(numbers: list[int]) -> None:
    listing = read_listing(", ".join(f"[{number}]" for number in numbers), 100, 10)
    for position, number in enumerate(listing.numbers):
        assert number in (0, numbers[position])
