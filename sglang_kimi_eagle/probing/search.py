"""Search all combinations of the traced states for those that the drafter drafts best from.

``fc`` is linear: what a state adds in a slot is computed once, and every combination is a sum of
such parts and one forward of the layer.  Combinations are ranked by the agreement of the first
draft on a few sequences; the best of them are then scored like any other candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

from sglang_kimi_eagle.probing.candidates import Candidate
from sglang_kimi_eagle.probing.loading import Loaded
from sglang_kimi_eagle.probing.samples import Sample
from sglang_kimi_eagle.probing.scoring import compare
from sglang_kimi_eagle.states import State, States
from sglang_kimi_eagle.tracing.finite import finite_state
from sglang_kimi_eagle.tracing.trace_file import Trace

if TYPE_CHECKING:
    import torch

EXHAUSTIVE = 2000
"""So many combinations are all tried; of more, one state at a time is changed."""
KEPT = 5
"""Combinations that are scored in full."""
_MEMORY = 1 << 30
"""Bytes of the parts held at a time."""
_LEAST_ROWS, _MOST_ROWS = 64, 512
_SWEEPS = 8


@dataclass(frozen=True)
class Searched:
    """What a search found, and how it looked."""

    best: tuple[Candidate, ...]
    tried: int
    possible: int
    rows: int
    """Rows that they were ranked on."""

    @property
    def exhaustive(self) -> bool:
        """Whether every combination was tried."""
        return self.tried == self.possible

    def as_dict(self) -> dict[str, object]:
        """Return it in the shape of the JSON output."""
        return {
            "tried": self.tried,
            "possible": self.possible,
            "exhaustive": self.exhaustive,
            "rows": self.rows,
            "best": [list(candidate.states) for candidate in self.best],
        }


def search(
    loaded: Loaded,
    trace: Trace,
    states: States,
    samples: Sequence[Sample],
    starts: Sequence[States],
    done: Callable[[int, int], None] = lambda _tried, _expected: None,
) -> Searched:
    """Search the ascending combinations of traced states.

    Args:
        loaded: the drafter.
        trace: where the states are.
        states: those to combine.
        samples: the first of them are ranked on.
        starts: where to begin when there are too many combinations to try all.
        done: told how many were tried, of how many as far as is known.

    Raises:
        UnreadableTrace: a file of the trace went away, or a state is not finite.
    """
    import torch

    slots = loaded.reference.num_states
    possible = comb(len(states), slots)
    with torch.inference_mode():
        ranking = _Ranking(loaded, trace, states, _subset(loaded, len(states), samples))
        if possible <= EXHAUSTIVE:
            for number, tried in enumerate(combinations(states, slots), start=1):
                ranking.agreement(tried)
                done(number, possible)
        else:
            spread = states[:: max(1, len(states) // slots)][:slots]
            for start in (*starts, spread):
                for _ in _climb(ranking, start):
                    done(len(ranking.found), possible)
    ranked = sorted(ranking.found, key=lambda one: -ranking.found[one])
    best = tuple(Candidate(one, ("search",)) for one in ranked[:KEPT])
    return Searched(best, len(ranking.found), possible, ranking.rows)


class _Ranking:
    """First-step agreement of combinations, each computed once."""

    def __init__(
        self, loaded: Loaded, trace: Trace, states: States, samples: Sequence[Sample]
    ) -> None:
        self.found: dict[States, float] = {}
        self.states = states
        self.rows = sum(sample.rows for sample in samples)
        self._loaded, self._samples = loaded, samples
        reference = loaded.reference
        # [sample][state]: parts by slot, and squares.
        self._parts: list[dict[State, tuple[list[torch.Tensor], torch.Tensor]]] = []
        for sample in samples:
            by_state = {}
            for k in states:
                state = finite_state(trace, sample.sequence, k)[:-1]
                slots = range(reference.num_states)
                parts = [reference.contribution(state, slot) for slot in slots]
                by_state[k] = parts, reference.squares(state)
            self._parts.append(by_state)

    def agreement(self, states: States) -> float:
        """Return the share of rows whose first draft is right."""
        if states not in self.found:
            right = 0
            for sample, by_state in zip(self._samples, self._parts, strict=True):
                parts = [by_state[k][0][slot] for slot, k in enumerate(states)]
                hidden = self._loaded.reference.combine(parts, [by_state[k][1] for k in states])
                right += int(compare(self._loaded, sample, hidden, 1).right.sum())
            self.found[states] = right / self.rows
        return self.found[states]


def _climb(ranking: _Ranking, start: States) -> Iterator[None]:
    """Change one state at a time for the best one, until no change helps."""
    best = tuple(sorted(start))
    score = ranking.agreement(best)
    for _ in range(_SWEEPS):
        before = best
        for slot in range(len(best)):
            for k in ranking.states:
                tried = tuple(sorted({*best[:slot], k, *best[slot + 1 :]}))
                if len(tried) == len(best) and ranking.agreement(tried) > score:
                    best, score = tried, ranking.agreement(tried)
                yield
        if best == before:
            return


def _subset(loaded: Loaded, states: int, samples: Sequence[Sample]) -> list[Sample]:
    """Take samples until there are enough rows, within the memory for their parts."""
    reference = loaded.reference
    row = states * reference.num_states * len(loaded.embedding.rows[0]) * 4
    budget = max(_LEAST_ROWS, min(_MOST_ROWS, _MEMORY // row))
    taken: list[Sample] = []
    for sample in samples:
        if taken and sum(len(one.sequence) for one in [*taken, sample]) > budget:
            break
        taken.append(sample)
    return taken
