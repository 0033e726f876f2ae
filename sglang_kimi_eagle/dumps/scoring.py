"""How near each dumped state is to each traced one, row by row, in bounded memory.

A few hundred rows of one state are in memory at a time, whatever the sizes of dump and trace.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sglang_kimi_eagle.dumps.matching import Match, cut
from sglang_kimi_eagle.dumps.samples import Sample
from sglang_kimi_eagle.dumps.target_weights import TargetWeights
from sglang_kimi_eagle.dumps.traced import read_state, traced_states
from sglang_kimi_eagle.states import State
from sglang_kimi_eagle.tracing.trace_file import Trace

if TYPE_CHECKING:
    import torch

BLOCK = 256
"""Rows in memory at a time."""


class Kind(str, enum.Enum):
    """What a dumped tensor can be."""

    STATE = "state"
    """h[k] itself."""
    NORM = "norm"
    """The output of the final norm, computed with the target's weight."""
    NORM_FITTED = "norm, gain fitted"
    """h[k] over its root mean square, times a gain for each channel that was fitted."""


@dataclass(frozen=True, order=True)
class Candidate:
    """One thing that a dumped tensor can be."""

    kind: Kind
    state: State


@dataclass(frozen=True)
class Score:
    """How near one dumped tensor is to a candidate."""

    candidate: Candidate
    errors: tuple[float, ...]
    """For each row, the norm of the difference over the norm of the candidate's row."""
    cosines: tuple[float, ...]

    @property
    def error(self) -> float:
        """The median of the rows: single tokens with huge activations do not decide."""
        return statistics.median(self.errors)

    @property
    def cosine(self) -> float:
        """The median of the rows."""
        return statistics.median(self.cosines)


