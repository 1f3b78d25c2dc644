"""Which of our tasks a user's names stand for."""

from __future__ import annotations

import difflib
import fnmatch
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gecs_tasks.benchmark import GROUPS, TASKS
from gecs_tasks.errors import SettingError

logger = logging.getLogger(__name__)


def task_list(tasks: Any) -> list[str]:
    """The names of a ``--tasks`` argument, given apart or joined by commas.

    :raises SettingError: where there is none, or one is no text.
    """
    parts = [tasks] if isinstance(tasks, str) else list(tasks or [])
    if not all(isinstance(part, str) for part in parts):
        raise SettingError(f"tasks are {parts!r}: expected names")
    names = [name.strip() for part in parts for name in part.split(",") if name.strip()]
    if not names:
        raise SettingError("no --tasks given; `gecs tasks` lists them, e.g. --tasks gecs_statcode")
    return names


def resolve(names: Iterable[str]) -> list[str]:
    """Our names with wildcards resolved and each task wanted once; other names as they are.

    The harness refuses a task that it meets twice, as in two groups: a group or task that another one holds wholly is
    left out, which changes nothing.

    :raises SettingError: for names that look ours and are not, and for groups of which each holds a part of the other.
    """
    ours: dict[str, frozenset[str]] = {}
    others, unknown = [], []
    for name in names:
        matches = fnmatch.filter((*TASKS, *GROUPS), name) if name.startswith("gecs") else []
        ours.update((match, frozenset(leaves(match))) for match in matches)
        if not matches:
            others.append(name)
            if name.startswith("gecs") and not name.endswith(".yaml") and not Path(name).is_dir():
                unknown.append(name)
    if unknown:
        raise unknown_tasks(unknown)
    kept: dict[str, frozenset[str]] = {}
    for name in sorted(ours, key=lambda name: -len(ours[name])):
        holder = next((other for other in kept if ours[name] <= kept[other]), None)
        clash = next((other for other in kept if ours[name] & kept[other]), None)
        if holder:
            logger.info("%s is run as a part of %s", name, holder)
        elif clash:
            raise SettingError(
                f"{name} and {clash} share some tasks, and the harness runs a task once: name tasks or smaller groups"
            )
        else:
            kept[name] = ours[name]
    return [*(name for name in ours if name in kept), *others]


def leaves(name: str) -> list[str]:
    """The tasks that a group holds; a task's own name for a task."""
    return [leaf for member in GROUPS[name].members for leaf in leaves(member)] if name in GROUPS else [name]


def unknown_tasks(names: Iterable[str]) -> SettingError:
    """The error for names that nobody has, with the nearest of ours."""
    ours = (*TASKS, *GROUPS)
    described = []
    for name in names:
        near = difflib.get_close_matches(name, ours, n=1)
        described.append(f"{name} (did you mean {near[0]}?)" if near else name)
    return SettingError(
        f"no task is named {', '.join(described)}; `gecs tasks` lists ours, `lm_eval ls tasks` the harness's"
    )
