"""The wirings that a drafter may have been trained with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, permutations

from sglang_kimi_eagle.states import Convention, States, default_states, states_of
from sglang_kimi_eagle.wiring import DeclaredIds

_ORDERS = 24
"""Orders of the best candidate's states that are tried: all of up to four states."""


@dataclass(frozen=True)
class Candidate:
    """States in the order of ``fc``'s slots, and how one comes to them."""

    states: States
    names: tuple[str, ...]

    @property
    def ascending(self) -> bool:
        """Whether the engine can concatenate them so: it does in ascending order."""
        return all(a < b for a, b in zip(self.states, self.states[1:], strict=False))


def candidates(
    declared: DeclaredIds, running: States, resolved: States | None, num_layers: int, count: int
) -> list[Candidate]:
    """List the candidates for a drafter of ``count`` states, each once.

    Args:
        declared: of the drafter's config.
        running: what the traced server fed it.
        resolved: what the plugin resolves for the drafter now.
        num_layers: of the target.
        count: states that ``fc`` takes.
    """
    named: list[tuple[States, str]] = [(running, "running")]
    if resolved is not None:
        named.append((resolved, "resolved"))
    bases = [running, *([resolved] if resolved is not None else [])]
    for ids, place in ((declared.ids, "ids"), (declared.top_level, "top-level ids")):
        if ids is None:
            continue
        for convention in (Convention.LAYER_OUTPUT, Convention.LAYER_INPUT):
            states = states_of(ids, convention)
            named.append((states, f"{place} as {convention.value}"))
            bases.append(states)
    named.append((default_states(num_layers), "engine default"))
    bases.append(default_states(num_layers))
    for base in bases:
        for shift in (-1, 1):
            shifted = tuple(state + shift for state in base)
            named.append((shifted, "one layer early" if shift < 0 else "one layer late"))
    return _distinct(named, num_layers, count)


def orders(best: Candidate) -> list[Candidate]:
    """List the other orders of a candidate's states."""
    others = (order for order in permutations(best.states) if order != best.states)
    return [Candidate(order, ("other order",)) for order in islice(others, _ORDERS - 1)]


def merged(found: Sequence[Candidate], more: Iterable[Candidate]) -> list[Candidate]:
    """Add candidates that are not there yet."""
    known = {candidate.states for candidate in found}
    return [*found, *(candidate for candidate in more if candidate.states not in known)]


def _distinct(named: Iterable[tuple[States, str]], num_layers: int, count: int) -> list[Candidate]:
    names: dict[States, list[str]] = {}
    for states, name in named:
        possible = len(states) == count and all(0 <= state <= num_layers for state in states)
        if not possible or len(set(states)) != count:
            continue
        known = names.setdefault(states, [])
        # What is named already needs no "one layer late" of something else.
        if name not in known and not (known and name.startswith("one layer")):
            known.append(name)
    return [Candidate(states, tuple(found)) for states, found in names.items()]
