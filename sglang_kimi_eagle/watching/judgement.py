"""From figures to a verdict: is this a wrong wiring, a weak drafter, or nothing to speak of?

Where the numbers in here come from is told in docs/watch.md.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.states import show
from sglang_kimi_eagle.watching.baseline import Baseline
from sglang_kimi_eagle.watching.chain import chance_of, length_of
from sglang_kimi_eagle.watching.evidence import Evidence, Standing
from sglang_kimi_eagle.watching.findings import (
    ACCEPTANCE_LOW,
    NOTHING_ACCEPTED,
    TOO_FEW_STEPS,
    WIRING_SUSPECT,
)
from sglang_kimi_eagle.watching.server import Draft, Reading

KEPT = 0.7
"""Part of a baseline's accepted drafts below which traffic alone is no explanation."""
KEPT_AGAIN = 0.8
"""The part at which a low acceptance counts as over."""
SUSPECT_CHANCE = 0.7
"""Chance per draft below which an ambiguous wiring is suspected."""
LOW_CHANCE = 0.45
"""Chance per draft that no healthy drafter of the family is below."""
RECOVERY = 0.05
"""What a chance has to gain to count as no longer low."""
NOTHING = 1.1
"""Acceptance length below which next to nothing is accepted."""
MIN_STEPS = 100
"""Fewer verify steps decide nothing."""
_SPREAD = 2.0
"""Standard errors of safety."""
_CLUSTERING = 2.0
"""Steps of one request resemble each other: so many count as one."""
_PLENTY = 20_000
"""Steps after which the mean itself decides."""


class Verdict(str, enum.Enum):
    """What a watch says; the values are those of the JSON output."""

    OK = "ok"
    WRONG_WIRING = "wrong_wiring"
    LOW_ACCEPTANCE = "low_acceptance"
    NOTHING_ACCEPTED = "nothing_accepted"
    NOT_ENOUGH_DATA = "not_enough_data"
    NOT_SPECULATING = "not_speculating"
    UNREACHABLE = "unreachable"


class Outcome(enum.Enum):
    """An acceptance length against the limit."""

    NOTHING = enum.auto()
    BELOW = enum.auto()
    ABOVE = enum.auto()
    OPEN = enum.auto()


@dataclass(frozen=True)
class Limit:
    """The acceptance length below which something is wrong."""

    length: float
    recovered: float
    """The length at which a low acceptance counts as over."""
    ceiling: float
    """The largest acceptance length."""
    expected: float | None
    """The baseline's length, for this server's draft settings."""

    def outcome(self, length: float, steps: float, *, low: bool = False) -> Outcome:
        """Compare a mean over ``steps`` verify steps; ``low`` when it was low before."""
        if steps < MIN_STEPS:
            return Outcome.OPEN
        if length < NOTHING - self._doubt(NOTHING, steps):
            return Outcome.NOTHING
        mark = self.recovered if low else self.length
        doubt = self._doubt(mark, steps)
        if length < mark - doubt:
            return Outcome.BELOW
        return Outcome.ABOVE if length >= mark + doubt else Outcome.OPEN

    def _doubt(self, mark: float, steps: float) -> float:
        """Return how far a mean may be from ``mark`` by chance.

        A number in [1, ceiling] with mean m varies by (m - 1)(ceiling - m) at most.
        """
        if steps >= _PLENTY:
            return 0.0
        variance = max((mark - 1) * (self.ceiling - mark), 0.0)
        return _SPREAD * math.sqrt(_CLUSTERING * variance / steps)


def limit_for(draft: Draft, evidence: Evidence, baseline: Baseline | None) -> Limit:
    """Return the limit for a server: from the baseline if it can be compared, else the built-in."""
    expected = baseline.length_for(draft) if baseline is not None else None
    if expected is not None:
        expected = min(expected, float(draft.ceiling))
        low, recovered = (1 + part * (expected - 1) for part in (KEPT, KEPT_AGAIN))
        return Limit(low, recovered, draft.ceiling, expected)
    chance = SUSPECT_CHANCE if evidence.standing is Standing.AMBIGUOUS else LOW_CHANCE
    low, recovered = (length_of(c, draft.num_steps) for c in (chance, chance + RECOVERY))
    return Limit(low, recovered, draft.ceiling, None)


@dataclass(frozen=True)
class Judgement:
    """A verdict with its findings."""

    verdict: Verdict
    likely: bool | None
    """Of a suspected wiring: likely rather than merely possible."""
    findings: tuple[Diagnostic, ...] = ()


def judge(
    outcome: Outcome,
    length: float | None,
    steps: float,
    reading: Reading,
    draft: Draft,
    evidence: Evidence,
    limit: Limit,
    baseline: Baseline | None,
) -> Judgement:
    """Turn an outcome into a verdict."""
    if outcome is Outcome.ABOVE:
        return Judgement(Verdict.OK, None)
    if length is None or outcome is Outcome.OPEN:
        return Judgement(Verdict.NOT_ENOUGH_DATA, None, (_too_few(length, steps, reading, limit),))
    seen = _seen(length, steps, draft, limit, baseline)
    if outcome is Outcome.NOTHING:
        return Judgement(Verdict.NOTHING_ACCEPTED, None, (_nothing(seen, reading, evidence),))
    likely = _wiring_is_likely(length, draft, evidence, limit, baseline)
    if likely is None:
        return Judgement(Verdict.LOW_ACCEPTANCE, None, (_low(seen, reading, evidence),))
    finding = _suspect(seen, likely, reading, evidence, baseline)
    return Judgement(Verdict.WRONG_WIRING, likely, (finding,))


