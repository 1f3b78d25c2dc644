"""``gecs plan``: what a run will ask of a model, and what that costs, before it starts.

Each distinct text is tokenized once and a prompt's tokens are the sum of its parts': exact to within a few tokens a
prompt, since a tokenizer may merge across the seams.
"""

from __future__ import annotations

import json
import logging
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gecs_tasks.benchmark import FAMILIES, N_DISTRACTORS, SUBSETS, TASKS, TRAINING, Subset, task_name
from gecs_tasks.collection import Collection, load
from gecs_tasks.errors import SettingError
from gecs_tasks.prompts import (
    ANSWERS,
    MAX_CODE_CHARS,
    cut_code,
    instruction,
    render,
    render_likelihood,
    render_listing,
)
from gecs_tasks.selection import leaves, resolve
from gecs_tasks.sources.locate import locate
from gecs_tasks.tokens import Estimate, TokenArray, TokenCounter, load_tokenizer

logger = logging.getLogger(__name__)

# The tokens that a task lets a model generate, as in the tasks' YAML files.
OUTPUT_TOKENS: Final = {"match_gen": 10, "match_reason": 4096, "rank_gen": 100}
_MATCHING: Final = ("match", "match_gen", "match_reason")  # the families that take examples
_MOST: Final = N_DISTRACTORS + 1
_N_WANTED: Final = 10
_EXAMPLES: Final = 2000  # of the training set, whose mean stands for all of it
_QUERY, _CODE = "\0", "\1"  # where a prompt's texts stand
_NOTHING: Final = "Nothing"  # both the context and the continuation of an empty comment, in query likelihood
_WIDTH: Final = 100

RowArray: TypeAlias = NDArray[Any]
Examples: TypeAlias = Literal["training set", "estimated"]


@dataclass(frozen=True)
class TaskPlan:
    """What one task asks of a model, or several together.

    ``prompt_tokens`` are those of every request, with the continuation where a likelihood is asked for;
    ``output_tokens`` are an upper bound, the task's budget. ``longest_prompt`` is in tokens. ``cut`` counts the
    requests that a context of ``context`` tokens does not hold together with what they may generate, None where no
    context was given; ``usd`` is None where no price was. ``tokenizer`` is None for an estimate from characters.
    ``examples`` says where the length of few-shot examples is from, None where there are none.
    """

    task: str
    documents: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    longest_prompt: int
    tokenizer: str | None
    context: int | None = None
    cut: int | None = None
    usd: float | None = None
    num_fewshot: int = 0
    examples: Examples | None = None


def plan(
    tasks: Sequence[str],
    tokenizer: str | TokenCounter | None = None,
    *,
    limit: float | None = None,
    num_fewshot: int = 0,
    context: int | None = None,
    price_in: float | None = None,
    price_out: float | None = None,
    max_code_chars: int = MAX_CODE_CHARS,
    n_candidates: int = _MOST,
) -> list[TaskPlan]:
    """Plan a run of our tasks. Their data is found as in a run.

    :param tasks: names of tasks and groups, with wildcards, as ``gecs run`` takes them.
    :param tokenizer: see :func:`gecs_tasks.tokens.load_tokenizer`, or one that is loaded; None for an estimate.
    :param limit: the harness's: so many documents a task, or a share of them below 1.
    :param num_fewshot: examples a prompt; ranking tasks take none.
    :param context: the tokens that a model holds, prompt and answer together.
    :param price_in: USD for a million prompt tokens; ``price_out`` for a million generated. One alone leaves the other
        free.
    :param max_code_chars: the tasks' setting ``gecs_max_code_chars``; ``n_candidates`` their ``gecs_n_candidates``.
    :raises SettingError: for names that are none of our tasks, and for numbers that are out of range.
    """
    _check(limit, num_fewshot, context, (price_in, price_out), max_code_chars, n_candidates)
    names = _our_tasks(tasks)
    counter = _counter(tokenizer)
    example: float | None = None
    if num_fewshot and any(family in _MATCHING for _, family in names) and locate(TRAINING, download=False):
        example = _training_example(counter)
    measured: dict[str, _Measured] = {}
    plans = []
    for subset, family in names:
        if subset not in measured:
            measured.clear()  # tasks are in the order of their subsets: one subset's texts at a time
            measured[subset] = _Measured(_load(subset), counter, max_code_chars)
        lengths = measured[subset].requests(family, limit, n_candidates)
        n_shots = num_fewshot if family in _MATCHING else 0
        shots = 0.0
        if n_shots:
            shots = n_shots * (measured[subset].example(float(lengths.mean()), family) if example is None else example)
        output = OUTPUT_TOKENS.get(family, 0)
        prompt_tokens = int(lengths.sum()) + round(shots * lengths.size)
        prices = (price_in, price_out)
        priced = ((price_in or 0) * prompt_tokens + (price_out or 0) * output * lengths.size) / 1e6
        plans.append(
            TaskPlan(
                task=task_name(subset, family),
                documents=len(lengths),
                requests=lengths.size,
                prompt_tokens=prompt_tokens,
                output_tokens=output * lengths.size,
                longest_prompt=int(lengths.max()) + round(shots),
                tokenizer=counter.name,
                context=context,
                cut=None if context is None else int((lengths + round(shots) + output > context).sum()),
                usd=None if prices == (None, None) else priced,
                num_fewshot=n_shots,
                examples=None if not n_shots else "estimated" if example is None else "training set",
            )
        )
    return plans


