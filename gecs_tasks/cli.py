"""The ``gecs`` command: arguments in, calls out."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence

import gecs_tasks
from gecs_tasks.benchmark import FAMILIES, GROUPS, N_DISTRACTORS, SUBSETS, TASKS, task_name
from gecs_tasks.errors import GecsError
from gecs_tasks.prompts import MAX_CODE_CHARS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    :param arguments: without the program's name; the process's own by default.
    :return: the exit code: 0, or 2 for an error that the user can mend.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["run"]:  # everything after it is lm-eval's
            from gecs_tasks.run import run

            run(given[1:])
            return 0
        parsed = _parser().parse_args(given)
        return int(parsed.call(parsed) or 0)
    except GecsError as error:
        _end_progress_bars()
        print(f"gecs: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        _end_progress_bars()
        print("gecs: interrupted", file=sys.stderr)
        return 130


def _end_progress_bars() -> None:
    """End the line of every progress bar that an error left standing, so that the message has a line of its own."""
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
    for bar in list(getattr(bars, "_instances", ())):
        bar.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gecs", description="GenCodeSearchNet for lm-evaluation-harness.")
    parser.add_argument("--version", action="version", version=f"gecs-tasks {gecs_tasks.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands.add_parser("run", help="run lm-eval with our tasks and models (takes lm-eval's own arguments)")
    tasks = commands.add_parser("tasks", help="list our tasks and groups")
    tasks.add_argument("--path", action="store_true", help="print the folder of their YAML files, for --include_path")
    tasks.set_defaults(call=_tasks)
    plan = commands.add_parser("plan", help="what a run will ask of a model: requests, tokens, cost")
    plan.add_argument("--tasks", nargs="+", required=True, metavar="NAME", help="tasks and groups, as in gecs run")
    plan.add_argument("--tokenizer", metavar="ID_OR_PATH", help="counts tokens; without it they are estimated")
    plan.add_argument("--limit", type=float, metavar="N", help="documents a task, or a share of them below 1")
    plan.add_argument("--num_fewshot", type=int, default=0, metavar="K", help="examples a matching prompt")
    plan.add_argument("--context", type=int, metavar="N", help="tokens that the model holds: says what it would cut")
    plan.add_argument("--price-in", type=float, metavar="USD", help="of a million prompt tokens")
    plan.add_argument("--price-out", type=float, metavar="USD", help="of a million generated tokens")
    plan.add_argument("--max-code-chars", type=int, default=MAX_CODE_CHARS, metavar="N", help="gecs_max_code_chars")
    plan.add_argument("--n-candidates", type=int, default=N_DISTRACTORS + 1, metavar="N", help="gecs_n_candidates")
    plan.add_argument("--format", choices=("table", "json"), default="table")
    plan.set_defaults(call=_plan)
    enable = commands.add_parser("enable", help="let the plain `lm_eval` of this environment find our tasks and models")
    enable.set_defaults(call=_enable)
    disable = commands.add_parser("disable", help="undo `gecs enable`")
    disable.set_defaults(call=_disable)
    status = commands.add_parser("status", help="what is installed, active and found (for bug reports)")
    status.set_defaults(call=_status)
    return parser


def _tasks(parsed: argparse.Namespace) -> None:
    from gecs_tasks import plugin

    if parsed.path:
        print(plugin.tasks_path())
        return
    width = max(map(len, (*TASKS, *GROUPS))) + 2
    for name, subset in SUBSETS.items():
        for family in FAMILIES:
            print(f"{task_name(name, family):<{width}}{subset.title}, {subset.language}, {subset.rows[0]:,} rows")
    for group in GROUPS.values():
        line = f"{group.name:<{width}}{', '.join(group.members)}"
        print(textwrap.fill(line, 100, subsequent_indent=" " * width, drop_whitespace=True))


def _plan(parsed: argparse.Namespace) -> None:
    from gecs_tasks.plan import plan, render_table, to_json
    from gecs_tasks.selection import task_list

    plans = plan(
        task_list(parsed.tasks),
        parsed.tokenizer,
        limit=parsed.limit,
        num_fewshot=parsed.num_fewshot,
        context=parsed.context,
        price_in=parsed.price_in,
        price_out=parsed.price_out,
        max_code_chars=parsed.max_code_chars,
        n_candidates=parsed.n_candidates,
    )
    print(to_json(plans) if parsed.format == "json" else render_table(plans))


def _enable(parsed: argparse.Namespace) -> None:
    from gecs_tasks import activation

    for path in activation.enable():
        print(path)
    print("lm_eval now finds our tasks and models; `gecs disable` undoes this", file=sys.stderr)


def _disable(parsed: argparse.Namespace) -> None:
    from gecs_tasks import activation

    removed = activation.disable()
    for path in removed:
        print(path)
    print("removed" if removed else "nothing was enabled", file=sys.stderr)


def _status(parsed: argparse.Namespace) -> None:
    from gecs_tasks.status import status_lines

    for line in status_lines():
        print(line)


if __name__ == "__main__":
    sys.exit(main())
