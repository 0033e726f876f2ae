"""How a model class that lacks EAGLE-3's methods comes to its capture loop, by its sources."""

from __future__ import annotations

import ast
import enum
from dataclasses import dataclass

from sglang_kimi_eagle.model_classes import ModelClass
from sglang_kimi_eagle.upstream import METHODS

SETTER, GETTER = METHODS[:2]
"""The methods that the engine calls on a target; the third it calls on draft models only."""

_PREFERRED = ("language_model", "llm", "model", "thinker")


class Kind(str, enum.Enum):
    """Where the capture loop of a class is."""

    OWN = "its own"
    """The class has setter and getter itself."""
    DELEGATE = "delegation"
    """It holds a language model that has both."""
    TOWER = "own head"
    """It holds a bare model with a capture loop, and has head and logits processor itself."""
    NONE = "no capture loop"


@dataclass(frozen=True)
class Route:
    """The way from a class to the layers that are captured."""

    cls: ModelClass
    kind: Kind
    missing: tuple[str, ...]
    """Those of `METHODS` that the class lacks."""
    attribute: str = ""
    """What holds the language model or tower; empty where the class has its own setter."""
    capable: tuple[ModelClass, ...] = ()
    """The classes, of those that the attribute may hold, that can capture."""
    others: tuple[ModelClass, ...] = ()
    """Those that cannot."""

    @property
    def lacking(self) -> bool:
        """Whether the engine fails on the class for want of a method."""
        return SETTER in self.missing or GETTER in self.missing


def route_of(cls: ModelClass) -> Route:
    """Find how ``cls`` comes to a capture loop."""
    missing = tuple(name for name in METHODS if cls.method(name) is None)
    if SETTER not in missing and GETTER not in missing:
        return Route(cls, Kind.OWN, missing, capable=(cls,))
    for kind, able in ((Kind.DELEGATE, _serves), (Kind.TOWER, _captures)):
        if kind is Kind.TOWER and not _has_own_head(cls):
            continue
        for attribute in sorted(cls.holds, key=_preference):
            held = cls.holds[attribute]
            capable = tuple(inner for inner in held if able(inner))
            if capable:
                others = tuple(inner for inner in held if inner not in capable)
                return Route(cls, kind, missing, attribute, capable, others)
    return Route(cls, Kind.NONE, missing)


def captures_before_layers(forward: ast.AST) -> bool:
    """Tell whether a loop captures what enters layer i for i in ``layers_to_capture``: h[i].

    The test stands before the call of the layer, or in the arguments of that call, where the layer
    captures its input.  Loops that capture what leaves a layer (DFLASH, DSPARK) are no such loops.
    """
    for loop in ast.walk(forward):
        if not isinstance(loop, ast.For):
            continue
        calls = [i for i, statement in enumerate(loop.body) if _calls_layer(statement)]
        tests = [i for i, statement in enumerate(loop.body) if _tests_layer(statement)]
        if calls and tests:
            return max(tests) <= min(calls)
    return False


def loop_of(cls: ModelClass) -> tuple[ModelClass, ast.FunctionDef] | None:
    """Return the class and the forward with the capture loop that ``cls`` has or holds."""
    forward = cls.method("forward")
    if forward is not None and _looks_at_layers(forward):
        return cls, forward
    for attribute in sorted(cls.holds, key=_preference):
        for inner in cls.holds[attribute]:
            forward = inner.method("forward")
            if forward is not None and _looks_at_layers(forward):
                return inner, forward
    return None


def marks_layers(forward: ast.AST) -> bool:
    """Tell whether a loop looks at a mark on the layers (Qwen2-MoE and what comes from it)."""
    return any(
        isinstance(node, ast.Constant) and node.value == "_is_layer_to_capture"
        for node in ast.walk(forward)
    )


def _calls_layer(statement: ast.AST) -> bool:
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Subscript):
                called = called.value
            if isinstance(called, ast.Attribute) and called.attr == "layers":
                return True
            if isinstance(called, ast.Name) and called.id == "layer":
                return True
    return False


def _tests_layer(statement: ast.AST) -> bool:
    return any(
        (isinstance(node, ast.Compare) and _looks_at_layers(node))
        or (isinstance(node, ast.Call) and marks_layers(node) and isinstance(node.func, ast.Name))
        for node in ast.walk(statement)
    )


def _looks_at_layers(forward: ast.AST) -> bool:
    return marks_layers(forward) or any(
        isinstance(node, ast.Attribute) and node.attr == "layers_to_capture"
        for node in ast.walk(forward)
    )


def _serves(inner: ModelClass) -> bool:
    return inner.method(SETTER) is not None and inner.method(GETTER) is not None


def _captures(inner: ModelClass) -> bool:
    forward = inner.method("forward")
    return forward is not None and _looks_at_layers(forward) and captures_before_layers(forward)


def _has_own_head(cls: ModelClass) -> bool:
    """Tell whether a class computes logits itself: it is there that captured states are passed."""
    forward = cls.method("forward")
    if forward is None:
        return False
    attributes = {node.attr for node in ast.walk(forward) if isinstance(node, ast.Attribute)}
    # A draft model reads the target's states there.
    return "logits_processor" in attributes and "spec_info" not in attributes


def _preference(attribute: str) -> tuple[int, str]:
    known = attribute in _PREFERRED
    return (_PREFERRED.index(attribute) if known else len(_PREFERRED), attribute)