def total(plans: Sequence[TaskPlan]) -> TaskPlan:
    """All tasks together: sums, and the longest of their prompts."""
    first = plans[0]
    examples = {each.examples for each in plans} - {None}
    return TaskPlan(
        task="total",
        documents=sum(each.documents for each in plans),
        requests=sum(each.requests for each in plans),
        prompt_tokens=sum(each.prompt_tokens for each in plans),
        output_tokens=sum(each.output_tokens for each in plans),
        longest_prompt=max(each.longest_prompt for each in plans),
        tokenizer=first.tokenizer,
        context=first.context,
        cut=None if first.cut is None else sum(each.cut or 0 for each in plans),
        usd=None if first.usd is None else sum(each.usd or 0 for each in plans),
        num_fewshot=max(each.num_fewshot for each in plans),
        examples=examples.pop() if examples else None,
    )


def longest_prompt(
    task: str,
    tokenizer: str | TokenCounter | None = None,
    *,
    limit: float | None = None,
    max_code_chars: int = MAX_CODE_CHARS,
    n_candidates: int = _MOST,
) -> int:
    """The tokens of a task's longest prompt, without examples; the keywords are those of :func:`plan`."""
    found = plan([task], tokenizer, limit=limit, max_code_chars=max_code_chars, n_candidates=n_candidates)
    return total(found).longest_prompt


def check_context(
    tasks: Sequence[str],
    tokenizer: str | TokenCounter | None,
    context: int,
    *,
    limit: float | None = None,
    max_code_chars: int = MAX_CODE_CHARS,
    n_candidates: int = _MOST,
) -> None:
    """Refuse listwise tasks of which a prompt and its answer do not fit a model's context.

    A listing that is cut has lost its instruction or candidates. Other tasks, ours or not, are let through. The
    keywords are those of :func:`plan`.

    :raises SettingError: naming the first such task, with the tokens that its longest prompt needs.
    """
    listwise = [leaf for name in tasks for leaf in leaves(name) if leaf in TASKS and leaf.endswith("_rank_gen")]
    counter = _counter(tokenizer) if listwise else None
    for task in listwise:
        needed = longest_prompt(task, counter, limit=limit, max_code_chars=max_code_chars, n_candidates=n_candidates)
        if needed + OUTPUT_TOKENS["rank_gen"] > context:
            about = "some " if counter is None or counter.name is None else ""
            raise SettingError(
                f"{task}: its longest prompt has {about}{needed:,} tokens and its answer up to "
                f"{OUTPUT_TOKENS['rank_gen']}, and the model's context holds {context:,}: set --metadata "
                "gecs_max_code_chars=... or gecs_n_candidates=..., or choose a model with more"
            )


def render_table(plans: Sequence[TaskPlan]) -> str:
    """The plans as a table of at most 100 columns, with a total and what the figures mean."""
    rows = [*plans, total(plans)]
    columns: dict[str, Callable[[TaskPlan], str]] = {
        "task": lambda row: row.task,
        "docs": lambda row: _short(row.documents),
        "requests": lambda row: _short(row.requests),
        "prompt": lambda row: _short(row.prompt_tokens),
        "output": lambda row: _short(row.output_tokens),
        "longest": lambda row: _short(row.longest_prompt),
    }
    if rows[-1].cut is not None:
        columns["cut"] = lambda row: _short(row.cut or 0)
    if rows[-1].usd is not None:
        columns["USD"] = lambda row: _dollars(row.usd or 0)
    cells = [list(columns), *([show(row) for show in columns.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in cells
    ]
    rule = "-" * len(lines[0])
    notes = [textwrap.fill(note, _WIDTH, subsequent_indent="  ") for note in notes_on(plans)]
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], "", *notes])


