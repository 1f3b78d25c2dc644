"""GenCodeSearchNet as data: its subsets, languages, kinds of generalisation, sources and digests.

Source: Diera et al., "GenCodeSearchNet: A Benchmark Test Suite for Evaluating Generalization in
Programming Language Understanding", GenBench workshop 2023; data record doi:10.5281/zenodo.8310891.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

DOI: Final = "10.5281/zenodo.8310891"
DELIMITER: Final = " [CODESPLIT] "
SEED: Final = 42
N_DISTRACTORS: Final = 99


class Generalisation(str, Enum):
    """The kinds of generalisation that the paper measures (its section 4.3)."""

    ROBUSTNESS = "robustness"
    CROSSLINGUAL = "crosslingual"
    DOMAIN = "domain"


@dataclass(frozen=True)
class HubSource:
    """Where the raw rows of a subset stand on the Hugging Face Hub.

    ``layout`` names the columns: ``codesearchnet`` (``func_documentation_tokens``, ``func_code_tokens``),
    ``advtest`` (``docstring_tokens``, ``function_tokens`` or, for training, ``code_tokens``), ``cosqa``
    (``docstring_tokens``, ``code_tokens``, ``label``), ``statcodesearch`` (``Comment``, ``Code``).
    """

    repo: str
    layout: Literal["codesearchnet", "advtest", "cosqa", "statcodesearch"]
    config: str | None
    split: str


@dataclass(frozen=True)
class Subset:
    """One test set of the benchmark.

    ``rows`` holds every row count that the benchmark's own documents state, the first being the paper's.
    ``sha256`` is the released file's digest where it is known. ``query_kind`` decides which of the paper's
    two prompts is used. ``released`` is false for sets that are not part of the published benchmark.
    """

    name: str
    title: str
    filename: str
    language: str
    rows: tuple[int, ...]
    kinds: tuple[Generalisation, ...]
    hub: HubSource | None = None
    sha256: str | None = None
    query_kind: Literal["comment", "search query"] = "comment"
    released: bool = True


def _codesearchnet(name: str, title: str, rows: tuple[int, ...]) -> Subset:
    return Subset(
        name=name,
        title=f"CodeSearchNet {title}",
        filename=f"test_{name}.jsonl",
        language=title,
        rows=rows,
        kinds=(Generalisation.CROSSLINGUAL,),
        hub=HubSource("code-search-net/code_search_net", "codesearchnet", name, "test"),
    )


_SUBSETS = (
    Subset(
        name="advtest",
        title="CodeSearchNet AdvTest",
        filename="test_adv.jsonl",
        language="Python",
        rows=(19210,),
        kinds=(Generalisation.ROBUSTNESS,),
        hub=HubSource("google/code_x_glue_tc_nl_code_search_adv", "advtest", None, "test"),
    ),
    Subset(
        name="cosqa",
        title="CoSQA",
        filename="test_cosqa.jsonl",
        language="Python",
        rows=(10293,),
        kinds=(Generalisation.ROBUSTNESS,),
        hub=HubSource("gonglinyuan/CoSQA", "cosqa", None, "train"),
        sha256="294ed758d646ef54537abc281d0ec0828633831007f01d70374f44ca92be09f7",
        query_kind="search query",
    ),
    _codesearchnet("ruby", "Ruby", (2279,)),
    _codesearchnet("go", "Go", (14291,)),
    _codesearchnet("java", "Java", (26909,)),
    _codesearchnet("javascript", "JavaScript", (6483,)),
    # The paper's Table 1 says 29,391; the Hub's card of the same set says 28,391.
    _codesearchnet("php", "PHP", (29391, 28391)),
    Subset(
        name="statcode",
        title="StatCodeSearch",
        filename="test_statcodesearch.jsonl",
        language="R",
        rows=(1070,),
        kinds=(Generalisation.CROSSLINGUAL, Generalisation.DOMAIN),
        hub=HubSource("drndr/statcodesearch", "statcodesearch", None, "test"),
        sha256="2053a12b3b364c86b9aa88817d6d20c649a1a60e0f25b2d5cd6e793adbccaae3",
    ),
    Subset(
        name="demo",
        title="Demo (not part of GenCodeSearchNet)",
        filename="demo.jsonl",
        language="R",
        rows=(160,),
        kinds=(),
        released=False,
    ),
)

SUBSETS: Final[dict[str, Subset]] = {subset.name: subset for subset in _SUBSETS}
RELEASED: Final[tuple[str, ...]] = tuple(name for name, subset in SUBSETS.items() if subset.released)
CODESEARCHNET: Final[tuple[str, ...]] = ("ruby", "go", "java", "javascript", "php")


@dataclass(frozen=True)
class Family:
    """A kind of task that every subset has.

    ``metric`` is what a group of them is averaged by. ``answers`` says what the harness asks a model for: the
    log-likelihood of a continuation, or generated text. ``core`` families make up the released benchmark's groups.
    """

    name: str
    metric: str
    answers: Literal["loglikelihood", "text"]
    core: bool = False


_FAMILIES = (
    Family("match", "acc", "loglikelihood", core=True),
    Family("rank", "mrr", "loglikelihood", core=True),
    Family("match_gen", "acc", "text"),
    Family("match_reason", "acc", "text"),
    Family("rank_ql", "mrr", "loglikelihood"),
    Family("rank_gen", "mrr", "text"),
)
FAMILIES: Final[dict[str, Family]] = {family.name: family for family in _FAMILIES}
CORE: Final[tuple[str, ...]] = tuple(name for name, family in FAMILIES.items() if family.core)
# What a chat-completions API can run of each subset.
CHAT: Final[tuple[str, ...]] = ("match_gen", "rank_gen")


@dataclass(frozen=True)
class TaskGroup:
    """A named group of tasks, as the harness shows it.

    ``mean_of`` names the metric whose flat, unweighted mean over the group's own leaves is a figure of the paper;
    None where it is not (cross-lingual is the mean of two items, one of them a mean itself), so that no group
    shows a wrong number.
    """

    name: str
    members: tuple[str, ...]
    mean_of: str | None = None


TRAINING: Final = Subset(
    name="train",
    title="CodeSearchNet AdvTest, training",
    filename="train_adv.jsonl",
    language="Python",
    rows=(251820,),
    kinds=(),
    hub=HubSource("google/code_x_glue_tc_nl_code_search_adv", "advtest", None, "train"),
)


def task_name(subset: str, family: str) -> str:
    """The harness's name of a task, e.g. ``gecs_statcode_rank``."""
    return f"gecs_{subset}_{family}"


