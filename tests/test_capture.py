"""Enforcing the resolved states on the target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import wrapt

from sglang_kimi_eagle.capture import CaptureFailed, StateCapture
from sglang_kimi_eagle.repairs import complete_partial_sums


class Target:
    """The attributes of DeepseekV2ForCausalLM that the setter touches (0.5.9's rule)."""

    def __init__(self, *, last_rank: bool = True, layers: int = 8) -> None:
        self.pp_group = SimpleNamespace(is_last_rank=last_rank)
        self.capture_aux_hidden_states = False
        self.model = SimpleNamespace(
            layers_to_capture=[],
            layers=[
                SimpleNamespace(layer_communicator=SimpleNamespace(is_last_layer=False))
                for _ in range(layers)
            ],
        )

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
        if not self.pp_group.is_last_rank:
            return
        self.capture_aux_hidden_states = True
        self.model.layers_to_capture = (
            [2, 4, 5] if layer_ids is None else [k + 1 for k in layer_ids]
        )


def wrapped(capture: StateCapture) -> type[Target]:
    cls = type(
        "Wrapped", (Target,), {"set_eagle3_layers_to_capture": Target.set_eagle3_layers_to_capture}
    )
    wrapt.wrap_function_wrapper(cls, "set_eagle3_layers_to_capture", capture)
    return cls


def test_the_resolved_states_replace_the_releases_own() -> None:
    target = wrapped(StateCapture(states=(3, 5, 7)))()
    target.set_eagle3_layers_to_capture([3, 5, 7])
    assert target.model.layers_to_capture == [3, 5, 7]


def test_a_later_call_without_ids_keeps_them() -> None:
    target = wrapped(StateCapture(states=(3, 5, 7)))()
    for ids in (None, [2, 4, 6], None):
        target.set_eagle3_layers_to_capture(ids)
        assert target.model.layers_to_capture == [3, 5, 7]


def test_traced_states_are_whole_sums_too_but_are_not_captured_for_good() -> None:
    capture = StateCapture(states=(3, 5, 7), mend_partial_sums=True, traced=(0, 4, 8))
    target = wrapped(capture)()
    target.set_eagle3_layers_to_capture([2, 4, 6])
    assert target.model.layers_to_capture == [3, 5, 7]
    last = [layer.layer_communicator.is_last_layer for layer in target.model.layers]
    assert [at for at, is_last in enumerate(last) if is_last] == [2, 3, 4, 6, 7]


def test_without_resolved_states_sglang_is_left_alone() -> None:
    target = wrapped(StateCapture())()
    target.set_eagle3_layers_to_capture([2, 4, 6])
    assert target.model.layers_to_capture == [3, 5, 7]


def test_a_rank_that_captures_nothing_is_left_alone() -> None:
    target = wrapped(StateCapture(states=(3, 5, 7)))(last_rank=False)
    target.set_eagle3_layers_to_capture([2, 4, 6])
    assert target.model.layers_to_capture == []


def test_a_target_that_does_not_capture_is_an_error() -> None:
    class Deaf(Target):
        def set_eagle3_layers_to_capture(self, layer_ids: Any = None) -> None:
            """Take no notice."""

    wrapt.wrap_function_wrapper(Deaf, "set_eagle3_layers_to_capture", StateCapture(states=(3,)))
    with pytest.raises(CaptureFailed, match=r"Deaf was told to capture h\[3\]"):
        Deaf().set_eagle3_layers_to_capture()


def test_the_layers_before_captured_states_complete_their_sums() -> None:
    target = wrapped(StateCapture(states=(0, 1, 5), mend_partial_sums=True))()
    target.set_eagle3_layers_to_capture()
    last = [layer.layer_communicator.is_last_layer for layer in target.model.layers]
    assert last == [True, False, False, False, True, False, False, False]


def test_a_layer_without_the_attribute_is_an_error_that_names_it() -> None:
    layers = [SimpleNamespace(layer_communicator=SimpleNamespace())]
    with pytest.raises(AttributeError, match="is_last_layer"):
        complete_partial_sums(layers, (1,))
