"""The module that patched sources import."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import wrapt
from hypothesis import given
from hypothesis import strategies as st

from sglang_kimi_eagle.patching.eagle_layer_ids import (
    get_layers_to_capture,
    resolve_layer_ids,
    set_layers_to_capture,
)
from sglang_kimi_eagle.states import Convention, states_of


def config(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**values)


@pytest.mark.parametrize(
    "undeclared",
    [
        config(),
        config(eagle_config=None),
        config(eagle_config=["layer_output"]),
        config(eagle_config={}),
        config(eagle_config={"layer_id_convention": None}),
        config(eagle_config={}, eagle_aux_hidden_state_layer_ids=[3, 31, 59]),
    ],
)
@pytest.mark.parametrize("ids", [None, [2, 30, 58], "2,30,58", []])
def test_without_a_declaration_nothing_changes(undeclared: SimpleNamespace, ids: Any) -> None:
    assert resolve_layer_ids(undeclared, ids) == (ids, None)


@pytest.mark.parametrize("convention", list(Convention))
def test_a_declaration_is_returned_with_the_ids(convention: Convention) -> None:
    declared = config(eagle_config={"layer_id_convention": convention.value})
    assert resolve_layer_ids(declared, [2, 30, 58]) == ([2, 30, 58], convention.value)


def test_declared_ids_may_stand_at_the_top_level() -> None:
    declared = config(
        eagle_config={"layer_id_convention": "layer_input"},
        eagle_aux_hidden_state_layer_ids=[3, 31, 59],
    )
    assert resolve_layer_ids(declared, None) == ([3, 31, 59], "layer_input")
    assert resolve_layer_ids(declared, [2, 30, 58]) == ([2, 30, 58], "layer_input")


@pytest.mark.parametrize("value", ["output", "", 1, ["layer_output"], {}])
def test_an_unknown_convention_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="must be 'layer_output' or 'layer_input', got"):
        resolve_layer_ids(config(eagle_config={"layer_id_convention": value}), [2, 30, 58])


@given(st.sets(st.integers(0, 60), min_size=1, max_size=6).map(sorted), st.sampled_from(Convention))
def test_layers_are_the_states_that_the_plugin_captures(
    ids: list[int], convention: Convention
) -> None:
    states = states_of(ids, convention)
    if states[-1] < 61:
        assert get_layers_to_capture(ids, convention.value, range(61)) == list(states)
    else:
        with pytest.raises(ValueError, match="must ascend and name inputs of layers 0 to 60"):
            get_layers_to_capture(ids, convention.value, range(61))


@pytest.mark.parametrize(
    ("ids", "convention", "first"),
    [
        ([], "layer_output", 0),
        ([2, 2, 58], "layer_output", 0),
        ([58, 30, 2], "layer_output", 0),
        ([2, 30, 60], "layer_output", 0),
        ([2, 30, 61], "layer_input", 0),
        ([-1, 2, 30], "layer_output", 0),
        ([-1, 2, 30], "layer_input", 0),
        ([0, 30, 58], "layer_input", 1),
    ],
)
def test_what_cannot_be_captured_is_refused(ids: list[int], convention: str, first: int) -> None:
    with pytest.raises(ValueError, match=rf"\({convention}\) must ascend .* {first} to 60"):
        get_layers_to_capture(ids, convention, range(first, 61))


class Old:
    """A target whose setter knows no convention."""

    captured: Any = None

    def set_eagle3_layers_to_capture(self, layer_ids: Any = None) -> None:
        self.captured = layer_ids


class New(Old):
    convention: str | None = None

    def set_eagle3_layers_to_capture(
        self, layer_ids: Any = None, layer_id_convention: str | None = None
    ) -> None:
        self.captured, self.convention = layer_ids, layer_id_convention


def test_every_setter_is_called_as_before_without_a_declaration() -> None:
    for model in (Old(), New()):
        set_layers_to_capture(model, [2, 30, 58], None)
        assert model.captured == [2, 30, 58]


def test_a_declaration_reaches_the_setter() -> None:
    model = New()
    set_layers_to_capture(model, [2, 30, 58], "layer_output")
    assert (model.captured, model.convention) == ([2, 30, 58], "layer_output")


def test_a_setter_that_would_drop_the_declaration_is_refused() -> None:
    model = Old()
    with pytest.raises(ValueError, match="Old cannot take a layer_id_convention"):
        set_layers_to_capture(model, [2, 30, 58], "layer_output")
    assert model.captured is None


def test_a_setter_that_the_plugin_wraps_still_gets_the_declaration() -> None:
    class Wrapped(New):
        pass

    def passing_on(setter: Any, _target: Any, args: Any, kwargs: Any) -> None:
        setter(*args, **kwargs)

    wrapt.wrap_function_wrapper(Wrapped, "set_eagle3_layers_to_capture", passing_on)
    model = Wrapped()
    set_layers_to_capture(model, [2, 30, 58], "layer_input")
    assert (model.captured, model.convention) == ([2, 30, 58], "layer_input")
