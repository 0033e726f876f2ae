"""Conversions between layer ids and states."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.states import Convention, default_states, ids_of, show, states_of

CONVENTIONS = st.sampled_from(Convention)
LAYERS = st.integers(min_value=6, max_value=200)
IDS = st.lists(st.integers(min_value=0, max_value=199), min_size=1, max_size=8, unique=True)


@given(IDS, CONVENTIONS)
def test_ids_survive_the_round_trip(ids: list[int], convention: Convention) -> None:
    assert list(ids_of(states_of(ids, convention), convention)) == ids


@given(IDS.map(lambda ids: [k + 1 for k in ids]), CONVENTIONS)
def test_states_survive_the_round_trip(states: list[int], convention: Convention) -> None:
    assert list(states_of(ids_of(states, convention), convention)) == states


@given(IDS.map(sorted), CONVENTIONS)
def test_conversion_is_monotone(ids: list[int], convention: Convention) -> None:
    states = states_of(ids, convention)
    assert list(states) == sorted(states)
    assert all(a < b for a, b in itertools.pairwise(states))


@given(IDS)
def test_output_ids_name_the_state_after_the_input_ids(ids: list[int]) -> None:
    inputs = states_of(ids, Convention.LAYER_INPUT)
    assert states_of(ids, Convention.LAYER_OUTPUT) == tuple(state + 1 for state in inputs)


@given(IDS, CONVENTIONS, LAYERS)
def test_ids_of_layers_stay_within_the_streams_of_the_model(
    ids: list[int], convention: Convention, layers: int
) -> None:
    inside = [layer_id for layer_id in ids if layer_id < layers]
    assert all(0 <= state <= layers for state in states_of(inside, convention))


def test_the_embedding_is_no_layers_output() -> None:
    with pytest.raises(ValueError, match="no layer's output"):
        ids_of([0, 3], Convention.LAYER_OUTPUT)
    assert ids_of([0, 3], Convention.LAYER_INPUT) == (0, 3)


@given(LAYERS)
def test_default_states_can_be_captured_on_every_release(layers: int) -> None:
    for release in RELEASES.values():
        assert all(state in release.reachable(layers) for state in default_states(layers))


def test_the_default_states_of_kimi() -> None:
    assert default_states(61) == (2, 30, 58)
    assert show(default_states(61)) == "h[2], h[30], h[58]"
