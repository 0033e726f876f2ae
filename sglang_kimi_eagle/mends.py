"""What mends each diagnostic, read in the package's own sources: a page has it from the findings.

A finding's ``mend`` names what it saw.  On a page these places are shown as "...".
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sglang_kimi_eagle.diagnostics import Rule

_PACKAGE = Path(__file__).parent


def mends() -> Mapping[str, list[str]]:
    """Return code -> the mends of its findings, as far as the sources have them as texts."""
    found: dict[str, list[str]] = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        if ".found(" not in text:
            continue
        parts = path.relative_to(_PACKAGE.parent).with_suffix("").parts
        names = vars(importlib.import_module(".".join(parts).removesuffix(".__init__")))
        for code, mend in _Module(ast.parse(text), names).mends():
            known = found.setdefault(code, [])
            if mend not in known:
                known.append(mend)
    return found


class _Module:
    def __init__(self, tree: ast.Module, names: Mapping[str, Any]) -> None:
        self._names = names
        self._functions = {
            node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }

    def mends(self) -> Iterator[tuple[str, str]]:
        """Yield the code and the mend of every finding that is made here."""
        for function in self._functions.values():
            for node in ast.walk(function):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                rule = self._names.get(getattr(node.func.value, "id", ""))
                if node.func.attr != "found" or not isinstance(rule, Rule):
                    continue
                for keyword in node.keywords:
                    if keyword.arg == "mend":
                        for text in filter(None, self._texts(keyword.value, function)):
                            yield rule.code, text

    def _texts(self, node: ast.expr, function: ast.FunctionDef) -> list[str]:
        """Return every text that an expression in a function can be."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return [node.value]
        if isinstance(node, ast.JoinedStr):
            return ["".join(self._piece(part, function) for part in node.values)]
        several: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            rights = self._texts(node.right, function)
            return [left + right for left in self._texts(node.left, function) for right in rights]
        if isinstance(node, ast.IfExp):
            several = [node.body, node.orelse]
        elif isinstance(node, ast.Name):
            several = [
                one.value
                for one in ast.walk(function)
                if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == node.id
            ]
        elif isinstance(node, ast.Call):
            called = self._functions.get(ast.unparse(node.func))
            if called is not None and called is not function:
                function = called
                several = [
                    one.value
                    for one in ast.walk(called)
                    if isinstance(one, ast.Return) and one.value is not None
                ]
        return [text for one in several for text in self._texts(one, function)]

    def _piece(self, part: ast.expr, function: ast.FunctionDef) -> str:
        if isinstance(part, ast.Constant):
            return str(part.value)
        value = part.value if isinstance(part, ast.FormattedValue) else part
        known = self._names.get(value.id) if isinstance(value, ast.Name) else None
        if isinstance(known, str):
            return known
        texts = self._texts(value, function) if isinstance(value, ast.Call) else []
        return texts[0] if len(texts) == 1 else "..."
