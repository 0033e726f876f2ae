"""The model classes of an SGLang, as its sources define them; nothing of SGLang is imported.

Bases, and classes that a constructor builds, are followed by name: in the file itself, then
through its imports from ``sglang.srt.models``.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from sglang_kimi_eagle.ordinary_files import read_ordinary
from sglang_kimi_eagle.upstream import Sources

MODELS = "sglang.srt.models"
_DEEPEST = 12
"""Bases above one another; SGLang has at most six."""

Function = ast.FunctionDef


@dataclass(frozen=True)
class ModelClass:
    """A class of ``sglang.srt.models``."""

    name: str
    module: str
    node: ast.ClassDef = field(compare=False, repr=False)
    models: ModelClasses = field(compare=False, repr=False)

    @cached_property
    def lineage(self) -> tuple[ModelClass, ...]:
        """The class and those of its bases that are model classes, nearest first."""
        found: list[ModelClass] = []
        waiting = [(self, 0)]
        while waiting:
            current, depth = waiting.pop(0)
            if current in found or depth > _DEEPEST:
                continue
            found.append(current)
            for base in current.node.bases:
                parent = self.models.resolve(_name(base), current.module)
                if parent is not None:
                    waiting.append((parent, depth + 1))
        return tuple(found)

    def method(self, name: str) -> Function | None:
        """Return a method, the class's own or an inherited one."""
        for cls in self.lineage:
            for node in cls.node.body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return node
        return None

    @cached_property
    def holds(self) -> dict[str, tuple[ModelClass, ...]]:
        """The model classes of which its constructor may put an instance into each attribute.

        A class that is named by a parameter of the constructor counts as what its default is,
        that of the most derived class first.
        """
        found: dict[str, dict[ModelClass, None]] = {}
        defaults = self._class_parameters()
        for cls in self.lineage:
            own: dict[str, dict[ModelClass, None]] = {}
            for attribute, callee in _constructions(self.lineage, cls.node):
                built = defaults.get(callee) or self.models.resolve(callee, cls.module)
                if built is not None and built.name != self.name:
                    own.setdefault(attribute, {})[built] = None
            for attribute, classes in own.items():
                found.setdefault(attribute, classes)
        return {attribute: tuple(classes) for attribute, classes in found.items()}

    def _class_parameters(self) -> dict[str, ModelClass]:
        found: dict[str, ModelClass] = {}
        for cls in self.lineage:
            for node in cls.node.body:
                if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                    for name, default in _defaults(node):
                        built = self.models.resolve(default, cls.module)
                        if built is not None:
                            found.setdefault(name, built)
        return found


@dataclass
class _Contents:
    """What one module defines, and what it imports from other modules of models."""

    classes: dict[str, ModelClass] = field(default_factory=dict)
    imported: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


