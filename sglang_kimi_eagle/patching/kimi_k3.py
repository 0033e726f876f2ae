"""The patch that gives Kimi-K3's classes in SGLang's sources what its adapter gives them."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import libcst as cst
from libcst import matchers as m

from sglang_kimi_eagle.adapters.kimi_k3 import CAPTURE, LANGUAGE, MARK, OWN, TRUNK, WRAPPER
from sglang_kimi_eagle.adapters.kimi_k3_methods import LanguageMethods, WrapperMethods
from sglang_kimi_eagle.patching.diffs import Patch
from sglang_kimi_eagle.patching.edits import (
    Statement,
    class_of,
    code_of,
    edit_method,
    extend_class,
    insert_after,
    statement,
    the_only,
)
from sglang_kimi_eagle.patching.generate import rewritten
from sglang_kimi_eagle.patching.transforms import upstream_text
from sglang_kimi_eagle.upstream import METHODS

if TYPE_CHECKING:
    from sglang_kimi_eagle.patching.transforms import Transform

KIMI_K3 = "srt/models/kimi_k3.py"


def generate_kimi_k3(package: Path, version: str) -> Patch:
    """Return the patch for the SGLang at ``package``; other files than `KIMI_K3` stay as they are.

    Raises:
        PatchRefused: what has to be changed is not found.
    """
    steps: list[Transform] = [trunk_has_mark, capture_takes_prefix, add_methods]
    about = (
        f"EAGLE-3 for Kimi-K3 on SGLang {version}: the three methods that a target must have, and\n"
        "the capture of the prefix that its drafters were trained on.\n\n"
    )
    return Patch(tuple(rewritten(package, {KIMI_K3: steps})), about)


def add_methods(module: cst.Module) -> cst.Module:
    """Give both classes the methods that they lack."""
    for owner, methods in ((LANGUAGE, LanguageMethods), (WRAPPER, WrapperMethods)):
        present = {
            node.name.value
            for node in class_of(module, owner).body.body
            if isinstance(node, cst.FunctionDef)
        }
        added = [
            _after_blank_line(statement(upstream_text(vars(methods)[name])))
            for name in METHODS
            if name not in present
        ]
        module = extend_class(module, owner, added)
    return module


def trunk_has_mark(module: cst.Module) -> cst.Module:
    """Let every model say whether it captures the prefix."""

    def change(function: cst.FunctionDef) -> cst.FunctionDef:
        own = m.AnnAssign(target=m.Attribute(attr=m.Name(OWN.attribute)))
        anchor = the_only(
            [node for node in function.body.body if m.matches(node, _line(own))],
            f"assignment of {OWN.attribute}",
        )
        return insert_after(function, anchor, statement(f"self.{MARK} = False"))

    return edit_method(module, TRUNK, "__init__", change)


def capture_takes_prefix(module: cst.Module) -> cst.Module:
    """Return the prefix where a model is marked, before the mixture is made of it."""
    early = statement(
        textwrap.dedent(
            f"""\
            if self.{MARK}:
                # What EAGLE-3 drafters are trained on; DSPARK ones take the mixture below.
                return hidden_states.clone()
            """
        )
    )

    def change(function: cst.FunctionDef) -> cst.FunctionDef:
        # 0.5.22 and later take a snapshot first; before, a pending residual is added first.
        found = [
            node
            for node in function.body.body
            if "residual_batch.snapshot(" in code_of(node)
            or "hidden_states = residual + hidden_states" in code_of(node)
        ]
        anchor = the_only(found, f"prefix in {CAPTURE}")
        snapshot = "snapshot" in code_of(anchor)
        own = statement(code_of(early).replace(".clone()", "")) if snapshot else early
        return insert_after(function, anchor, own)

    return edit_method(module, TRUNK, CAPTURE, change)


def _line(content: m.BaseSmallStatementMatchType) -> m.SimpleStatementLine:
    return m.SimpleStatementLine(body=[content, m.ZeroOrMore()])


def _after_blank_line(node: Statement) -> Statement:
    return node.with_changes(leading_lines=[cst.EmptyLine(indent=False), *node.leading_lines])
