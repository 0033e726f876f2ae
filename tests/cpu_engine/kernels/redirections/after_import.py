"""Run a function once a module has been imported."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[Any], None]

_actions: dict[str, list[Action]] = {}


def after_import(name: str, action: Action) -> None:
    """Call ``action`` with module ``name`` right after its import, if ever."""
    if not _actions:
        sys.meta_path.insert(0, _Finder())
    _actions.setdefault(name, []).append(action)


class _Finder(MetaPathFinder):
    """Leaves the search to the other finders, other packages' import hooks included."""

    def __init__(self) -> None:
        self._searching: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _actions or name in self._searching:
            return None
        self._searching.add(name)
        try:
            for finder in sys.meta_path:
                spec = finder.find_spec(name, path, target)
                if spec is not None and spec.loader is not None:
                    spec.loader = _Loader(spec.loader, _actions[name])
                    return spec
        finally:
            self._searching.discard(name)
        return None


class _Loader(Loader):
    def __init__(self, inner: Loader, actions: list[Action]) -> None:
        self._inner = inner
        self._actions = actions

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        for action in self._actions:
            action(module)
