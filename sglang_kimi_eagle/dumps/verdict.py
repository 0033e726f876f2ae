"""What a dumped tensor is, decided by numbers; and what ids name the states of a dump.

The numbers are relative errors: the norm of a row's difference over the norm of the row, and of
these the median over the rows.

- `FLOOR`, 2^-8: what rounding to bfloat16 does to a row, with some room. Nothing is told apart
  that differs by less.
- `USUAL`, 2^-5: what other kernels, batches and tensor-parallel sizes add up to over many bfloat16
  layers (0.6 to 1.4 % over the 8 layers of the shipped target, SGLang 0.5.23 against its twin in
  float32). More is reported as noise.
- `LOOSE`, 1/4: more than this is no longer the same state. States of other weights differ by
  about 1.4 (two unrelated directions), 8-bit weights or states by a few percent.
- A state is named only if the runner-up is farther away by a `margin` of at least `APART` times
  the noise. With e1 and e2 the errors of both, the margin is sqrt(e2^2 - e1^2): the distance
  between the two candidates, if the noise has nothing to do with it. The noise is e1, at least
  `FLOOR`. The nearer one has to win in `WINS` of all rows too.
- A state whose neighbour was not traced has to be within 2 `FLOOR`: neighbours of a large model
  differ by some percent.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_kimi_eagle.dumps.scoring import Candidate, Kind, Score
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.states import Convention, States, default_states, ids_of

FLOOR = 2.0**-8
USUAL = 2.0**-5
LOOSE = 0.25
APART = 2.0
WINS = 0.9
MIN_ROWS = 16
FIT_ROWS = 32
"""Rows that a fitted gain needs: half of them to fit, half to judge."""
FIT_GAIN = 0.4
"""A fitted norm is considered only if it brings the error down to this part of that without."""


class Outcome(str, enum.Enum):
    """What can be said of a dumped tensor."""

    IDENTIFIED = "identified"
    AMBIGUOUS = "ambiguous"
    UNKNOWN = "not identified"


@dataclass(frozen=True)
class Decision:
    """What a dumped tensor is, with the numbers that say so."""

    outcome: Outcome
    best: Score
    runner_up: Score | None
    margin: float
    """How far the runner-up is beyond the noise, as a relative error; infinite without one."""
    noise: float
    untraced: tuple[int, ...] = ()
    """Neighbours of the nearest state that would have to be traced to tell."""

    @property
    def candidate(self) -> Candidate:
        """The nearest candidate; what the tensor is only if identified."""
        return self.best.candidate

    @property
    def is_state(self) -> bool:
        """Identified as an h[k]."""
        return self.outcome is Outcome.IDENTIFIED and self.candidate.kind is Kind.STATE

    @property
    def is_noisy(self) -> bool:
        """Identified, but farther than rounding and kernels explain."""
        return self.outcome is Outcome.IDENTIFIED and self.best.error > USUAL


def decide(scores: Sequence[Score], num_layers: int) -> Decision | None:
    """Decide what a tensor is from its scores; None without any."""
    ranked = sorted(scores, key=lambda score: score.error)
    if not ranked:
        return None
    best, runner_up = ranked[0], ranked[1] if len(ranked) > 1 else None
    noise = max(best.error, FLOOR)
    margin = math.inf
    if runner_up is not None:
        margin = math.sqrt(max(0.0, runner_up.error**2 - best.error**2))
    untraced = _untraced(best, ranked, num_layers)
    if not best.error <= LOOSE:
        outcome = Outcome.UNKNOWN
    elif (
        margin < APART * noise
        or (runner_up is not None and _wins(best, runner_up) < WINS)
        or (untraced and best.error > 2 * FLOOR)
    ):
        outcome = Outcome.AMBIGUOUS
    else:
        outcome = Outcome.IDENTIFIED
    return Decision(outcome, best, runner_up, margin, noise, untraced)


def may_be_normed(decision: Decision) -> bool:
    """Tell whether it is worth looking whether a tensor is a norm's output."""
    return decision.outcome is not Outcome.IDENTIFIED or decision.is_noisy


def with_fitted(scores: Sequence[Score], fitted: Sequence[Score]) -> list[Score]:
    """Add fitted norms to the scores of a tensor where they explain it far better.

    A fitted gain also absorbs a constant scale, so that it fits h[k] itself about as well.
    """
    if not fitted or not scores:
        return list(scores)
    plain = min(score.error for score in scores)
    if fitted[0].error > FIT_GAIN * plain or any(
        score.candidate.kind is Kind.NORM and score.error <= LOOSE for score in scores
    ):
        return list(scores)
    return [*scores, *fitted]


def _untraced(best: Score, ranked: Sequence[Score], num_layers: int) -> tuple[int, ...]:
    if best.candidate.kind is not Kind.STATE:
        return ()
    known = {score.candidate.state for score in ranked if score.candidate.kind is Kind.STATE}
    near = (best.candidate.state - 1, best.candidate.state + 1)
    return tuple(k for k in near if 0 <= k <= num_layers and k not in known)


def _wins(best: Score, runner_up: Score) -> float:
    """Return the part of the rows in which ``best`` is nearer."""
    if len(best.errors) != len(runner_up.errors):
        return 1.0
    pairs = zip(best.errors, runner_up.errors, strict=True)
    return sum(mine < other for mine, other in pairs) / len(best.errors)


@dataclass(frozen=True)
class StockIds:
    """Ids that make unmodified SGLang capture some states, on some releases."""

    ids: tuple[int, ...] | None
    """None: no ids do, and the plugin is needed."""
    versions: tuple[str, ...]


@dataclass(frozen=True)
class Naming:
    """The names of a dump's states in a drafter's config."""

    states: States
    by_convention: dict[Convention, tuple[int, ...]]
    stock: tuple[StockIds, ...]
    is_default: bool
    """SGLang captures them too when the config has no ids."""


def name_states(states: States, num_layers: int) -> Naming:
    """Return the ids for ``states``, which are ascending: by convention, and by release."""
    by_convention = {
        convention: ids_of(states, convention)
        for convention in Convention
        if convention is Convention.LAYER_INPUT or 0 not in states
    }
    groups: dict[tuple[int, ...] | None, list[str]] = {}
    for version, release in RELEASES.items():
        reachable = release.reachable(num_layers)
        able = [
            ids
            for ids in by_convention.values()
            if release.stock_states(ids, num_layers) == states
            and all(state in reachable for state in states)
        ]
        groups.setdefault(able[0] if able else None, []).append(version)
    stock = tuple(StockIds(ids, tuple(versions)) for ids, versions in groups.items())
    return Naming(states, by_convention, stock, states == default_states(num_layers))