def to_json(plans: Sequence[TaskPlan]) -> str:
    """The plans as JSON: ``tasks``, ``total`` and ``notes``."""
    return json.dumps(
        {"tasks": [asdict(each) for each in plans], "total": asdict(total(plans)), "notes": notes_on(plans)}, indent=2
    )


def notes_on(plans: Sequence[TaskPlan]) -> list[str]:
    """What the figures of some plans mean, one sentence or two a note."""
    whole = total(plans)
    families = {each.task.removeprefix("gecs_").partition("_")[2] for each in plans}
    if whole.tokenizer is None:
        notes = [
            "ESTIMATE from characters (about 4.2 a token of English, 2.5 to 3.9 of code, by language), good to some "
            "15 %; give a --tokenizer to count."
        ]
    else:
        notes = [
            f"Tokens by {whole.tokenizer}. Texts are tokenized apart and added up: right to within a few tokens a text."
        ]
    notes.append("Tokens of a chat template and of a model's own beginning are not counted.")
    if any(FAMILIES[family].answers == "loglikelihood" for family in families):
        notes.append(
            "Likelihood tasks read prompt and continuation for every request and generate nothing; an engine that "
            "keeps shared prefixes reads less."
        )
    if whole.output_tokens:
        notes.append("output: an upper bound, each task's budget for every request.")
    if whole.context is not None:
        notes.append(
            f"cut: requests that a context of {whole.context:,} tokens does not hold together with what they may "
            "generate."
        )
    if whole.examples:
        source = (
            f"the mean of {TRAINING.filename}"
            if whole.examples == "training set"
            else f"estimated as the task's own mean, since {TRAINING.filename} is not here"
        )
        notes.append(f"{whole.num_fewshot} examples a matching prompt, their length {source}; ranking takes none.")
    return notes


class _Lengths:
    """The tokens of a collection's texts by row, each distinct one counted when it is first asked for."""

    def __init__(self, ids: RowArray, texts: Sequence[str], count: Callable[[list[str]], TokenArray]) -> None:
        self._ids, self._texts, self._count = ids, texts, count
        self._known = np.full(len(texts), -1, dtype=np.int64)

    def of(self, rows: RowArray) -> TokenArray:
        """The tokens of the texts of some rows, in the rows' shape."""
        ids = self._ids[rows]
        asked = np.zeros(len(self._texts), dtype=np.bool_)
        asked[ids.ravel()] = True
        (missing,) = np.nonzero(asked & (self._known < 0))
        if len(missing):
            self._known[missing] = self._count([self._texts[i] for i in missing.tolist()])
        return self._known[ids]


class _Measured:
    """A subset's requests in tokens."""

    def __init__(self, collection: Collection, counter: TokenCounter, max_code_chars: int) -> None:
        self._collection, self._counter = collection, counter
        self._subset = collection.subset

        def queries(texts: list[str]) -> TokenArray:
            return counter.count(_after_a_space([text.strip() for text in texts]))

        def codes(texts: list[str]) -> TokenArray:
            shown = _after_a_space([cut_code(text.rstrip(), max_code_chars) for text in texts])
            return counter.count(shown, collection.subset.language)

        self.queries = _Lengths(collection.query_ids, collection.distinct_queries, queries)
        self.codes = _Lengths(collection.code_ids, collection.distinct_codes, codes)
        self._answers = counter.count([f" {answer}" for answer in ANSWERS])
        self._seam = int(counter.count(["\n\n"])[0])  # between two examples

    def pairs(self, queries: RowArray, codes: RowArray) -> TokenArray:
        """The tokens of the matching prompts of some pairs of rows."""
        lengths: TokenArray = self._constant(_pair(self._subset)) + self.queries.of(queries) + self.codes.of(codes)
        return lengths

    def example(self, length: float, family: str = "match_gen") -> float:
        """The tokens of an example whose prompt has ``length``: with its answer, which ``match`` has in its length."""
        return length + self._seam + (0 if family == "match" else float(self._answers.mean()))

    def requests(self, family: str, limit: float | None, n_candidates: int) -> TokenArray:
        """The tokens of a family's requests, shape (n_documents, requests a document)."""
        n_rows = len(self._collection)
        if family in _MATCHING:
            documents = np.arange(_limited(2 * n_rows, limit))
            rows = documents // 2
            codes = np.where(documents % 2, self._collection.negatives[rows], rows)
            prompts: TokenArray = self.pairs(rows, codes)[:, None]
            asked: TokenArray = prompts + self._answers  # one request for each answer
            return asked if family == "match" else prompts
        rows = np.arange(_limited(n_rows, limit))
        pools = self._collection.pools[: len(rows)]
        if family == "rank":
            pointwise: TokenArray = self.pairs(rows[:, None], pools) + self._answers[0]
            return pointwise
        if family == "rank_ql":
            return self._likelihood(rows, pools)
        listed = self.codes.of(pools[:, :n_candidates]).sum(axis=1)
        constant = self._constant(render_listing(self._subset, _QUERY, [_CODE] * n_candidates, _N_WANTED))
        listings: TokenArray = constant + 2 * self.queries.of(rows) + listed
        return listings[:, None]

    def _likelihood(self, rows: RowArray, pools: RowArray) -> TokenArray:
        constant = self._constant(render_likelihood(self._subset, _CODE))
        lengths: TokenArray = constant + self.queries.of(rows)[:, None] + self.codes.of(pools)
        queries = self._collection.queries
        empty = np.fromiter((not queries[row].strip() for row in rows.tolist()), dtype=np.bool_, count=len(rows))
        lengths[empty] = self._counter.count([_NOTHING, f" {_NOTHING}"]).sum()
        return lengths

    def _constant(self, prompt: str) -> int:
        """The tokens of what stands around a prompt's texts; a space before a text is the text's."""
        parts = [part.rstrip(" ") for part in prompt.replace(_CODE, _QUERY).split(_QUERY)]
        return int(self._counter.count([part for part in parts if part]).sum())


