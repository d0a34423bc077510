"""Act on a module once it has been imported, without importing it.

The repairs of vLLM are needed in the few processes that import its model runner or its engine. verl loads our
platform in every process, sometimes before vLLM and sometimes after it, and importing vLLM takes seconds.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _AfterImport(MetaPathFinder):
    """Finds nothing itself: for the awaited modules it lets their own loader run and then calls the actions."""

    def __init__(self) -> None:
        self._actions: dict[str, list[Callable[[], None]]] = {}  # by module name

    def add(self, name: str, action: Callable[[], None]) -> None:
        self._actions.setdefault(name, []).append(action)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._actions:
            return None
        actions = self._actions.pop(fullname)  # before the search below, which asks this finder again
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_then_act(module: ModuleType) -> None:
            execute(module)
            for action in actions:
                action()

        spec.loader.exec_module = execute_then_act  # type: ignore[method-assign]
        return spec


_finder = _AfterImport()


def after_import(name: str, action: Callable[[], None]) -> None:
    """Call `action()` as soon as the module `name` has been imported, or now if it has. Its errors fail the import."""
    if name in sys.modules:
        action()
        return
    _finder.add(name, action)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