@dataclass
class SlotRows:
    """What was found of one dumped tensor over all samples."""

    dtype: str
    unusable: int = 0
    """Rows left out: not finite, or all zeros."""
    scores: dict[Candidate, tuple[list[float], list[float]]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows that were compared."""
        return max((len(errors) for errors, _ in self.scores.values()), default=0)

    def scored(self) -> list[Score]:
        """Return the scores, nearest first."""
        found = [Score(c, tuple(e), tuple(s)) for c, (e, s) in self.scores.items() if e]
        return sorted(found, key=lambda score: score.error)


@dataclass
class Measured:
    """What was found of every dumped tensor, and of the trace."""

    slots: dict[str, SlotRows] = field(default_factory=dict)
    not_finite: dict[State, int] = field(default_factory=dict)
    """Traced rows with NaN or infinity in them; states that have none are not named."""


def measure(matches: Sequence[Match], trace: Trace, weights: TargetWeights | None) -> Measured:
    """Compare every dumped tensor with every traced state.

    With ``weights`` also with h[0], where it was not traced, and with the final norm's output.

    Raises:
        UnreadableTrace: a file of the trace went away.
    """
    measured = Measured()
    slots = measured.slots
    known = traced_states(trace)
    candidates = [Candidate(Kind.STATE, k) for k in known]
    last = trace.facts.num_layers
    if weights is not None:
        if weights.has_embedding and 0 not in known:
            candidates.insert(0, Candidate(Kind.STATE, 0))
        if weights.norm is not None and last in known:
            candidates.append(Candidate(Kind.NORM, last))
    for match, block in _blocks(matches):
        dumped = {}
        for slot in match.sample.slots:
            values = _rows(slot.values, [row for row, _ in block])
            rows = slots.setdefault(
                slot.name, SlotRows(str(slot.values.dtype).removeprefix("torch."))
            )
            usable = _usable(values)
            rows.unusable += len(block) - int(usable.sum())
            dumped[slot.name] = (values, usable)
        for candidate in candidates:
            wanted = traced_rows(candidate, match, block, trace, weights)
            usable_there = _usable(wanted)
            if candidate.kind is Kind.STATE and candidate.state in known:
                bad = int((~wanted.norm(dim=-1).isfinite()).sum())
                if bad:
                    state = candidate.state
                    measured.not_finite[state] = measured.not_finite.get(state, 0) + bad
            for name, (values, usable) in dumped.items():
                both = usable & usable_there
                errors, cosines = _compare(values[both], wanted[both])
                scored = slots[name].scores.setdefault(candidate, ([], []))
                scored[0].extend(errors)
                scored[1].extend(cosines)
    return measured


def fit_norms(
    matches: Sequence[Match], trace: Trace, names: Sequence[str]
) -> dict[str, list[Score]]:
    """Compare dumped tensors with every normed state, its gain fitted channel by channel.

    The gain is the least-squares one over half of the rows, and judged by the other half, so that
    it cannot fit what is not there.
    """
    found: dict[str, list[Score]] = {name: [] for name in names}
    for k in traced_states(trace):
        candidate = Candidate(Kind.STATE, k)
        gains = _fit(matches, trace, names, candidate)
        scores: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in names}
        for match, block in _blocks(matches, offset=1):
            normed, usable_there = _normed(candidate, match, block, trace)
            for slot in match.sample.slots:
                if slot.name not in gains:
                    continue
                values = _rows(slot.values, [row for row, _ in block])
                both = _usable(values) & usable_there
                errors, cosines = _compare(values[both], normed[both] * gains[slot.name])
                scores[slot.name][0].extend(errors)
                scores[slot.name][1].extend(cosines)
        for name, (errors, cosines) in scores.items():
            if errors:
                fitted = Candidate(Kind.NORM_FITTED, k)
                found[name].append(Score(fitted, tuple(errors), tuple(cosines)))
    return {name: sorted(scores, key=lambda s: s.error) for name, scores in found.items()}


def has_numbers(samples: Iterable[Sample], most: int) -> bool:
    """Tell whether some tensor has a row among its first ``most`` that can be compared."""
    return any(
        bool(_usable(slot.values[:most].float()).any())
        for sample in samples
        for slot in sample.slots
    )


def not_finite_states(trace: Trace) -> dict[State, int]:
    """Count the rows of each traced state that are not finite, by reading the whole trace."""
    found: dict[State, int] = {}
    for k in traced_states(trace):
        for sequence in trace.sequences:
            for first in range(0, len(sequence), BLOCK):
                last = min(first + BLOCK, len(sequence))
                values = read_state(trace, cut(sequence, first, last), k).float()
                bad = int((~values.norm(dim=-1).isfinite()).sum())
                if bad:
                    found[k] = found.get(k, 0) + bad
    return found


def traced_rows(
    candidate: Candidate,
    match: Match,
    block: Sequence[tuple[int, int]],
    trace: Trace,
    weights: TargetWeights | None,
) -> torch.Tensor:
    """Return what a candidate says the rows of ``block`` are: float32 [rows, hidden size]."""
    rows = [row for _, row in block]
    if candidate.state == 0 and 0 not in traced_states(trace) and weights is not None:
        return weights.embedding([match.sequence.tokens[row] for row in rows]).float()
    first, last = rows[0], rows[-1] + 1
    values = read_state(trace, cut(match.sequence, first, last), candidate.state)
    values = _rows(values, [row - first for row in rows])
    if candidate.kind is Kind.NORM and weights is not None:
        return weights.final_norm(values)
    return values


def _fit(
    matches: Sequence[Match], trace: Trace, names: Sequence[str], candidate: Candidate
) -> Mapping[str, torch.Tensor]:
    """Fit the gain of each tensor over every second row: [hidden size]."""
    import torch

    products: dict[str, torch.Tensor] = {}
    squares: dict[str, torch.Tensor] = {}
    for match, block in _blocks(matches, offset=0):
        normed, usable_there = _normed(candidate, match, block, trace)
        for slot in match.sample.slots:
            if slot.name not in names:
                continue
            values = _rows(slot.values, [row for row, _ in block])
            both = _usable(values) & usable_there
            product = (values[both] * normed[both]).sum(0)
            square = normed[both].square().sum(0)
            products[slot.name] = products.get(slot.name, 0) + product
            squares[slot.name] = squares.get(slot.name, 0) + square
    return {
        name: torch.where(squares[name] > 0, product / squares[name].clamp_min(1e-30), 0.0)
        for name, product in products.items()
    }


def _normed(
    candidate: Candidate, match: Match, block: Sequence[tuple[int, int]], trace: Trace
) -> tuple[torch.Tensor, torch.Tensor]:
    values = traced_rows(candidate, match, block, trace, None)
    rms = values.square().mean(-1, keepdim=True).sqrt()
    return values / rms.clamp_min(1e-30), _usable(values)


def _blocks(
    matches: Sequence[Match], offset: int | None = None
) -> Iterator[tuple[Match, tuple[tuple[int, int], ...]]]:
    """Yield rows a block at a time; with ``offset`` every second one, from there on."""
    for match in matches:
        rows = match.rows if offset is None else match.rows[offset::2]
        for start in range(0, len(rows), BLOCK):
            yield match, rows[start : start + BLOCK]


def _rows(values: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Read some rows as float32."""
    import torch

    return values[torch.tensor(rows)].float()


def _usable(values: torch.Tensor) -> torch.Tensor:
    """Tell which rows are finite and not all zeros; a norm that overflows is not finite."""
    norms = values.norm(dim=-1)
    return norms.isfinite() & (norms > 0)


def _compare(dumped: torch.Tensor, traced: torch.Tensor) -> tuple[list[float], list[float]]:
    """Return relative error and cosine of each row."""
    sizes = traced.norm(dim=-1).clamp_min(1e-30)
    errors = (dumped - traced).norm(dim=-1) / sizes
    cosines = (dumped * traced).sum(-1) / (sizes * dumped.norm(dim=-1))
    return errors.tolist(), cosines.tolist()
