"""The zero-shot prompts of the paper's appendix A.3.2, verbatim, and how a pair becomes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gecs_tasks.benchmark import DELIMITER, Subset

_COMMENT_PROMPT: Final = (
    "Given a code comment and a {language} programming language code snippet, determine if the comment accurately "
    "represents the code's function. Respond with 'True' if the code matches the comment and 'False' if it does not. "
    'The input format is defined as "comment" "[CODESPLIT]" "code". '
)
_QUERY_PROMPT: Final = (
    "Given a search query and a {language} programming language code snippet, determine if the query accurately "
    "represents the code's function. Respond with 'True' if the code matches the query and 'False' if it does not. "
    'The input format is defined as "query" "[CODESPLIT]" "code". '
)
ANSWERS: Final = ("True", "False")

# Ours, for what the paper did not do: query likelihood and listwise ranking.
_LIKELIHOOD_PROMPTS: Final = {
    "comment": "{language} code:\n\n{code}\n\nThe comment that a programmer wrote above this code:",
    "search query": "{language} code:\n\n{code}\n\nThe search query that this code answers:",
}
_LISTWISE_PROMPT: Final = (
    "Below are a {kind} and {n} {language} code snippets, numbered from [1] to [{n}]. Find those that fit the "
    "{kind} best.\n\n{kind_title}: {query}\n\n{listing}\n\n{kind_title}, again: {query}\n\nAnswer with the numbers of "
    "the {wanted} snippets that fit best, the best one first, separated by commas, and nothing else."
)

# Some 1,300 to 1,600 tokens: with the instruction and an ordinary comment it fits a context of 2,048 tokens.
MAX_CODE_CHARS: Final = 4000


def instruction(subset: Subset) -> str:
    """The text before the pair, with the subset's programming language filled in."""
    template = _QUERY_PROMPT if subset.query_kind == "search query" else _COMMENT_PROMPT
    return template.format(language=subset.language)


def cut_code(code: str, max_chars: int) -> str:
    """Cut a long code in its middle, so that the harness's cut from the left cannot take the instruction.

    :param max_chars: how many characters of the code to keep; a shorter code is returned as it is.
    :return: the code's first and last halves of ``max_chars``, with a note of what was left out between them.
    """
    if len(code) <= max_chars:
        return code
    head = max_chars - max_chars // 2
    tail = max_chars - head
    left_out = len(code) - max_chars
    return f"{code[:head]}\n[... {left_out} characters left out ...]\n{code[len(code) - tail :]}"


def render(prefix: str, query: str, code: str, max_code_chars: int = MAX_CODE_CHARS) -> str:
    """One pair's prompt.

    Right-stripped: the harness moves a context's trailing space into the continuation, which changes the tokens
    that are scored; a code with and without a trailing space must score the same.

    :param prefix: the subset's :func:`instruction`.
    """
    return f"{prefix}{query}{DELIMITER}{cut_code(code.rstrip(), max_code_chars)}".rstrip()


def render_likelihood(subset: Subset, code: str, max_code_chars: int = MAX_CODE_CHARS) -> str:
    """The context after which a query's likelihood is taken; what follows is the query itself."""
    shown = cut_code(code.rstrip(), max_code_chars)
    return _LIKELIHOOD_PROMPTS[subset.query_kind].format(language=subset.language, code=shown)


def render_listing(
    subset: Subset, query: str, codes: Sequence[str], n_wanted: int, max_code_chars: int = MAX_CODE_CHARS
) -> str:
    """One prompt with all candidates, numbered from 1 in the order given."""
    listing = "\n\n".join(
        f"[{number}]\n{cut_code(code.rstrip(), max_code_chars)}" for number, code in enumerate(codes, start=1)
    )
    return _LISTWISE_PROMPT.format(
        kind=subset.query_kind,
        kind_title=subset.query_kind.capitalize(),
        language=subset.language,
        n=len(codes),
        wanted=min(n_wanted, len(codes)),
        query=query.strip(),
        listing=listing,
    )
