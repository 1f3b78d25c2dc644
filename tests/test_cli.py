"""The ``gecs`` command, as a user's shell runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gecs_tasks
from gecs_tasks.benchmark import GROUPS, TASKS
from gecs_tasks.errors import SettingError
from gecs_tasks.selection import resolve


def gecs(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gecs_tasks.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def one_line_error(done: subprocess.CompletedProcess[str]) -> str:
    """The error's one line; anything else on stderr is the harness's log."""
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("gecs: ")]
    return line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model gecs-bm25", "no --tasks given; `gecs tasks` lists them"),
        ("--model gecs-bm25 --tasks gecs_statcod", "no task is named gecs_statcod (did you mean gecs_statcode?)"),
        ("--model gecs-bm25 --tasks gecs_demo,gecs_rnk,gecs_perl", "gecs_rnk (did you mean gecs_rank?), gecs_perl"),
        ("--model gecs-bm25 --tasks gecs_demo nothing_such", "no task is named nothing_such"),
        ("--model gecs-bm52 --tasks gecs_demo", "no model type is named 'gecs-bm52': did you mean gecs-bm25?"),
        ("--model gecs-bm25 --tasks gecs_demo --model_args k2=1,methd=x", "no model argument k2"),
        ("--model gecs-bm25 --tasks gecs_demo --model_args b=7", "b is 7: expected a number from 0 to 1"),
        ("--model gecs-bm25 --tasks gecs_demo --model_args api_key=sk-1", "--model_args holds 'api_key'"),
        ("--model gecs-bm25 --tasks gecs_demo --metadata token=abc", "--metadata holds 'token'"),
        ("--model gecs-bm25 --tasks gecs_demo --metadata gecs_max_code_chars=0", "gecs_max_code_chars is 0"),
        ("--model gecs-bm25 --tasks gecs_demo --apply_chat_template", "leave --apply_chat_template out"),
        ("--config missing.yaml", "--config: Config file not found"),
        ("--model gecs-bm25 --tasks ,", "no --tasks given"),
        ("--model dummy --model_args device=cpu --tasks gecs_demo", "write --device cpu"),
        ("--model gecs-bm25 --tasks gecs_demo --limit 0", "--limit is 0.0: expected a number of documents"),
        ("--model gecs-bm25 --tasks gecs_demo --limit -1", "--limit is -1.0"),
        ("--model gecs-bm25 --tasks gecs_demo --log_samples", "add --output_path"),
        ('--model gecs-bm25 --tasks gecs_demo --model_args {"k1":1', "Invalid JSON"),
        ('--model gecs-bm25 --tasks gecs_demo --samples {"gecs_demo_rank":[160]}', "document 160 of gecs_demo_rank"),
        ("--model gecs-bm25 --tasks gecs_demo --metadata gecs_subset=ruby", "--metadata holds 'gecs_subset'"),
        ('--model gecs-bm25 --tasks gecs_demo --metadata {"OpenAI-API-Key":"sk-1"}', "holds 'OpenAI-API-Key'"),
        (
            "--model gecs-bm25 --tasks gecs_demo --model_args base_url=http://bob:sk-1@host/v1",
            "--model_args holds a password or key in 'base_url'",
        ),
        ("--model gecs-bm25 --tasks gecs_demo --gen_kwargs api_key=sk-1", "--gen_kwargs holds 'api_key'"),
        (
            '--model gecs-bm25 --tasks gecs_demo --model_args {"headers":{"Authorization":"sk-1"}}',
            "--model_args holds 'Authorization'",
        ),
    ],
)
def test_a_users_error_is_one_line(arguments: str, message: str) -> None:
    line = one_line_error(gecs("run", *arguments.split()))
    assert message in line
    assert "sk-1" not in line


def test_arguments_that_the_harness_does_not_know() -> None:
    done = gecs("run", "--model", "gecs-bm25", "--tasks", "gecs_demo", "--colour", "red")
    assert done.returncode == 2
    assert "unrecognized arguments: --colour red" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_data_is_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    # an address that refuses at once, whatever network there is
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = gecs(
        "run", "--model", "gecs-bm25", "--tasks", "gecs_statcode", GECS_DATA_DIR=str(tmp_path / "empty"), **proxies
    )
    line = one_line_error(done)
    assert "test_statcodesearch.jsonl" in line
    assert "GECS_DATA_DIR" in line


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    rows = [json.dumps({"input": f"q{i} [CODESPLIT] c{i}"}) for i in range(120)]
    rows[41] = '{"input": "no delimiter"}'
    (tmp_path / "test_go.jsonl").write_text("\n".join(rows))
    line = one_line_error(gecs("run", "--model", "gecs-bm25", "--tasks", "gecs_go", GECS_DATA_DIR=str(tmp_path)))
    assert "test_go.jsonl, line 42: 0 delimiters" in line


def test_groups_that_hold_one_another_are_run_once() -> None:
    arguments = ("--model", "gecs-bm25", "--tasks", "gecs_demo", "gecs_demo_rank", "gecs_dem*_rank", "--limit", "2")
    done = gecs("run", *arguments)
    assert done.returncode == 0, done.stderr
    assert "gecs_demo_rank is run as a part of gecs_demo" in done.stderr
    assert done.stdout.count("|mrr ") == 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["gecs_robustness", "gecs_crosslingual", "gecs_domain"], ["gecs_robustness", "gecs_crosslingual"]),
        (["gecs_statcode_rank", "gecs_statcode"], ["gecs_statcode"]),
        (["gecs_match", "gecs_rank"], ["gecs_match", "gecs_rank"]),
        (["gecs_go_rank", "hellaswag"], ["gecs_go_rank", "hellaswag"]),
        (
            ["gecs_*_rank"],
            ["gecs_statcode_rank", "gecs_demo_rank", "gecs_codesearchnet_rank", "gecs_robustness_rank"],
        ),
    ],
)
def test_names_become_tasks_that_the_harness_meets_once(given: list[str], kept: list[str]) -> None:
    assert resolve(given) == kept


def test_groups_that_share_some_tasks_are_refused() -> None:
    with pytest.raises(SettingError, match=r"gecs_statcode and gecs_rank share some tasks"):
        resolve(["gecs_rank", "gecs_statcode"])


def test_an_output_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output = str(tmp_path / "file")
    done = gecs("run", "--model", "gecs-bm25", "--tasks", "gecs_demo", "--output_path", output)
    assert "file is a file: give a directory" in one_line_error(done)


def test_results_of_a_model_without_a_name_have_one(tmp_path: Path) -> None:
    gecs("run", "--model", "gecs-bm25", "--tasks", "gecs_demo_rank", "--limit", "1", "--output_path", str(tmp_path))
    (results,) = tmp_path.rglob("results_*.json")
    assert results.parent.name == "gecs-bm25"


def test_too_few_rows_for_a_pool(tmp_path: Path) -> None:
    (tmp_path / "test_go.jsonl").write_text("\n".join(json.dumps({"input": f"q{i} [CODESPLIT] c"}) for i in range(50)))
    line = one_line_error(gecs("run", "--model", "gecs-bm25", "--tasks", "gecs_go", GECS_DATA_DIR=str(tmp_path)))
    assert "test_go.jsonl (GECS_DATA_DIR): a pool of 100 candidates needs at least 100 rows, found 50" in line


def test_a_run_prints_a_table_and_writes_results(tmp_path: Path) -> None:
    output = str(tmp_path / "results")
    done = gecs("run", "--model", "gecs-bm25", "--tasks", "gecs_demo", "--limit", "5", "--output_path", output)
    assert done.returncode == 0, done.stderr
    assert "gecs_demo_rank" in done.stdout
    assert "|mrr " in done.stdout
    assert "Custom kwargs" not in done.stderr
    (results,) = (tmp_path / "results").rglob("results_*.json")
    info = json.loads(results.read_text())["configs"]["gecs_demo_rank"]["metadata"]["gecs"]
    assert info["data"]["status"] == "demo"
    assert (tmp_path / "results" / info["per_query"]["file"]).is_file()


def test_a_config_file(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("model: gecs-bm25\ntasks: [gecs_demo_rank]\nlimit: 2\n")
    done = gecs("run", "--config", str(config))
    assert done.returncode == 0, done.stderr
    assert "gecs_demo_rank" in done.stdout
    config.write_text("model: gecs-bm25\ntasks: [gecs_demo_rank]\nmodel_args: {api_key: sk-1}\n")
    assert "--model_args holds 'api_key'" in one_line_error(gecs("run", "--config", str(config)))


def test_a_missing_package_of_a_model_is_named() -> None:
    """The harness's own torch models where torch is not installed."""
    blocked = "import sys; sys.modules['torch'] = None\nfrom gecs_tasks.cli import main\nsys.exit(main())"
    command = [sys.executable, "-c", blocked, "run", "--model", "hf", "--tasks", "gecs_demo"]
    line = one_line_error(subprocess.run(command, capture_output=True, text=True))
    assert line == 'gecs: --model hf needs torch, which is not installed: pip install "lm-eval[hf]"'


