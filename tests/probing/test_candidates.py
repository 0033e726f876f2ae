from __future__ import annotations

from sglang_kimi_eagle.probing.candidates import Candidate, candidates, merged, orders
from sglang_kimi_eagle.states import IDS_KEY
from sglang_kimi_eagle.wiring import read_ids

LAYERS = 61


def listed(config: dict[str, object], running: tuple[int, ...] = (2, 30, 58)) -> dict[object, str]:
    found = candidates(read_ids(config), running, None, LAYERS, 3)
    assert len({one.states for one in found}) == len(found)
    return {one.states: ", ".join(one.names) for one in found}


def test_both_readings_the_default_and_their_neighbours_are_there() -> None:
    found = listed({"eagle_config": {IDS_KEY: [2, 30, 58]}})
    assert found[(2, 30, 58)] == "running, ids as layer_input, engine default"
    assert found[(3, 31, 59)] == "ids as layer_output"
    assert found[(1, 29, 57)] == "one layer early"
    assert found[(4, 32, 60)] == "one layer late"
    assert len(found) == 4


def test_ids_at_the_top_level_count_too() -> None:
    found = listed({IDS_KEY: [3, 31, 59], "eagle_config": {IDS_KEY: [1, 29, 57]}})
    assert found[(3, 31, 59)] == "top-level ids as layer_input"
    assert found[(4, 32, 60)] == "top-level ids as layer_output"


def test_states_that_the_target_lacks_are_none() -> None:
    found = listed({"eagle_config": {IDS_KEY: [0, 30, 61]}}, running=(1, 30, 60))
    assert (0, 30, 61) in found
    assert not [states for states in found if min(states) < 0 or max(states) > LAYERS]  # type: ignore[type-var,call-overload]


def test_lists_of_another_length_than_fc_takes_are_none() -> None:
    found = listed({"eagle_config": {IDS_KEY: [2, 30]}})
    assert all(len(states) == 3 for states in found)  # type: ignore[arg-type]


def test_orders_are_all_the_others() -> None:
    best = Candidate((3, 31, 59), ("running",))
    assert best.ascending
    found = orders(best)
    assert len(found) == 5 and not any(one.ascending for one in found)
    assert merged([best], [*found, best]) == [best, *found]


def test_orders_of_many_states_are_bounded() -> None:
    assert len(orders(Candidate(tuple(range(12)), ()))) == 23
