"""What numbers decide, and what they do not."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sglang_kimi_eagle.dumps.scoring import Candidate, Kind, Score
from sglang_kimi_eagle.dumps.verdict import (
    APART,
    FLOOR,
    LOOSE,
    Outcome,
    decide,
    name_states,
    with_fitted,
)
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.states import Convention, States

LAYERS = 8


def score(state: int, error: float, kind: Kind = Kind.STATE, rows: int = 64) -> Score:
    return Score(Candidate(kind, state), (error,) * rows, (1 - error,) * rows)


def of(errors: dict[int, float]) -> list[Score]:
    """Scores of all states: those given, and 1.4 for the others."""
    return [score(k, errors.get(k, 1.4)) for k in range(LAYERS + 1)]


def outcome(scores: list[Score]) -> Outcome:
    decision = decide(scores, LAYERS)
    assert decision is not None
    return decision.outcome


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ({3: 0.0}, Outcome.IDENTIFIED),
        ({3: FLOOR, 4: 0.1}, Outcome.IDENTIFIED),
        ({3: 0.0, 4: FLOOR}, Outcome.AMBIGUOUS),
        ({3: 0.08, 4: 0.12}, Outcome.AMBIGUOUS),
        ({3: 0.1, 4: 0.3}, Outcome.IDENTIFIED),
        ({3: 0.3}, Outcome.UNKNOWN),
        ({}, Outcome.UNKNOWN),
        ({3: float("nan")}, Outcome.UNKNOWN),
    ],
)
def test_the_nearest_is_named_only_if_it_is_near_and_alone(
    errors: dict[int, float], expected: Outcome
) -> None:
    assert outcome(of(errors)) is expected


@given(
    st.dictionaries(
        st.integers(0, LAYERS), st.floats(0, 2), min_size=LAYERS + 1, max_size=LAYERS + 1
    )
)
def test_a_named_state_is_near_and_its_runner_up_far(errors: dict[int, float]) -> None:
    decision = decide(of(errors), LAYERS)
    assert decision is not None
    if decision.outcome is Outcome.IDENTIFIED:
        first, second = sorted(errors.values())[:2]
        assert first <= LOOSE
        assert second**2 - first**2 >= (APART * max(first, FLOOR)) ** 2 * 0.999


@given(st.floats(0, 0.2), st.floats(0, 2), st.integers(1, LAYERS - 1))
def test_less_noise_never_loses_a_verdict(noise: float, apart: float, k: int) -> None:
    def decided(level: float) -> Outcome:
        # Noise has nothing to do with the distance of the neighbour.
        return outcome(of({k: level, k + 1: (level**2 + apart**2) ** 0.5}))

    assume(decided(noise) is Outcome.IDENTIFIED)
    assert decided(noise / 2) is Outcome.IDENTIFIED


def test_a_state_that_loses_rows_is_ambiguous() -> None:
    near = Score(Candidate(Kind.STATE, 3), (0.01,) * 50 + (1.0,) * 14, (1.0,) * 64)
    assert outcome([near, *[s for s in of({4: 0.5}) if s.candidate.state != 3]]) is (
        Outcome.AMBIGUOUS
    )


def test_an_untraced_neighbour_leaves_only_what_is_within_rounding() -> None:
    traced = [score(2, 1.4), score(3, FLOOR), score(6, 1.4)]
    decision = decide(traced, LAYERS)
    assert decision is not None and decision.outcome is Outcome.IDENTIFIED
    decision = decide([score(2, 1.4), score(3, 0.05), score(6, 1.4)], LAYERS)
    assert decision is not None and decision.outcome is Outcome.AMBIGUOUS
    assert decision.untraced == (4,)


def test_the_only_traced_state_is_no_proof_by_itself() -> None:
    decision = decide([score(3, 0.05)], LAYERS)
    assert decision is not None and decision.untraced == (2, 4)
    assert decision.outcome is Outcome.AMBIGUOUS
    assert decide([], LAYERS) is None


def test_a_fitted_norm_counts_only_where_it_explains_far_more() -> None:
    fitted = [score(3, 0.02, Kind.NORM_FITTED), score(4, 1.0, Kind.NORM_FITTED)]
    assert with_fitted(of({3: 0.03}), fitted) == of({3: 0.03})
    decision = decide(with_fitted(of({3: 0.9}), fitted), LAYERS)
    assert decision is not None and decision.outcome is Outcome.IDENTIFIED
    assert decision.candidate == Candidate(Kind.NORM_FITTED, 3)
    known = [*of({}), score(LAYERS, 0.1, Kind.NORM)]
    assert with_fitted(known, fitted) == known


@pytest.mark.parametrize(
    ("states", "stock"),
    [
        ((3, 31, 59), [((2, 30, 58), "0.5.9"), ((3, 31, 59), "0.5.13")]),
        ((2, 30, 58), [((1, 29, 57), "0.5.9")]),
        ((1, 29, 57), [((0, 28, 56), "0.5.9"), (None, "0.5.13")]),
        ((0, 30, 58), [(None, "0.5.9"), ((0, 30, 58), "0.5.14")]),
        ((2, 30, 61), [(None, "0.5.9")]),
    ],
)
def test_states_are_named_for_every_release(
    states: States, stock: list[tuple[tuple[int, ...] | None, str]]
) -> None:
    naming = name_states(states, 61)
    assert [(group.ids, group.versions[0]) for group in naming.stock] == stock
    assert sorted(v for group in naming.stock for v in group.versions) == sorted(RELEASES)
    assert naming.is_default == (states == (2, 30, 58))


@given(st.sets(st.integers(0, 61), min_size=1, max_size=5))
def test_named_ids_are_read_back_as_the_states(states: set[int]) -> None:
    wanted = tuple(sorted(states))
    naming = name_states(wanted, 61)
    assert (Convention.LAYER_OUTPUT in naming.by_convention) == (0 not in states)
    for group in naming.stock:
        for version in group.versions:
            if group.ids is not None:
                assert RELEASES[version].stock_states(group.ids, 61) == wanted