def _pair(subset: Subset) -> str:
    return render(instruction(subset), _QUERY, _CODE)


def _after_a_space(texts: Sequence[str]) -> list[str]:
    # As they stand in a prompt, where many tokenizers count the space before a word as the word's.
    return [f" {text}" if text else "" for text in texts]


def _limited(n_documents: int, limit: float | None) -> int:
    """How many documents the harness takes under a limit."""
    if limit is None:
        return n_documents
    return min(n_documents, math.ceil(n_documents * limit) if limit < 1 else int(limit))


def _training_example(counter: TokenCounter) -> float:
    """The mean tokens of a few-shot example, its answer and the space after it; some rows stand for all."""
    measured = _Measured(load(TRAINING.name), counter, MAX_CODE_CHARS)
    n_rows = len(load(TRAINING.name))
    rows = np.unique(np.linspace(0, n_rows - 1, min(n_rows, _EXAMPLES)).astype(np.intp))
    return measured.example(float(measured.pairs(rows, rows).mean()))


def _load(subset: str) -> Collection:
    if locate(SUBSETS[subset], download=False) is None:
        logger.warning("%s is not here: downloading it", SUBSETS[subset].filename)
    return load(subset)


def _our_tasks(names: Sequence[str]) -> list[tuple[str, str]]:
    """The (subset, family) of all tasks asked for, in the benchmark's order."""
    wanted = {leaf for name in resolve(names) for leaf in leaves(name)}
    others = sorted(wanted - set(TASKS))
    if others:
        raise SettingError(f"{', '.join(others)}: not of ours, so it cannot be planned; `gecs tasks` lists ours")
    return [(subset, family) for subset in SUBSETS for family in FAMILIES if task_name(subset, family) in wanted]


def _counter(tokenizer: str | TokenCounter | None) -> TokenCounter:
    if tokenizer is None:
        return Estimate()
    return load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer


def _check(
    limit: float | None,
    num_fewshot: int,
    context: int | None,
    prices: tuple[float | None, float | None],
    max_code_chars: int,
    n_candidates: int,
) -> None:
    wrong = []
    if limit is not None and not 0 < limit < math.inf:
        wrong.append(f"--limit is {limit}: expected a number of documents, or a share of them below 1")
    if num_fewshot < 0:
        wrong.append(f"--num_fewshot is {num_fewshot}: expected 0 or more")
    if context is not None and context < 1:
        wrong.append(f"--context is {context}: expected a number of tokens, 1 or more")
    for option, price in zip(("--price-in", "--price-out"), prices, strict=True):
        if price is not None and not 0 <= price < math.inf:
            wrong.append(f"{option} is {price}: expected USD for a million tokens, 0 or more")
    if max_code_chars < 1:
        wrong.append(f"--max-code-chars is {max_code_chars}: expected 1 or more")
    if not 2 <= n_candidates <= _MOST:
        wrong.append(f"--n-candidates is {n_candidates}: expected a number from 2 to {_MOST}")
    if wrong:
        raise SettingError("; ".join(wrong))


def _short(number: int) -> str:
    return f"{number:,}" if number < 1_000_000 else f"{number / 1e6:,.2f}M"


def _dollars(usd: float) -> str:
    return "<0.01" if 0 < usd < 0.01 else f"{usd:,.2f}"
