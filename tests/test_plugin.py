"""The plugin: what lm-eval knows once its modules have been completed, and the finder that sees to it."""

from __future__ import annotations

import logging
import os
import pkgutil
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gecs_tasks import plugin, startup
from gecs_tasks.errors import DataError, SettingError
from gecs_tasks.metrics import AGGREGATIONS, METRICS
from tests.environments import REPOSITORY, Environment, new_environment


@pytest.fixture(scope="module")
def bare_environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return new_environment(tmp_path_factory.mktemp("environment"))


@pytest.fixture
def environment(bare_environment: Environment) -> Iterator[Environment]:
    with bare_environment.borrowed() as borrowed:
        yield borrowed


# Finder


def test_finder_leaves_other_modules_alone() -> None:
    assert startup.AwaitingFinder().find_spec("json") is None


def test_finder_asks_only_those_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loader:
        def get_source(self, name: str) -> str:
            return f"# {name}"

        def create_module(self, spec: ModuleSpec) -> None:
            return None

        def exec_module(self, module: ModuleType) -> None:
            assert module.__spec__ is not None
            module.executed_by = module.__spec__.loader  # type: ignore[attr-defined]

    class Editable:  # as setuptools' for an editable install: behind the standard ones
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec:
            return ModuleSpec(name, real)  # type: ignore[arg-type]

    class Recursive:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            return finder.find_spec(name, path, target)

    completed: list[str] = []
    monkeypatch.setattr(plugin, "complete", lambda module: completed.append(module.__name__))
    real, finder = Loader(), startup.AwaitingFinder()
    monkeypatch.setattr(sys, "meta_path", [Recursive, finder, object(), Editable])
    spec = finder.find_spec("lm_eval.models")
    assert spec is not None
    loader: Any = spec.loader
    assert isinstance(loader, startup.CompletingLoader)
    assert loader.get_source("lm_eval.models") == "# lm_eval.models"
    assert loader.create_module(spec) is None
    with pytest.raises(AttributeError):
        loader.get_data("x")
    module = ModuleType("lm_eval.models")
    module.__spec__ = spec
    loader.exec_module(module)
    assert completed == ["lm_eval.models"]
    assert [spec.loader, module.__loader__, module.executed_by] == [real] * 3
    monkeypatch.setattr(sys, "meta_path", [Editable])
    assert finder.find_spec("lm_eval.models") is None  # taken out: it stands aside


def test_finder_waits_for_what_the_plugin_completes() -> None:
    assert set(plugin._COMPLETIONS) == startup.AWAITED


# Completion


KNOWN = """
    import json, sys
    {before}
    import lm_eval.tasks, lm_eval.models, lm_eval.api.metrics
    from lm_eval.api import registry
    {after}
    names = ("model", "metric", "metric_agg", "higher_is_better", "aggregation", "filter")
    known = {{name: sorted(getattr(registry, name + "_registry").keys()) for name in names}}
    loaders = [
        type(sys.modules[name].__loader__).__name__ + str(sys.modules[name].__spec__.loader is
                                                          sys.modules[name].__loader__)
        for name in ("lm_eval.tasks.manager", "lm_eval.models", "lm_eval.api.metrics")
    ]
    wrapped, function = 0, lm_eval.tasks.TaskManager.__init__
    while function := getattr(function, "__wrapped__", None):
        wrapped += 1
    print(json.dumps([known, loaders, wrapped]))
"""


@pytest.fixture(scope="module")
def built_in(bare_environment: Environment) -> dict[str, list[str]]:
    known, _, wrapped = bare_environment.told(KNOWN.format(before="", after=""))
    assert wrapped == 0
    return dict(known)


@pytest.mark.parametrize(
    ("enabled", "before", "after"),
    [
        (True, "import lm_eval.tasks", ""),
        (True, "import lm_eval.models", ""),
        (True, "import lm_eval.api.registry", ""),
        (True, "import gecs_tasks.harness", ""),
        (False, "from gecs_tasks import plugin; plugin.activate()", ""),
        (False, "from gecs_tasks import plugin", "plugin.activate(); plugin.activate()"),
    ],
)
def test_lm_eval_knows_ours_beside_its_own(
    environment: Environment, built_in: dict[str, list[str]], enabled: bool, before: str, after: str
) -> None:
    if enabled:
        environment.enable()
    known, loaders, wrapped = environment.told(KNOWN.format(before=before, after=after))
    ours: dict[str, set[str]] = {
        "model": set(plugin.MODELS),
        "metric": set(METRICS),
        "metric_agg": set(METRICS),
        "higher_is_better": set(METRICS),
        "aggregation": set(AGGREGATIONS),
        "filter": set(),
    }
    assert {name: set(known[name]) - set(built_in[name]) for name in built_in} == ours
    assert all(set(built_in[name]) <= set(known[name]) for name in built_in)
    assert "hf" in known["model"]
    assert loaders == ["SourceFileLoaderTrue"] * 3
    assert wrapped == 1


def test_a_name_that_is_taken_is_left_alone(environment: Environment) -> None:
    code = """
        import json, lm_eval.models, lm_eval.api.metrics
        from lm_eval.api import registry
        registry.model_registry.register("gecs-bm25", target="somebody.else:Model")
        registry.metric_registry.register("mrr", target=len)
        from gecs_tasks import plugin
        plugin.activate()
        print(json.dumps([registry.model_registry._objs["gecs-bm25"], registry.metric_registry["mrr"] is len]))
    """
    assert environment.told(code) == ["somebody.else:Model", True]


