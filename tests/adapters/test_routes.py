"""How classes of the releases come to their capture loops."""

from __future__ import annotations

import ast
import textwrap

import pytest

from sglang_kimi_eagle import upstream
from sglang_kimi_eagle.adapters.routes import (
    SETTER,
    Kind,
    captures_before_layers,
    loop_of,
    route_of,
)
from sglang_kimi_eagle.adapters.wrappers import STEADY
from sglang_kimi_eagle.model_classes import ModelClass, ModelClasses
from sglang_kimi_eagle.releases import NEWEST, RELEASES, SetterRule
from sglang_kimi_eagle.upstream import Sources
from wheels import unpacked


def found(version: str, name: str) -> ModelClass:
    cls = ModelClasses(Sources(unpacked(version), version)).find(name)
    assert cls is not None
    return cls


def loop(body: str) -> ast.FunctionDef:
    text = "def forward(self):\n    for i in range(self.start_layer, self.end_layer):\n"
    (function,) = ast.parse(text + textwrap.indent(textwrap.dedent(body), " " * 8)).body
    assert isinstance(function, ast.FunctionDef)
    return function


@pytest.mark.parametrize(
    "body",
    [
        """
        if i in self.layers_to_capture:
            captured.append(hidden_states + residual)
        layer = self.layers[i]
        hidden_states, residual = layer(hidden_states, residual)
        """,
        """
        hidden_states = self.layers[i](
            hidden_states, capture_output=captured.add if i in self.layers_to_capture else None
        )
        """,
        """
        hidden_states = self.layers[i](
            hidden_states, captured if getattr(layer, "_is_layer_to_capture", False) else None
        )
        """,
    ],
)
def test_a_loop_that_captures_what_enters_a_layer(body: str) -> None:
    assert captures_before_layers(loop(body))


@pytest.mark.parametrize(
    "body",
    [
        """
        hidden_states = self.layers[i](hidden_states)
        if i in self.layers_to_capture:
            captured.append(hidden_states)
        """,
        "hidden_states = self.layers[i](hidden_states)\n",
    ],
)
def test_a_loop_that_captures_what_leaves_a_layer_or_nothing_is_none(body: str) -> None:
    assert not captures_before_layers(loop(body))


@pytest.mark.wheels
@pytest.mark.parametrize(
    ("version", "name", "kind", "attribute"),
    [
        ("0.5.23", "Qwen2AudioForConditionalGeneration", Kind.DELEGATE, "language_model"),
        ("0.5.23", "GlmAsrForConditionalGeneration", Kind.DELEGATE, "language_model"),
        ("0.5.23", "NVILAForConditionalGeneration", Kind.DELEGATE, "llm"),
        ("0.5.23", "Qwen3OmniMoeForConditionalGeneration", Kind.DELEGATE, "thinker"),
        ("0.5.23", "Qwen3VLForConditionalGeneration", Kind.OWN, ""),
        ("0.5.9", "Qwen3VLForConditionalGeneration", Kind.TOWER, "model"),
        ("0.5.9", "Qwen3VLMoeForConditionalGeneration", Kind.TOWER, "model"),
        ("0.5.9", "Gemma3ForConditionalGeneration", Kind.NONE, ""),
        ("0.5.23", "HunYuanMoEV1ForCausalLM", Kind.NONE, ""),
        ("0.5.23", "KimiK25ForConditionalGeneration", Kind.OWN, ""),
        ("0.5.9", "KimiK25ForConditionalGeneration", Kind.DELEGATE, "language_model"),
    ],
)
def test_classes_of_releases(version: str, name: str, kind: Kind, attribute: str) -> None:
    route = route_of(found(version, name))
    assert (route.kind, route.attribute) == (kind, attribute)


@pytest.mark.wheels
@pytest.mark.parametrize("version", RELEASES)
def test_the_steady_setters_read_ids_alike_on_every_release(version: str) -> None:
    models = ModelClasses(Sources(unpacked(version), version))
    for name in STEADY:
        module = f"sglang.srt.models.{name}"
        setters = [
            cls.method(SETTER)
            for cls in models.entries_of(module)
            if cls.method(SETTER) is not None and loop_of(cls) is not None
        ]
        assert setters, name
        assert {upstream.setter_rule(setter) for setter in setters} == {SetterRule.ALWAYS_OUTPUT}


@pytest.mark.wheels
@pytest.mark.parametrize("version", ["0.5.9", NEWEST])
def test_the_loops_of_the_four_kinds_capture_what_enters_a_layer(version: str) -> None:
    for name in ("DeepseekV2", "Llama", "Qwen2", "Qwen3", "Qwen3Moe"):
        inner = loop_of(found(version, f"{name}ForCausalLM"))
        assert inner is not None and captures_before_layers(inner[1]), name