def _groups() -> tuple[TaskGroup, ...]:
    def of(subset: str, families: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(task_name(subset, family) for family in families)

    groups = [TaskGroup(f"gecs_{name}", of(name, CORE)) for name in SUBSETS]
    groups += [TaskGroup(f"gecs_{name}_chat", of(name, CHAT)) for name in SUBSETS]
    for kind, members in (("codesearchnet", CODESEARCHNET), ("robustness", ("advtest", "cosqa"))):
        for family in CORE:
            leaves = tuple(task_name(name, family) for name in members)
            groups.append(TaskGroup(f"gecs_{kind}_{family}", leaves, FAMILIES[family].metric))
        groups.append(TaskGroup(f"gecs_{kind}", tuple(f"gecs_{kind}_{family}" for family in CORE)))
    groups.append(TaskGroup("gecs_crosslingual", ("gecs_codesearchnet", "gecs_statcode")))
    groups.append(TaskGroup("gecs_domain", ("gecs_statcode",)))
    for family in CORE:
        groups.append(TaskGroup(f"gecs_{family}", tuple(task_name(name, family) for name in RELEASED)))
    groups.append(TaskGroup("gecs", tuple(f"gecs_{family}" for family in CORE)))
    groups.append(TaskGroup("gecs_chat", tuple(f"gecs_{name}_chat" for name in RELEASED)))
    groups.append(TaskGroup("gecs_ql", tuple(task_name(name, "rank_ql") for name in RELEASED)))
    return tuple(groups)


GROUPS: Final[dict[str, TaskGroup]] = {group.name: group for group in _groups()}
TASKS: Final[tuple[str, ...]] = tuple(task_name(name, family) for name in SUBSETS for family in FAMILIES)