def _wiring_is_likely(
    length: float, draft: Draft, evidence: Evidence, limit: Limit, baseline: Baseline | None
) -> bool | None:
    """Tell whether a low acceptance is likely (True), possibly (False) or not (None) the wiring."""
    if evidence.standing is Standing.NO_STATES:
        return None
    if _other_states(evidence, baseline):
        return True
    if evidence.standing is Standing.SETTLED:
        return None
    if evidence.standing is not Standing.AMBIGUOUS:
        return False
    if limit.expected is None:
        # Without a baseline a weak drafter looks like this too, unless it is as bad as
        # wirings that were found to be wrong.
        return chance_of(length, draft.num_steps) < LOW_CHANCE
    # The same ids on the same release were good once: only the launch can have changed.
    return baseline is None or baseline.states is None


def _other_states(evidence: Evidence, baseline: Baseline | None) -> bool:
    states = evidence.wiring.states if evidence.wiring is not None else None
    return bool(
        baseline is not None
        and baseline.states is not None
        and states is not None
        and baseline.states != states
    )


def _seen(
    length: float, steps: float, draft: Draft, limit: Limit, baseline: Baseline | None
) -> str:
    rate = draft.rate(length)
    parts = [f"acceptance length {length:.2f} of at most {draft.ceiling}"]
    if rate is not None:
        parts.append(f"{rate:.0%} of the drafts accepted")
    if limit.expected is not None and baseline is not None:
        parts.append(f"{limit.expected:.2f} expected ({baseline.source})")
    parts.append(f"limit {limit.length:.2f}")
    parts.append(f"{steps:.0f} verify steps or more")
    return ", ".join(parts)


def _too_few(length: float | None, steps: float, reading: Reading, limit: Limit) -> Diagnostic:
    seen = "no acceptance length yet" if length is None else f"acceptance length {length:.2f}"
    mend = "Send it traffic, and watch for some time with --for SECONDS."
    if reading.counts is None and not reading.metrics:
        mend += " Launched with --enable-metrics, the server counts its steps."
    return TOO_FEW_STEPS.found(
        "Too few verify steps to say whether the acceptance is low.",
        where=f"SGLang {reading.version}",
        seen=f"{seen}, limit {limit.length:.2f}, {steps:.0f} verify steps or more",
        leads_to="Nothing is said about the wiring.",
        mend=mend,
    )


def _nothing(seen: str, reading: Reading, evidence: Evidence) -> Diagnostic:
    mend = (
        f"Run `sglang-kimi-eagle doctor {_drafter(reading)} -- LAUNCH ARGUMENTS`, and look for "
        "skipped weights in the server's log"
    )
    if evidence.standing is not Standing.NO_STATES:
        mend += f"; then {_settle(reading)}"
    return NOTHING_ACCEPTED.found(
        "Next to no draft is accepted.",
        where=_where(reading),
        seen=f"{seen}; wiring {evidence.standing.value}: {evidence.text}",
        leads_to="Speculation costs time and gains nothing; the output is right all the same.",
        mend=f"{mend}.",
    )


def _low(seen: str, reading: Reading, evidence: Evidence) -> Diagnostic:
    return ACCEPTANCE_LOW.found(
        "Acceptance is low, and the wiring does not explain it: a weak drafter, or other traffic.",
        where=_where(reading),
        seen=f"{seen}; wiring {evidence.standing.value}: {evidence.text}",
        leads_to="Speculation gains less than it should.",
        mend=f"Run `sglang-kimi-eagle doctor {_drafter(reading)} -- LAUNCH ARGUMENTS`; compare "
        "with a baseline of the same traffic; "
        "`sglang-kimi-eagle probe --launch -- LAUNCH ARGUMENTS` measures the drafter itself.",
    )


def _suspect(
    seen: str, likely: bool, reading: Reading, evidence: Evidence, baseline: Baseline | None
) -> Diagnostic:
    wiring = evidence.wiring
    how = "likely" if likely else "possibly"
    parts = [seen, f"wiring {evidence.standing.value}: {evidence.text}"]
    if wiring is not None and wiring.states:
        parts.append(f"SGLang {reading.version} is to feed {show(wiring.states)}")
    if baseline is not None and baseline.states and _other_states(evidence, baseline):
        release = f" on SGLang {baseline.version}" if baseline.version else ""
        parts.append(f"the baseline was fed {show(baseline.states)}{release}")
    first = ""
    if evidence.standing is Standing.NEEDS_PLUGIN:
        first = (
            "Look for the line `sglang-kimi-eagle ...: captures ...` in the server's log: without "
            "it the plugin is not loaded, and `sglang-kimi-eagle doctor` in its environment says "
            "why. Otherwise "
        )
    elif evidence.standing is Standing.UNKNOWN:
        first = "Name the drafter's folder with --drafter. "
    text = _settle(reading)
    return WIRING_SUSPECT.found(
        f"Acceptance is low, {how} because the drafter is fed states it was not trained on.",
        where=_where(reading),
        seen="; ".join(parts),
        leads_to="Most drafts are thrown away; the output is right all the same.",
        mend=f"{first}{text if first.endswith('Otherwise ') else text[0].upper() + text[1:]}.",
    )


def _settle(reading: Reading) -> str:
    drafter = _drafter(reading)
    return (
        f"run `sglang-kimi-eagle wiring {drafter}` for the readings of its ids, and "
        "`sglang-kimi-eagle probe --launch -- LAUNCH ARGUMENTS` to measure which is right"
    )


def _drafter(reading: Reading) -> str:
    return reading.drafter or "DRAFTER"


def _where(reading: Reading) -> str:
    return f"SGLang {reading.version}, drafter {reading.drafter or '(none named)'}"
