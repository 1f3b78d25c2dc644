"""The YAML files, held against benchmark.py, and what the harness makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gecs_tasks import plugin
from gecs_tasks.benchmark import CHAT, CODESEARCHNET, CORE, FAMILIES, GROUPS, RELEASED, SUBSETS, TASKS, task_name
from gecs_tasks.prompts import ANSWERS, MAX_CODE_CHARS


class _Loader(yaml.SafeLoader):
    pass


_Loader.add_constructor("!function", lambda loader, node: f"!function {node.value}")


def read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load(path.read_text(), Loader=_Loader)
    return loaded


YAMLS = {path.stem: read(path) for path in plugin.tasks_path().glob("*.yaml")}
TEMPLATES = {family: read(plugin.tasks_path() / f"_{family}_template_yaml") for family in FAMILIES}


def test_the_yaml_files_are_the_benchmark() -> None:
    assert set(YAMLS) == {*TASKS, *GROUPS}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("subset", SUBSETS)
def test_a_task_is_its_template_and_its_subset(subset: str, family: str) -> None:
    assert YAMLS[task_name(subset, family)] == {
        "include": f"_{family}_template_yaml",
        "task": task_name(subset, family),
        "dataset_kwargs": {"gecs_subset": subset},
    }


@pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.name)
def test_a_group_is_its_members_and_at_most_one_mean(group: Any) -> None:
    mean = {"aggregate_metric_list": [{"metric": group.mean_of, "weight_by_size": False}]} if group.mean_of else {}
    assert YAMLS[group.name] == {
        "group": group.name,
        "task": list(group.members),
        **mean,
        "metadata": {"version": 1.0},
    }


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_templates(family: Any) -> None:
    template = TEMPLATES[family.name]
    metadata = {"version": 1.0, "gecs_max_code_chars": MAX_CODE_CHARS, "gecs": {}}
    if family.name == "rank_gen":
        metadata["gecs_n_candidates"] = 100
    assert template["metadata"] == metadata
    assert family.metric in [metric["metric"] for metric in template["metric_list"]]
    assert (template["output_type"] == "generate_until") == (family.answers == "text")
    if family.name.startswith("match"):  # few-shot examples come from a sampler of ours
        assert "num_fewshot" not in template
        assert template["fewshot_config"]["sampler"] == "!function gecs_tasks.families.fewshot.BalancedSampler"
    else:
        assert template["num_fewshot"] == 0
    assert template["fewshot_config"]["samples"] == []


def test_the_papers_protocol() -> None:
    assert tuple(TEMPLATES["match"]["doc_to_choice"]) == ANSWERS
    assert TEMPLATES["rank"]["doc_to_target"] == ANSWERS[0]
    assert TEMPLATES["match_gen"]["generation_kwargs"]["max_gen_toks"] == 10
    assert TEMPLATES["match_gen"]["generation_kwargs"]["do_sample"] is False


def leaves(group: str) -> list[str]:
    return [leaf for member in GROUPS[group].members for leaf in (leaves(member) if member in GROUPS else [member])]


def test_groups_hold_what_the_paper_says() -> None:
    both = CORE
    assert sorted(leaves("gecs")) == sorted(task_name(name, family) for name in RELEASED for family in both)
    assert len(leaves("gecs")) == 16
    assert sorted(leaves("gecs_robustness")) == sorted(task_name(n, f) for n in ("advtest", "cosqa") for f in both)
    crosslingual = (*CODESEARCHNET, "statcode")
    assert sorted(leaves("gecs_crosslingual")) == sorted(task_name(n, f) for n in crosslingual for f in both)
    assert leaves("gecs_domain") == ["gecs_statcode_match", "gecs_statcode_rank"]
    assert sorted(leaves("gecs_chat")) == sorted(task_name(n, f) for n in RELEASED for f in CHAT)
    assert sorted(leaves("gecs_ql")) == sorted(task_name(n, "rank_ql") for n in RELEASED)
    assert leaves("gecs_statcode_chat") == ["gecs_statcode_match_gen", "gecs_statcode_rank_gen"]
    assert not any(
        "demo" in leaf
        for group in ("gecs", "gecs_match", "gecs_rank", "gecs_chat", "gecs_ql")
        for leaf in leaves(group)
    )


def test_no_group_shows_a_mean_that_is_not_the_papers() -> None:
    """Flat means are right for the five languages and for the two robustness sets, for one metric at a time."""
    shown = {group.name: group.mean_of for group in GROUPS.values() if group.mean_of}
    assert shown == {
        "gecs_codesearchnet_match": "acc",
        "gecs_codesearchnet_rank": "mrr",
        "gecs_robustness_match": "acc",
        "gecs_robustness_rank": "mrr",
    }


def test_the_harness_builds_every_task_on_real_data(real_data: Path) -> None:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(plugin.tasks_path()), include_defaults=False)
    loaded = manager.load([*TASKS])
    assert set(loaded["tasks"]) == set(TASKS)
    for name, task in loaded["tasks"].items():
        assert task.VERSION == 1.0
        info = task.config.metadata["gecs"]
        assert info["data"]["rows"] * (2 if "_match" in name else 1) == len(task.eval_docs)
        assert info["draws"]["seed"] == 42
    statcode = loaded["tasks"]["gecs_statcode_rank"].config.metadata["gecs"]
    assert statcode["data"]["status"] == "official"
    assert statcode["draws"]["sha256"] == "4c248febb315c8c21d065df82a82aa4af15bd429e0a730c978ed8fb6b2e0a2eb"
    assert statcode["prompt"]["codes_cut"] == 1  # one code of 4,280 characters