class ModelClasses:
    """All model classes of one SGLang, parsed when they are asked for."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._read: dict[str, _Contents] = {}
        self._unread: dict[str, str] = {}

    @cached_property
    def modules(self) -> dict[str, str]:
        """Module -> text of each file below ``srt/models`` that can be read."""
        root = self.sources.package / "srt" / "models"
        texts: dict[str, str] = {}
        for path in sorted(self._files(root)):
            module = ".".join((MODELS, *path.relative_to(root).with_suffix("").parts))
            try:
                # Whether it is Python in some other encoding is for the parser to say.
                texts[module] = read_ordinary(path).decode("utf-8-sig", "replace")
            except OSError as error:
                self._unread[module] = error.strerror or str(error)
        return texts

    def _files(self, root: Path) -> Iterator[Path]:
        def note(error: OSError) -> None:
            parts = Path(error.filename).relative_to(root).parts
            self._unread[".".join((MODELS, *parts))] = error.strerror or str(error)

        for folder, _, names in os.walk(root, onerror=note):
            yield from (Path(folder, name) for name in names if name.endswith(".py"))

    @property
    def unread(self) -> dict[str, str]:
        """Module, or folder of them -> why it was skipped, of those that were asked for."""
        parsed = self.sources.unread.items()
        return {**{module: why for module, why in parsed if module in self.modules}, **self._unread}

    def find(self, name: str) -> ModelClass | None:
        """Return the class that SGLang's registry has under ``name``: one of an ``EntryClass``."""
        definition = re.compile(rf"^class {re.escape(name)}\b", re.MULTILINE)
        found = [
            cls
            for module, text in self.modules.items()
            if definition.search(text) and (cls := self.defined(name, module)) is not None
        ]
        entries = [cls for cls in found if cls.name in self._entry_names(cls.module)]
        return next(iter(entries or found), None)

    def entries(self) -> Iterator[ModelClass]:
        """Yield every class that a module offers to the registry."""
        for module in self.modules:
            yield from self.entries_of(module)

    def entries_of(self, module: str) -> Iterator[ModelClass]:
        """Yield the classes that one module offers."""
        for name in sorted(self._entry_names(module)):
            cls = self.defined(name, module)
            if cls is not None:
                yield cls

    def defined(self, name: str, module: str) -> ModelClass | None:
        """Return the class ``name`` that ``module`` itself defines."""
        return self._contents(module).classes.get(name)

    def resolve(self, name: str | None, module: str, depth: int = 0) -> ModelClass | None:
        """Return the model class that ``name`` stands for in ``module``."""
        if name is None or depth > _DEEPEST:
            return None
        contents = self._contents(module)
        if name in contents.classes:
            return contents.classes[name]
        for origin, original in contents.imported.get(name, ()):
            found = self.resolve(original, origin, depth + 1)
            if found is not None:
                return found
        return None

    def _contents(self, module: str) -> _Contents:
        if module not in self._read:
            contents = _Contents()
            tree = self.sources.tree(module)
            for node in ast.walk(tree) if tree is not None else ():
                if isinstance(node, ast.ClassDef):
                    cls = ModelClass(node.name, module, node, self)
                    contents.classes.setdefault(node.name, cls)
                elif isinstance(node, ast.ImportFrom):
                    if (node.module or "").startswith(MODELS + "."):
                        for alias in node.names:
                            origin = (str(node.module), alias.name)
                            name = alias.asname or alias.name
                            contents.imported.setdefault(name, []).append(origin)
            self._read[module] = contents
        return self._read[module]

    def _entry_names(self, module: str) -> set[str]:
        tree = self.sources.tree(module)
        return {
            name.id
            for node in (tree.body if tree is not None else ())
            if isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == "EntryClass" for t in node.targets)
            for name in ast.walk(node.value)
            if isinstance(name, ast.Name)
        }


def _constructions(lineage: tuple[ModelClass, ...], cls: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield (attribute, what is called) of ``self.attribute = Called(...)`` while one is built.

    Where a method of the class is called, what it returns counts: ``LlamaForCausalLM._init_model``.
    """
    for method in cls.body:
        if not isinstance(method, ast.FunctionDef) or not (
            method.name == "__init__" or method.name.startswith("_init")
        ):
            continue
        for node in ast.walk(method):
            targets = node.targets if isinstance(node, ast.Assign) else ()
            for target in targets:
                if (
                    isinstance(node, ast.Assign)
                    and isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                ):
                    for call in ast.walk(node.value):
                        callee = _name(call.func) if isinstance(call, ast.Call) else None
                        if callee is not None:
                            yield target.attr, callee
                            for returned in _returned(lineage, callee):
                                yield target.attr, returned


def _returned(lineage: tuple[ModelClass, ...], method: str) -> Iterator[str]:
    if not method.startswith("_init"):
        return
    for cls in lineage:
        for node in cls.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == method:
                for statement in ast.walk(node):
                    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Call):
                        callee = _name(statement.value.func)
                        if callee is not None:
                            yield callee
                return


def _defaults(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield (parameter, name) of parameters whose default is a name."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(positional[::-1], arguments.defaults[::-1], strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    for parameter, default in pairs:
        name = _name(default)
        if name is not None:
            yield parameter.arg, name


def _name(node: ast.AST | None) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return None
