"""Say which hidden states a dump holds, by comparing it with a trace of the same tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.dumps import report
from sglang_kimi_eagle.dumps.files import Budget, list_files
from sglang_kimi_eagle.dumps.findings import DumpRefused
from sglang_kimi_eagle.dumps.matching import How, Match, TracedTokens
from sglang_kimi_eagle.dumps.nearest import match_states
from sglang_kimi_eagle.dumps.samples import Sample, read_samples
from sglang_kimi_eagle.dumps.scoring import SlotRows, fit_norms, measure, not_finite_states
from sglang_kimi_eagle.dumps.target_weights import TargetWeights, read_weights
from sglang_kimi_eagle.dumps.traced import traced_states
from sglang_kimi_eagle.dumps.verdict import (
    FIT_ROWS,
    MIN_ROWS,
    Decision,
    decide,
    may_be_normed,
    with_fitted,
)
from sglang_kimi_eagle.states import State
from sglang_kimi_eagle.tracing.trace_file import Trace

MAX_ROWS = 2048
"""Rows that are compared: more do not change a median."""
MAX_FILES = 10_000
"""Files of a dump that are opened in search of traced texts."""
_MAX_MATCHES = 256
_MAX_WITHOUT_TOKENS = 8
_MAX_CLOSEST = 64


@dataclass(frozen=True)
class DumpedSlot:
    """One dumped tensor, and what it is."""

    name: str
    rows: SlotRows
    decision: Decision | None
    """None when no row of it could be compared."""


@dataclass(frozen=True)
class Identification:
    """What was compared and what came out; `report` words it."""

    dump: str
    trace: Trace
    written_by: str
    how: tuple[How, ...]
    """By what rows were found, each once."""
    used: int
    """Samples that were compared."""
    unmatched: int
    """Samples that are not in the trace."""
    slots: tuple[DumpedSlot, ...]
    findings: tuple[Diagnostic, ...]
    weights_read: bool
    """The target's weights were at hand: its final norm could be computed."""
    not_finite: Mapping[State, int]
    """Compared rows of the trace with NaN or infinity in them, for each state that has some."""
    paired: int
    """Rows of the trace that rows of the dump belong to."""


@dataclass
class Reading:
    """What came of the files of a dump."""

    matches: list[Match] = field(default_factory=list)
    refused: list[Diagnostic] = field(default_factory=list)
    unmatched: int = 0
    apart: list[Sample] = field(default_factory=list)
    """Some samples that are not in the trace."""
    files: int = 0


def identify(dump: Path, trace: Trace) -> Identification:
    """Compare the dump at ``dump``, a file or a folder of samples, with a trace.

    Raises:
        DumpRefused: it cannot be read, or not be compared with this trace.
        UnreadableTrace: a file of the trace went away.
    """
    if not traced_states(trace):
        raise DumpRefused(report.no_states(trace))
    reading = _read(dump, trace)
    if not reading.matches:
        # Samples without tokens are looked for by their states: those have to be numbers.
        by_states = any(sample.tokens is None for sample in reading.apart)
        bad = not_finite_states(trace) if by_states else {}
        raise DumpRefused(*report.nothing_matches(dump, trace, reading, bad))
    facts = trace.facts
    weights = read_weights(facts.target, facts.hidden_size, facts.num_layers)
    measured = measure(reading.matches, trace, weights)
    if max((rows.rows for rows in measured.slots.values()), default=0) < MIN_ROWS:
        raise DumpRefused(*report.too_few_rows(dump, trace, reading, measured))
    decisions = _decide(reading.matches, trace, measured.slots)
    slots = tuple(DumpedSlot(name, rows, decisions[name]) for name, rows in measured.slots.items())
    found = Identification(
        dump=str(dump),
        trace=trace,
        written_by=reading.matches[0].sample.written_by,
        how=tuple(dict.fromkeys(match.how for match in reading.matches)),
        used=len(reading.matches),
        unmatched=reading.unmatched,
        slots=slots,
        findings=(),
        weights_read=_has_norm(weights),
        not_finite=measured.not_finite,
        paired=sum(len(match.rows) for match in reading.matches),
    )
    return replace(found, findings=tuple(report.findings_of(found, reading)))


def _has_norm(weights: TargetWeights | None) -> bool:
    return weights is not None and weights.norm is not None


def _decide(
    matches: Sequence[Match], trace: Trace, measured: dict[str, SlotRows]
) -> dict[str, Decision | None]:
    layers = trace.facts.num_layers
    decisions = {name: decide(rows.scored(), layers) for name, rows in measured.items()}
    doubtful = [
        name
        for name, decision in decisions.items()
        if decision is not None and may_be_normed(decision) and measured[name].rows >= FIT_ROWS
    ]
    if doubtful:
        for name, fitted in fit_norms(matches, trace, doubtful).items():
            decisions[name] = decide(with_fitted(measured[name].scored(), fitted), layers)
    return decisions


def _read(dump: Path, trace: Trace) -> Reading:
    """Read samples until enough rows of the trace are found in them."""
    reading = Reading()
    traced = TracedTokens(trace.sequences)
    taken: set[tuple[int, int]] = set()
    tried = 0
    for found in _samples(dump, trace.facts.hidden_size, Budget()):
        if isinstance(found, DumpRefused):
            reading.refused += found.findings
            continue
        reading.files += 1
        if found.tokens is not None:
            match = traced.match(found)
        else:
            tried += 1
            match = match_states(found, trace) if tried <= _MAX_WITHOUT_TOKENS else None
        # A row of the trace counts once, however many samples begin with the same tokens.
        number = -1 if match is None else trace.sequences.index(match.sequence)
        rows = [] if match is None else [r for r in match.rows if (number, r[1]) not in taken]
        rows = rows[: MAX_ROWS - len(taken)]
        if match is None or not rows:
            reading.unmatched += match is None
            if match is None and len(reading.apart) < _MAX_CLOSEST:
                reading.apart.append(found)
            continue
        taken.update((number, row) for _, row in rows)
        reading.matches.append(Match(found, match.sequence, tuple(rows), match.how))
        if len(taken) >= MAX_ROWS or len(reading.matches) >= _MAX_MATCHES:
            break
    return reading


def _samples(dump: Path, hidden_size: int, budget: Budget) -> Iterator[Sample | DumpRefused]:
    """Yield the samples of every file, or why a file has none."""
    files = list_files(dump)
    root = dump if dump.is_dir() else None
    for path in files[:MAX_FILES]:
        try:
            yield from read_samples(path, root, hidden_size, budget)
        except DumpRefused as refusal:
            yield refusal