def test_a_task_file_brings_our_models(environment: Environment) -> None:
    code = """
        from lm_eval.tasks._yaml_loader import load_yaml
        from lm_eval.api.registry import get_model
        from gecs_tasks.plugin import tasks_path
        load_yaml(tasks_path() / "gecs_demo_rank.yaml")
        get_model("dummy")
        print(int(get_model("gecs-bm25").__module__ == "gecs_tasks.models"))
    """
    assert environment.told(code) == 1


def test_task_folders(environment: Environment, tmp_path: Path) -> None:
    """The harness's own folder is an empty one here: it holds thousands of files."""
    environment.enable()
    theirs, defaults = tmp_path / "theirs", tmp_path / "defaults"
    theirs.mkdir()
    defaults.mkdir()
    (theirs / "own.yaml").write_text("task: own\n")
    (theirs / "gecs_demo_rank.yaml").write_text("task: gecs_demo_rank\n")
    ours = os.path.relpath(plugin.tasks_path(), tmp_path)
    code = f"""
        import json, logging, os
        os.chdir({str(tmp_path)!r})
        import lm_eval.tasks.manager as manager
        manager.__file__ = os.path.join("defaults", "manager.py")
        said = []
        class Handler(logging.Handler):
            def emit(self, record):
                said.append(record.getMessage())
        logging.getLogger("lm_eval").addHandler(Handler(logging.WARNING))
        def look(*args, **kwargs):
            said.clear()
            found = manager.TaskManager(*args, **kwargs)
            entry = found.task_index.get("gecs_demo_rank")
            where = entry and os.path.basename(os.path.dirname(entry.yaml_path))
            return [where, "own" in found.all_tasks, found.include_path, len(said)]
        print(json.dumps({{
            "nothing": look(),
            "keyword": look(include_path="theirs"),
            "positional": look(None, "theirs"),
            "list": look(include_path=["theirs"]),
            "ours": look(include_path={ours!r}),
            "ours and theirs": look(include_path=[{ours + "/"!r}, "theirs"]),
            "no defaults": look(None, "theirs", False),
            "nothing at all": look(include_defaults=False),
        }}))
        try:
            manager.TaskManager(colour="red")
        except TypeError as error:
            assert "colour" in str(error), error
    """
    folder = plugin.tasks_path().name
    overridden = 1  # the harness's warning that theirs replaces ours
    assert environment.told(code) == {
        "nothing": [folder, False, None, 0],
        "keyword": ["theirs", True, "theirs", overridden],
        "positional": ["theirs", True, "theirs", overridden],
        "list": ["theirs", True, ["theirs"], overridden],
        "ours": [folder, False, ours, 0],
        "ours and theirs": ["theirs", True, [f"{ours}/", "theirs"], overridden],
        "no defaults": ["theirs", True, "theirs", 0],
        "nothing at all": [None, False, None, 0],
    }


def test_a_folder_above_ours_holds_ours() -> None:
    ours = plugin.tasks_path()
    assert plugin._including_ours(str(ours.parent)) == str(ours.parent)
    assert plugin._including_ours(("elsewhere", ours)) == ("elsewhere", ours)
    assert plugin._including_ours(ours.parent / "task") == [ours, ours.parent / "task"]


def test_a_changed_harness_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class TaskManager:
        def __init__(self, folders: list[str] | None = None) -> None:
            self.folders = folders

    module = ModuleType("lm_eval.tasks.manager")
    module.TaskManager = TaskManager  # type: ignore[attr-defined]
    plain = TaskManager.__init__
    with caplog.at_level(logging.WARNING):
        plugin.complete(module)
        plugin.complete(ModuleType("lm_eval.tasks.manager"))
    assert TaskManager.__init__ is plain
    assert TaskManager(["a"]).folders == ["a"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "no longer takes include_defaults and include_path" in caplog.text


def test_missing_task_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(plugin, "__file__", str(tmp_path / "gecs_tasks" / "plugin.py"))
    with pytest.raises(DataError, match="no task_yamls folder"):
        plugin.tasks_path()
    with caplog.at_level(logging.WARNING):
        assert plugin._including_ours("theirs") == "theirs"
    assert "no task_yamls folder" in caplog.text
    wheel = tmp_path / "gecs_tasks" / "task_yamls"
    wheel.mkdir(parents=True)
    (tmp_path / "task_yamls").mkdir()
    assert plugin.tasks_path() == wheel


def test_declared_entry_points_are_what_the_plugin_registers() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or newer reads TOML")
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    assert declared["lm_eval.models"] == plugin.MODELS
    metrics = {name: pkgutil.resolve_name(target) for name, target in declared["lm_eval.metrics"].items()}
    assert metrics == {name: metric.function for name, metric in METRICS.items()}
    aggregations = {name: pkgutil.resolve_name(target) for name, target in declared["lm_eval.aggregations"].items()}
    assert aggregations == AGGREGATIONS


# Errors


def test_only_our_errors_lose_their_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed_on: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: passed_on.append(kind))
    plugin._join_the_harness()
    hook = sys.excepthook
    plugin._join_the_harness()
    assert sys.excepthook is hook
    sys.excepthook(SettingError, SettingError("k1 is red"), None)
    assert capsys.readouterr().err == "gecs: k1 is red\n"
    sys.excepthook(ValueError, ValueError("k1 is red"), None)
    assert passed_on == [ValueError]
    assert capsys.readouterr().err == ""


def test_plain_lm_eval_reports_a_users_error_in_one_line(environment: Environment) -> None:
    environment.enable()
    code = "import lm_eval.models; from gecs_tasks.errors import DataError; raise DataError('no such file')"
    done = environment.run(code)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "gecs: no such file\n")