def test_tasks() -> None:
    done = gecs("tasks")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [*TASKS, *GROUPS]
    assert max(map(len, lines)) <= 100
    path = gecs("tasks", "--path").stdout.strip()
    assert (Path(path) / "gecs_statcode_rank.yaml").is_file()


def test_status_says_what_a_bug_report_needs(tmp_path: Path) -> None:
    (tmp_path / "test_ruby.jsonl").write_text("")
    done = gecs("status", GECS_DATA_DIR=str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.startswith(f"gecs-tasks {gecs_tasks.__version__}, Python 3.")
    assert "lm_eval 0.4" in done.stdout
    assert f"GECS_DATA_DIR: {tmp_path}" in done.stdout
    assert f"ruby        {tmp_path / 'test_ruby.jsonl'} (GECS_DATA_DIR)" in done.stdout
    assert "php         not here: downloaded when a task needs it" in done.stdout
    assert "gecs-bm25         can load" in done.stdout
    broken = gecs("status", GECS_DATA_DIR=str(tmp_path / "nowhere"))
    assert broken.returncode == 0
    assert "nowhere is not a directory" in broken.stdout


def test_no_command_and_an_unknown_one() -> None:
    for arguments in ((), ("frobnicate",)):
        done = gecs(*arguments)
        assert done.returncode == 2
        assert "usage: gecs" in done.stderr
        assert "Traceback" not in done.stderr
    assert gecs("--version").stdout.strip() == f"gecs-tasks {gecs_tasks.__version__}"
