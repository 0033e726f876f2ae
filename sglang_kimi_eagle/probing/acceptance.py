"""From what chains got right to acceptance lengths, with their uncertainty.

An acceptance length is counted as SGLang counts it: the tokens of a generation over its verify
steps, the bonus token of each step included, and the first token (which the prefill gives) among
the tokens.  It is simulated along the sequence: greedy verification emits the target's own tokens
whatever is drafted, so a chain matters only as long as it agrees with them.

Uncertainty is that of drawing other sequences of the same kind: a bootstrap over the sequences, or
over blocks of `BLOCK` rows where there are fewer than `SEQUENCES` of them (neighbouring blocks are
then taken as independent, which makes the intervals a little too narrow).  The same draws serve
every candidate, so that candidates are compared pairwise on equal draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from sglang_kimi_eagle.probing.scoring import Hits

if TYPE_CHECKING:
    import numpy as np

SEQUENCES = 12
BLOCK = 64
DRAWS = 2000
SEED = 20260101
CONFIDENCE = 0.95
"""Of the intervals of single numbers."""
DECISION = 0.99
"""Of the interval of a difference that decides."""
POWER = 0.8
"""With which the sample that is asked for finds a difference as large as the one seen."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """Return it in the shape of the JSON output."""
        return {"value": self.value, "low": self.low, "high": self.high}


class Draws:
    """The draws of a bootstrap over ``units``, the same for every candidate."""

    def __init__(self, units: int) -> None:
        import numpy as np

        self.units = units
        random = np.random.default_rng(SEED)
        # How often each unit is drawn: [DRAWS, units].
        self.counts = random.multinomial(units, np.full(units, 1 / units), DRAWS)

    def interval(self, above: np.ndarray, below: np.ndarray) -> Interval:
        """Return the ratio of two sums over units, each [units]; 0 of nothing is 0."""
        import numpy as np

        low, high = np.quantile(self.ratios(above, below), _tails(CONFIDENCE))
        value = float(above.sum() / below.sum()) if below.sum() else 0.0
        return Interval(value, float(low), float(high))

    def ratios(self, above: np.ndarray, below: np.ndarray) -> np.ndarray:
        """Return the ratio in each draw: [DRAWS]."""
        import numpy as np

        over = self.counts @ below
        empty = np.zeros(len(over))
        ratios: np.ndarray = np.divide(self.counts @ above, over, out=empty, where=over > 0)
        return ratios


@dataclass(frozen=True)
class Tally:
    """Counts of one candidate, unit by unit."""

    tokens: np.ndarray
    """int [units]: tokens of the simulated generations."""
    verifies: np.ndarray
    """int [units]: verify steps."""
    right: np.ndarray
    """int [units, steps]: rows whose step was right, fed the true tokens."""
    through: np.ndarray
    """int [units, steps]: rows whose chain, fed its own tokens, was right up to this step."""
    rows: np.ndarray
    """int [units, steps]: rows that have such a step."""

    @property
    def length(self) -> float:
        """The acceptance length."""
        return float(self.tokens.sum() / self.verifies.sum())


@dataclass(frozen=True)
class Scores:
    """The numbers of one candidate."""

    acceptance_length: Interval
    teacher_forced: tuple[Interval, ...]
    """Share of right tokens at each step, fed the true tokens before it."""
    self_fed: tuple[Interval, ...]
    """Share of chains that are right up to each step, fed their own tokens."""

    @property
    def first_step(self) -> Interval:
        """Agreement of the first draft with the target."""
        return self.teacher_forced[0]


@dataclass(frozen=True)
class Difference:
    """The best candidate's acceptance length less another's, on equal draws."""

    interval: Interval
    """Of confidence `DECISION`."""
    rows_needed: int | None
    """Rows that would settle it, if the difference is as large as seen; None when it is zero."""

    @property
    def settled(self) -> bool:
        """Whether the difference is beyond chance."""
        return self.interval.low > 0


@dataclass(frozen=True)
class Comparison:
    """Tallies of all candidates over the same units."""

    tallies: Sequence[Tally]
    rows: int

    @cached_property
    def draws(self) -> Draws:
        """The draws of the bootstrap."""
        return Draws(len(self.tallies[0].tokens))

    def scores(self, index: int) -> Scores:
        """Return the numbers of a candidate."""
        tally, draws = self.tallies[index], self.draws
        steps = range(tally.rows.shape[1])
        return Scores(
            draws.interval(tally.tokens, tally.verifies),
            tuple(draws.interval(tally.right[:, s], tally.rows[:, s]) for s in steps),
            tuple(draws.interval(tally.through[:, s], tally.rows[:, s]) for s in steps),
        )

    def difference(self, better: int, worse: int) -> Difference:
        """Compare two candidates' acceptance lengths."""
        import numpy as np

        a, b = self.tallies[better], self.tallies[worse]
        drawn = self.draws.ratios(a.tokens, a.verifies) - self.draws.ratios(b.tokens, b.verifies)
        low, high = np.quantile(drawn, _tails(DECISION))
        value = a.length - b.length
        return Difference(Interval(value, float(low), float(high)), self._needed(value, drawn))

    def _needed(self, value: float, drawn: np.ndarray) -> int | None:
        from statistics import NormalDist

        if value <= 0:
            return None
        normal = NormalDist()
        z = normal.inv_cdf((1 + DECISION) / 2) + normal.inv_cdf(POWER)
        return max(1, round(self.rows * (z * float(drawn.std()) / value) ** 2))


def tally(hits: Sequence[Hits]) -> Tally:
    """Count what the chains of all samples got right."""
    import numpy as np

    by_sequence = len(hits) >= SEQUENCES
    units: list[tuple[int, int, np.ndarray, np.ndarray, np.ndarray]] = []
    for sample in hits:
        through = np.logical_and.accumulate(sample.right & sample.known, axis=1)
        verifies = simulate(sample)
        size = len(sample.right) if by_sequence else BLOCK
        for first in range(0, len(sample.right), size):
            span = slice(first, first + size)
            steps = [count for row, count in verifies if first <= row < first + size]
            units.append(
                (
                    sum(steps),
                    len(steps),
                    (sample.right & sample.known)[span].sum(0),
                    through[span].sum(0),
                    sample.known[span].sum(0),
                )
            )
    tokens, verified, right, chained, rows = zip(*units, strict=True)
    return Tally(
        np.array(tokens), np.array(verified), np.array(right), np.array(chained), np.array(rows)
    )


def simulate(hits: Hits) -> list[tuple[int, int]]:
    """Speculate along a sample: the row that each verify step starts from, and its tokens.

    The first one has the token of the prefill too, and the last one is cut off at the end.
    """
    accepted = (hits.right & hits.known).cumprod(axis=1).sum(axis=1)
    row, last = 0, len(accepted)
    steps: list[tuple[int, int]] = []
    while row < last:
        count = min(int(accepted[row]) + 1, last - row)
        steps.append((row, count + (not steps)))
        row += count
    return steps


def _tails(confidence: float) -> list[float]:
    return [(1 - confidence) / 2, (1 + confidence) / 2]
