"""Which row of a dump is which row of the trace.

A state depends on its token and on all before it.  So rows belong together where two texts have
the same tokens from the beginning; where that is not so, as far as the tokens allow; and without
tokens, where the states themselves are the same (`nearest`).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sglang_kimi_eagle.dumps.samples import Sample
from sglang_kimi_eagle.tracing.trace_file import Piece, Sequence, Trace

SURE_RUN = 16
"""Equal tokens in a row that are no chance where they are not at the beginning of both texts."""
_MAX_LAG = 64


class How(str, enum.Enum):
    """By what a sample's rows were found in the trace."""

    PREFIX = "tokens"
    """The same tokens from the beginning."""
    RUN = "a run of tokens"
    """The sample begins in the middle of a traced prompt."""
    UNIQUE = "tokens that occur once"
    """The sample's rows are a traced prompt's in another order."""
    NEAREST = "the states themselves"
    """The sample has no tokens."""


@dataclass(frozen=True)
class Match:
    """Rows of a sample and the rows of a traced sequence that they are compared with."""

    sample: Sample
    sequence: Sequence
    rows: tuple[tuple[int, int], ...]
    """(row of the sample, row of the sequence), ascending in the latter."""
    how: How


@dataclass(frozen=True)
class Closest:
    """How near the tokens of a sample come to those of the trace, when they do not match."""

    sample: Sample
    sequence: Sequence
    agreed: int
    """Tokens from the beginning that are the same."""
    lag: int | None
    """The sample's text is the traced one but for this many tokens more (or fewer, below 0) at
    its beginning."""


class TracedTokens:
    """The tokens of a trace, for samples to be found in."""

    def __init__(self, sequences: tuple[Sequence, ...]) -> None:
        self._sequences = sequences
        self._counts = [Counter(sequence.tokens) for sequence in sequences]

    def match(self, sample: Sample) -> Match | None:
        """Find the traced sequence whose tokens a sample shares, and pair their rows.

        The longest shared beginning counts, however short: by causality its states are the same
        whatever follows.  Without one, a sample that was cut at its beginning is looked for, then
        one whose rows were shuffled.
        """
        tokens = sample.tokens
        if tokens is None:
            return None
        best = max(
            ((agreement(tokens, sequence), sequence) for sequence in self._sequences),
            key=lambda item: item[0],
            default=None,
        )
        if best is not None and best[0] >= min(SURE_RUN, len(tokens)):
            return _prefix_match(sample, best[1], best[0])
        found = self._run(sample, tokens) or self._shuffled(sample, tokens)
        if found is None and best is not None and best[0] > 0:
            return _prefix_match(sample, best[1], best[0])
        return found

    def _run(self, sample: Sample, tokens: tuple[int, ...]) -> Match | None:
        head = tokens[:SURE_RUN]
        if len(head) < SURE_RUN:
            return None
        found: list[tuple[int, int, Sequence]] = []
        for sequence in self._sequences:
            for offset in _occurrences(head, sequence.tokens):
                count = _common(tokens, sequence.tokens[offset:])
                found.append((min(count, sample.rows), offset, sequence))
        if not found:
            return None
        count, offset, sequence = max(found, key=lambda item: item[0])
        rows = tuple((row, offset + row) for row in range(count))
        return Match(sample, sequence, rows, How.RUN)

    def _shuffled(self, sample: Sample, tokens: tuple[int, ...]) -> Match | None:
        """Pair the rows of tokens that occur once in the only sequence that has all of them."""
        if sample.rows != len(tokens):
            return None
        wanted = Counter(tokens)
        holding = [number for number, counts in enumerate(self._counts) if wanted <= counts]
        if len(holding) != 1:
            return None
        sequence, counts = self._sequences[holding[0]], self._counts[holding[0]]
        places = {token: row for row, token in enumerate(sequence.tokens)}
        rows = [(row, places[token]) for row, token in enumerate(tokens) if counts[token] == 1]
        rows.sort(key=lambda pair: pair[1])
        return Match(sample, sequence, tuple(rows), How.UNIQUE) if rows else None


def agreement(tokens: tuple[int, ...], sequence: Sequence) -> int:
    """Return how many rows of ``sequence`` have the sample's tokens from the beginning on.

    A sequence that begins later, after a cached prefix, is compared from there on, and has to
    agree on `SURE_RUN` tokens: what came before it is not in the trace.
    """
    rest = tokens[sequence.start :]
    count = _common(rest, sequence.tokens)
    return count if sequence.start == 0 or count >= SURE_RUN else 0


def closest(samples: Iterable[Sample], trace: Trace) -> Closest | None:
    """Return the sample whose tokens come nearest to a traced sequence's."""
    found: list[Closest] = []
    for sample in samples:
        for sequence in trace.sequences:
            if sample.tokens is not None:
                agreed = _common(sample.tokens[sequence.start :], sequence.tokens)
                lag = _lag(sample.tokens, sequence.tokens)
                found.append(Closest(sample, sequence, agreed, lag))
    return max(found, key=lambda item: (item.lag is not None, item.agreed), default=None)


def cut(sequence: Sequence, first: int, last: int) -> Sequence:
    """Return rows ``first`` to ``last`` (exclusive) of a sequence, for `Trace.state` to read."""
    pieces = []
    before = 0
    for path, piece in sequence.pieces:
        begin, end = max(first - before, 0), min(last - before, piece.rows)
        if begin < end:
            pieces.append((path, Piece(piece.sequence, piece.row + begin, end - begin)))
        before += piece.rows
    return Sequence(sequence.tokens[first:last], sequence.start + first, tuple(pieces))


def _prefix_match(sample: Sample, sequence: Sequence, agreed: int) -> Match | None:
    # Truncated dumps may have fewer states than tokens.
    count = min(agreed, sample.rows - sequence.start)
    if count <= 0:
        return None
    rows = tuple((sequence.start + row, row) for row in range(count))
    return Match(sample, sequence, rows, How.PREFIX)


def _occurrences(head: tuple[int, ...], tokens: tuple[int, ...]) -> Iterator[int]:
    start = 0
    while True:
        try:
            start = tokens.index(head[0], start)
        except ValueError:
            return
        if tokens[start : start + len(head)] == head:
            yield start
        start += 1


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    count = min(len(left), len(right))
    if left[:count] == right[:count]:
        return count
    return next(i for i in range(count) if left[i] != right[i])


def _lag(tokens: tuple[int, ...], traced: tuple[int, ...]) -> int | None:
    for lag in range(1, _MAX_LAG + 1):
        for shift, left, right in ((lag, tokens[lag:], traced), (-lag, tokens, traced[lag:])):
            if min(len(left), len(right)) >= SURE_RUN and left[:SURE_RUN] == right[:SURE_RUN]:
                return shift
    return None
