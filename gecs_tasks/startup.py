"""What runs when the Python of an enabled environment starts: a finder that waits for lm-eval.

``gecs enable`` copies this file into site-packages as ``_gecs_tasks_startup``, so that start-up stays silent when the
package itself has been removed by hand. It therefore stands alone, and every start of Python pays for it: nothing but
``sys`` is imported before lm-eval is (``importlib.abc`` alone would cost some 40 ms).
"""

import sys

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# The modules of lm-eval that gecs_tasks.plugin completes.
AWAITED = frozenset({"lm_eval.api.metrics", "lm_eval.models", "lm_eval.tasks.manager"})
SWITCH = "GECS_DISABLE"

_warned = False


def install() -> None:
    """Wait for lm-eval to be imported, unless the environment switches us off."""
    if not switched_off():
        watch()


def switched_off() -> bool:
    """Whether ``GECS_DISABLE`` is set, to anything but nothing or 0."""
    import os  # already imported by site

    return os.environ.get(SWITCH, "") not in ("", "0")


def watch() -> None:
    """Put the finder before all others, once; the package's and the copy's finder count as one."""
    if not watching():
        sys.meta_path.insert(0, AwaitingFinder())


def watching() -> bool:
    """Whether this process completes lm-eval's modules as they are imported."""
    return any(getattr(finder, "awaits_lm_eval_for", None) == "gecs_tasks" for finder in sys.meta_path)


class AwaitingFinder:
    """Finds the awaited modules where the other finders find them, and sees to it that they are completed."""

    awaits_lm_eval_for = "gecs_tasks"

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Find an awaited module; every other name is left to the other finders.

        :return: the real spec, its loader wrapped; None where the module is not awaited or not found.
        """
        if fullname not in AWAITED or self not in sys.meta_path:
            return None
        # Those before this one have been asked already, and may in turn ask us.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(fullname, path, target) if find_spec else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    wrapped: Any = CompletingLoader(spec, spec.loader)
                    spec.loader = wrapped
                return spec
        return None


class CompletingLoader:
    """A module's own loader, which hands the module to the plugin once it has been executed."""

    def __init__(self, spec: "ModuleSpec", loader: "Loader") -> None:
        self._spec = spec
        self._loader = loader

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def exec_module(self, module: "ModuleType") -> None:
        """Execute the module as its own loader does, then complete it."""
        # From here on it looks as if it had never met us: its own code may ask who loaded it.
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _complete(module)


def _complete(module: "ModuleType") -> None:
    """Complete a module that has just been loaded; whatever goes wrong here, lm-eval itself must go on loading."""
    try:
        from gecs_tasks.plugin import complete

        complete(module)
    except Exception as error:
        gone = isinstance(error, ModuleNotFoundError) and error.name in ("gecs_tasks", "gecs_tasks.plugin")
        if not gone:
            _warn(error)


def _warn(error: Exception) -> None:
    global _warned
    if not _warned:
        _warned = True
        import logging

        logging.getLogger("gecs_tasks").warning(
            "gecs-tasks is enabled but broken (%s: %s): lm_eval runs without it. Reinstall gecs-tasks or set %s=1",
            type(error).__name__,
            error,
            SWITCH,
        )
