"""Reading what a generative model answered: True or False, or a list of candidate numbers."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# A reasoning model's thoughts end with one of these; without the end there is no answer.
_THOUGHT_ENDS: Final = re.compile(r"</think(?:ing)?>|</reason(?:ing)?>|</thought>|\[/THINK\]", re.IGNORECASE)
_THOUGHT_BEGINS: Final = re.compile(r"<think(?:ing)?>|<reason(?:ing)?>|<thought>|\[THINK\]", re.IGNORECASE)

_WORD: Final = r"[\"'`*_(\[]*\b(true|false)\b[\"'`*_)\]]*"
_MENTION: Final = re.compile(_WORD, re.IGNORECASE)
# The choice itself, as in the prompt: naming both answers commits to neither.
_CHOICE: Final = re.compile(rf"{_WORD}\s*(?:or|and|/|\||vs\.?|versus)\s*{_WORD}", re.IGNORECASE)
# The prompt's own words, which some models repeat before they answer.
_ECHO: Final = re.compile(rf"{_WORD}\s+if\b[^.\n]*?\b(?:and|,)\s*{_WORD}\s+if\b[^.\n]*", re.IGNORECASE)
# What stands directly before a rejected answer.
_REJECTED: Final = re.compile(
    r"(?:\bnot|n't|\brather than|\binstead of|\bneither|\bnor|\bnever|\bopposed to)"
    r"\s+(?:be\s+|say\s+|answer\s+|the\s+)*$",
    re.IGNORECASE,
)

_BRACKETED: Final = re.compile(r"\[\s*(\d+)\s*\]")
_NUMBERED_LINE: Final = re.compile(r"^\s*\d+\s*[.):]\s+\D{0,20}?(\d+)\b", re.MULTILINE)
_LIST: Final = re.compile(r"\d+(?:\s*(?:,|;|>|->|\s)\s*(?:and\s+)?\d+)+")
_NUMBER: Final = re.compile(r"\d+")


def committed_text(text: str) -> str:
    """A model's answer without its thoughts: what follows the last end of thinking; nothing where that never came."""
    ends = list(_THOUGHT_ENDS.finditer(text))
    if ends:
        text = text[ends[-1].end() :]
    if opened := _THOUGHT_BEGINS.search(text):
        text = text[: opened.start()]
    return text


def read_decision(text: str) -> bool | None:
    """Read an answer to the matching prompt.

    The last answer that the model commits to counts: ``True``, ``'False'``, ``**True**.``, ``The answer is False``, in
    any case. Naming both as a choice, repeating the prompt, or rejecting one (``not False``) commits to nothing by
    itself; where an answer is only ever rejected, the other one is meant.

    :param text: the generated text.
    :return: True for a match, False for none, None where there is no answer.
    """
    text = committed_text(text)
    text = _CHOICE.sub(" ", _ECHO.sub(" ", text))
    rejected: bool | None = None
    committed: bool | None = None
    for mention in _MENTION.finditer(text):
        said = mention.group(1).lower() == "true"
        if _REJECTED.search(text[: mention.start()]):
            rejected = said
        else:
            committed = said
    if committed is None and rejected is not None:
        return not rejected
    return committed


class Listing(NamedTuple):
    """A ranking as a model gave it: candidate numbers by position, and whether it is what was asked for."""

    numbers: tuple[int, ...]
    well_formed: bool


def read_listing(text: str, n_candidates: int, n_wanted: int) -> Listing:
    """Read an answer to the listwise prompt.

    Numbers in brackets are taken where there are any, else the numbers after the line numbers of a list, else the
    longest run of numbers, the last of equally long ones. A number that is out of range, or was listed before, keeps
    its place in the order but names nobody (0), so that no candidate moves up for a mistake.

    :param text: the generated text.
    :param n_candidates: candidates are numbered from 1 to this.
    :param n_wanted: how many were asked for; later ones are not read.
    """
    text = committed_text(text)
    if bracketed := _BRACKETED.findall(text):
        found = bracketed
    elif len(lines := _NUMBERED_LINE.findall(text)) > 1:
        found = lines
    elif runs := [_NUMBER.findall(run) for run in _LIST.findall(text)]:
        found = max(reversed(runs), key=len)
    else:
        found = _NUMBER.findall(text)[-1:]
    numbers: list[int] = []
    for digits in found[:n_wanted]:
        number = int(digits) if len(digits) < 10 else 0
        valid = 1 <= number <= n_candidates and number not in numbers
        numbers.append(number if valid else 0)
    well_formed = len(found) == len(numbers) == min(n_wanted, n_candidates) and 0 not in numbers
    return Listing(tuple(numbers), well_formed)
