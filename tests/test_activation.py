"""Activation: what enable writes, what disable removes, and what an enabled Python does when it starts."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gecs_tasks import activation, startup
from gecs_tasks.errors import SettingError
from tests.environments import Environment, new_environment


@pytest.fixture(scope="module")
def bare_environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return new_environment(tmp_path_factory.mktemp("environment"))


@pytest.fixture
def environment(bare_environment: Environment) -> Iterator[Environment]:
    with bare_environment.borrowed() as borrowed:
        yield borrowed


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that takes site-packages' place in this process."""
    monkeypatch.setattr(activation, "_folder", lambda: tmp_path)
    monkeypatch.delenv(startup.SWITCH, raising=False)
    return tmp_path


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


# Files


def test_enable_writes_two_files_and_disable_removes_them(site: Path) -> None:
    (site / "other.pth").write_text("")
    before = sorted(site.rglob("*"))
    files = activation.enable()
    assert [path.name for path in files] == ["_gecs_tasks_startup.py", "gecs_tasks_enable.pth"]
    assert files[0].read_bytes() == Path(startup.__file__).read_bytes()
    assert len(lines(files[1])) == 1
    assert not list(site.rglob("*.part"))
    removed = activation.disable()
    assert removed[:2] == files[::-1]
    assert [path for path in sorted(site.rglob("*")) if path.name != "__pycache__"] == before
    assert activation.disable() == []


def test_enable_twice_is_enable_once(site: Path) -> None:
    first = activation.enable()
    texts = [path.read_text() for path in first]
    assert activation.enable() == first
    assert [path.read_text() for path in first] == texts


def test_start_file_from_python_3_15_on(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 15, 0, "final", 0))
        files = activation.enable()
        state = activation.status()
    assert [path.name for path in files] == ["_gecs_tasks_startup.py", "gecs_tasks_enable.start"]
    assert lines(files[1]) == ["_gecs_tasks_startup:install"]
    assert state.enabled
    assert not state.stale
    assert not list(site.glob("*.pth"))
    monkeypatch.syspath_prepend(site)
    assert callable(pkgutil.resolve_name(lines(files[1])[0]))
    sys.modules.pop("_gecs_tasks_startup")
    assert set(files) <= set(activation.disable())


def test_status(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = activation.status()
    assert (state.enabled, state.files, state.stale) == (False, (), False)
    assert "gecs enable" in state.reason
    files = activation.enable()
    state = activation.status()
    assert (state.enabled, state.files, state.stale, state.switched_off) == (True, tuple(files), False, False)
    assert str(files[1]) in state.reason
    monkeypatch.setenv(startup.SWITCH, "1")
    state = activation.status()
    assert (state.enabled, state.switched_off) == (True, True)
    assert "GECS_DISABLE=1" in state.reason
    assert "\n" not in state.reason


def test_status_of_another_versions_files(site: Path) -> None:
    module, hook = activation.enable()
    module.write_text("# an older version\n")
    state = activation.status()
    assert (state.enabled, state.stale) == (True, True)
    assert "gecs enable again" in state.reason
    activation.enable()
    assert not activation.status().stale
    module.unlink()
    state = activation.status()
    assert (state.enabled, state.stale, state.files) == (False, True, (hook,))


def test_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "missing"
    monkeypatch.setattr(activation, "_folder", lambda: folder)
    with pytest.raises(SettingError, match=r"missing cannot be written .* virtual environment"):
        activation.enable()
    assert activation.disable() == []


# Start of Python


def test_start_of_an_enabled_python(environment: Environment) -> None:
    modules = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    plain = environment.told(modules)
    files = environment.files()
    environment.enable()
    assert set(environment.told(modules)) - set(plain) == {"_gecs_tasks_startup"}
    environment.run("from gecs_tasks.activation import disable; disable()")
    assert environment.files() == files
    assert environment.told(modules) == plain


def test_python_starts_silently_when_the_package_was_removed_by_hand(environment: Environment) -> None:
    environment.enable()
    (environment.site / "package.pth").unlink()
    models = "import lm_eval.models; from lm_eval.api.registry import model_registry as known; "
    assert environment.told(f"{models} print(int('dummy' in known and 'gecs-bm25' not in known))") == 1
    (environment.site / "_gecs_tasks_startup.py").unlink()
    for path in environment.site.glob("__pycache__/_gecs*"):
        path.unlink()
    assert environment.told("print(1)") == 1


@pytest.mark.parametrize(
    ("plugin_code", "said"),
    [
        ("import a_module_that_is_not_there", "a_module_that_is_not_there"),
        ("1 / 0", "ZeroDivisionError"),
        ("def complete(module): raise OSError('no disk')", "no disk"),
    ],
)
def test_a_broken_package_is_a_warning(environment: Environment, tmp_path: Path, plugin_code: str, said: str) -> None:
    environment.enable()
    (tmp_path / "gecs_tasks").mkdir()
    (tmp_path / "gecs_tasks" / "__init__.py").touch()
    (tmp_path / "gecs_tasks" / "plugin.py").write_text(plugin_code)
    done = environment.run("import lm_eval.models, lm_eval.api.metrics; print('on')", PYTHONPATH=str(tmp_path))
    assert done.stdout == "on\n"
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("value", "watching"), [("1", False), ("yes", False), ("0", True), ("", True)])
def test_off_switch(environment: Environment, value: str, watching: bool) -> None:
    environment.enable()
    code = "import json, sys; from gecs_tasks.startup import watching; print(json.dumps(watching()))"
    assert environment.told(code, GECS_DISABLE=value) is watching


def test_one_finder_whoever_installs_it(environment: Environment) -> None:
    environment.enable()
    code = """
        import sys
        from gecs_tasks import plugin
        plugin.activate()
        plugin.activate()
        print(sum(type(finder).__name__ == "AwaitingFinder" for finder in sys.meta_path))
    """
    assert environment.told(code) == 1


def test_activation_is_light(environment: Environment) -> None:
    code = "import json, sys, gecs_tasks.activation, gecs_tasks.plugin; print(json.dumps(sorted(sys.modules)))"
    assert not {"lm_eval", "numpy", "yaml", "torch"} & set(environment.told(code))
