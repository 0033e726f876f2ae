"""Edits of Python source that leave every byte around them as it is (libcst)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import libcst as cst
from libcst import matchers as m

from sglang_kimi_eagle.patching.findings import NO_ANCHOR, PatchRefused

Node = TypeVar("Node", bound=cst.CSTNode)
Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement

LINE_LENGTH = 88
"""SGLang formats with black's own line length."""


def no_anchor(wanted: str, seen: str) -> PatchRefused:
    """Build the refusal for a place that was not found exactly once."""
    return PatchRefused(
        NO_ANCHOR.found(
            f"The sources have no single {wanted}.",
            seen=seen,
            leads_to="No patch is made: a guess could change the wrong place.",
            mend="Generate from the sources of a release that the table knows, or teach "
            "sglang_kimi_eagle/patching/transforms.py the new place.",
        )
    )


def statement(code: str) -> Statement:
    """Parse one statement, written without indentation."""
    return cst.parse_statement(code)


def statements(code: str) -> list[Statement]:
    """Parse several statements, written without indentation."""
    return [*cst.parse_module(code).body]


def code_of(node: cst.CSTNode) -> str:
    """Return the source of a node."""
    return cst.Module(body=[]).code_for_node(node)


def the_only(found: Sequence[Node], wanted: str) -> Node:
    """Return the one element of ``found``.

    Raises:
        PatchRefused: there are none or several.
    """
    if len(found) != 1:
        raise no_anchor(wanted, f"found {len(found)} times")
    return found[0]


def member(parent: cst.Module | cst.ClassDef, name: str) -> cst.ClassDef | cst.FunctionDef:
    """Return the class or function ``name`` of a module or class."""
    body = parent.body.body if isinstance(parent, cst.ClassDef) else parent.body
    return the_only(
        [
            node
            for node in body
            if isinstance(node, (cst.ClassDef, cst.FunctionDef)) and node.name.value == name
        ],
        name,
    )


def class_of(module: cst.Module, name: str) -> cst.ClassDef:
    """Return the class ``name`` of a module."""
    cls = member(module, name)
    assert isinstance(cls, cst.ClassDef)
    return cls


def edit_method(
    module: cst.Module, owner: str, name: str, change: Callable[[cst.FunctionDef], cst.FunctionDef]
) -> cst.Module:
    """Change one method of a class."""
    cls = class_of(module, owner)
    method = member(cls, name)
    assert isinstance(method, cst.FunctionDef)
    return _with_body(
        module, cls, [change(method) if node is method else node for node in cls.body.body]
    )


def extend_class(
    module: cst.Module, name: str, statements: Sequence[cst.BaseStatement]
) -> cst.Module:
    """Add statements to the end of a class."""
    cls = class_of(module, name)
    return _with_body(module, cls, [*cls.body.body, *statements])


def insert_after(parent: Node, anchor: cst.CSTNode, *new: cst.CSTNode) -> Node:
    """Insert nodes after one of a sequence that stands somewhere inside ``parent``."""
    return _replace(parent, anchor, cst.FlattenSentinel([anchor, *new]))


def replace(parent: Node, old: cst.CSTNode, *new: cst.CSTNode) -> Node:
    """Replace a node that stands somewhere inside ``parent``, by several where it is in a list."""
    return _replace(parent, old, new[0] if len(new) == 1 else cst.FlattenSentinel(new))


def _replace(parent: Node, old: cst.CSTNode, new: Any) -> Node:
    # libcst takes a FlattenSentinel here, and its annotation leaves that out.
    changed = parent.deep_replace(old, new)
    assert isinstance(changed, type(parent))
    return changed


def add_import(module: cst.Module, source: str, name: str) -> cst.Module:
    """Add ``name`` to the imports from ``source``, where isort would put it.

    A new statement goes into the longest run of imports from the same top-level package, after the
    last module that sorts before ``source``.
    """
    runs: list[list[tuple[int, str]]] = [[]]
    for position, node in enumerate(module.body):
        imported = _imported(node)
        if imported == source:
            return replace(module, node, _import(source, sorted([*_names(node), name])))
        if imported is not None and imported.split(".")[0] == source.split(".")[0]:
            runs[-1].append((position, imported))
        else:
            runs.append([])
    before = [position for position, imported in max(runs, key=len) if imported < source]
    if not before:
        raise no_anchor(f"import that sorts before {source}", "found none")
    body = [*module.body]
    body.insert(before[-1] + 1, _import(source, [name]))
    return module.with_changes(body=body)


def _import(source: str, names: Sequence[str]) -> Statement:
    line = f"from {source} import {', '.join(names)}"
    if len(line) > LINE_LENGTH:
        line = f"from {source} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
    return statement(line)


def _imported(node: cst.CSTNode) -> str | None:
    """Return the module of ``from module import ...``."""
    if not m.matches(node, m.SimpleStatementLine(body=[m.ImportFrom(relative=[])])):
        return None
    module = cst.ensure_type(cst.ensure_type(node, cst.SimpleStatementLine).body[0], cst.ImportFrom)
    return None if module.module is None else code_of(module.module)


def _names(node: cst.CSTNode) -> list[str]:
    return [
        code_of(alias.name)
        for alias in m.findall(node, m.ImportAlias())
        if isinstance(alias, cst.ImportAlias)
    ]


def _with_body(module: cst.Module, cls: cst.ClassDef, body: Sequence[cst.CSTNode]) -> cst.Module:
    new = cls.with_changes(body=cls.body.with_changes(body=body))
    return module.with_changes(body=[new if node is cls else node for node in module.body])
