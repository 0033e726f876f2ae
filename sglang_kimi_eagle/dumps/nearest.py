"""Find the rows of a dump without tokens in a trace by the states themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_kimi_eagle.dumps.matching import How, Match, cut
from sglang_kimi_eagle.dumps.samples import Sample, Slot
from sglang_kimi_eagle.dumps.traced import read_state, traced_states
from sglang_kimi_eagle.tracing.trace_file import Sequence, Trace

if TYPE_CHECKING:
    import torch

MOST_ROWS = 128
"""Rows of a sample that are looked for, evenly spread: each is compared with the whole trace."""
NEAR = 0.1
"""Relative error up to which a row of the trace is taken for the dump's."""
APART = 3.0
"""How many times farther the next nearest row of other tokens has to be."""
_BLOCK = 512
_RESOLUTION = 2.0**-8


@dataclass
class _Places:
    """The nearest rows of the trace for some rows of a dump."""

    errors: list[float]
    seconds: list[float]
    where: list[tuple[int, int]]
    """(number of the sequence, row in it)."""


def match_states(sample: Sample, trace: Trace) -> Match | None:
    """Pair rows of a sample without tokens with the traced rows that its states are near to.

    Every tensor is compared with every traced state but h[0], which is alike wherever a token is,
    until most rows of one are found without doubt.  The rows of the others follow.
    """
    wanted = _spread(sample.rows, MOST_ROWS)
    distinct = _distinct(trace)
    for slot in sample.slots:
        for k in traced_states(trace):
            if k == 0:
                continue
            places = _places(slot, wanted, trace, distinct, k)
            match = _match(sample, wanted, places, trace)
            if match is not None:
                return match
    return None


def _places(
    slot: Slot, wanted: list[int], trace: Trace, distinct: list[list[int]], k: int
) -> _Places:
    import torch

    dumped = slot.values[torch.tensor(wanted)].float()
    places = _Places(
        [float("inf")] * len(wanted), [float("inf")] * len(wanted), [(-1, -1)] * len(wanted)
    )
    for number, sequence in enumerate(trace.sequences):
        for rows, values in _traced(trace, sequence, distinct[number], k):
            sizes = values.norm(dim=-1).clamp_min(1e-30)
            errors = (torch.cdist(dumped, values) / sizes).nan_to_num(nan=float("inf"))
            nearest = errors.topk(min(2, len(rows)), dim=1, largest=False)
            for index, (found, columns) in enumerate(
                zip(nearest.values.tolist(), nearest.indices.tolist(), strict=True)
            ):
                for error, column in zip(found, columns, strict=True):
                    _keep(places, index, error, (number, rows[column]))
    return places


def _keep(places: _Places, index: int, error: float, where: tuple[int, int]) -> None:
    if error < places.errors[index]:
        places.seconds[index] = places.errors[index]
        places.errors[index], places.where[index] = error, where
    elif error < places.seconds[index]:
        places.seconds[index] = error


def _match(sample: Sample, wanted: list[int], places: _Places, trace: Trace) -> Match | None:
    """Take the rows that were found without doubt, of the sequence that has the most."""
    sure: dict[int, dict[int, int]] = {}
    for row, error, second, (number, traced) in zip(
        wanted, places.errors, places.seconds, places.where, strict=True
    ):
        if error <= NEAR and second >= APART * max(error, _RESOLUTION):
            sure.setdefault(number, {})[traced] = row
    if not sure:
        return None
    number, rows = max(sure.items(), key=lambda item: len(item[1]))
    if len(rows) * 2 < len(wanted):
        return None
    pairs = tuple((row, traced) for traced, row in sorted(rows.items()))
    return Match(sample, trace.sequences[number], pairs, How.NEAREST)


def _traced(
    trace: Trace, sequence: Sequence, rows: list[int], k: int
) -> Iterator[tuple[list[int], torch.Tensor]]:
    import torch

    for start in range(0, len(rows), _BLOCK):
        some = rows[start : start + _BLOCK]
        values = read_state(trace, cut(sequence, some[0], some[-1] + 1), k)
        yield some, values[torch.tensor([row - some[0] for row in some])].float()


def _distinct(trace: Trace) -> list[list[int]]:
    """Return the rows of each sequence whose tokens so far no earlier sequence has."""
    seen: set[int] = set()
    result = []
    for number, sequence in enumerate(trace.sequences):
        rows = []
        before = hash(("cached", number, sequence.start)) if sequence.start else 0
        for row, token in enumerate(sequence.tokens):
            before = hash((before, token))
            if before not in seen:
                seen.add(before)
                rows.append(row)
        result.append(rows)
    return result


def _spread(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    return [index * count // most for index in range(most)]
