"""Follow one server over many readings: windows, restarts, and a verdict that does not flap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.watching.baseline import Baseline
from sglang_kimi_eagle.watching.evidence import Evidence
from sglang_kimi_eagle.watching.findings import (
    FIGURES_MISSING,
    NOT_SPECULATING,
    OTHER_BASELINE,
    RESTARTED,
    SLOWER_THAN_PLAIN,
    WatchFailed,
)
from sglang_kimi_eagle.watching.judgement import (
    Judgement,
    Limit,
    Outcome,
    judge,
    limit_for,
)
from sglang_kimi_eagle.watching.server import Counts, Draft, Reading

WINDOW = 400
"""Verify steps of one window: as many as tell most wrong wirings from right ones."""
CONSECUTIVE = 2
"""Windows in a row that it takes to change a verdict."""
_SAME_LOAD = 1.25
"""Numbers of running requests that differ by no more than this factor are the same load."""


@dataclass(frozen=True)
class Assessment:
    """All that is said about a server after one more reading."""

    reading: Reading
    draft: Draft
    evidence: Evidence
    limit: Limit
    judgement: Judgement
    length: float | None
    """The acceptance length that was judged."""
    steps: float
    """Verify steps behind it, or a lower bound of them."""
    source: str
    """``window`` or ``lifetime``: what `length` is a mean over."""
    window_length: float | None
    """Of the window that is being filled, or of the last one that was."""
    throughput: float | None
    """Tokens per second, measured between readings or as the server says."""
    measured: bool
    """`throughput` was measured."""
    baseline: Baseline | None
    throughput_ratio: float | None
    """Against the baseline, where both were measured under the same load."""
    findings: tuple[Diagnostic, ...]

    @property
    def rate(self) -> float | None:
        """Accepted drafts over drafted tokens."""
        return self.draft.rate(self.length) if self.length is not None else None


@dataclass
class Watcher:
    """Takes readings, gives assessments."""

    examine: Callable[[Reading], Evidence]
    baseline: Baseline | None = None
    plain_rate: float | None = None
    """Tokens per second of the same server without speculation."""
    _last: Reading | None = None
    _evidence: Evidence | None = None
    _outcome: Outcome = Outcome.OPEN
    _judged: tuple[float | None, float, str] = (None, 0.0, "lifetime")
    _contrary: int = 0
    _window: Counts = field(default_factory=lambda: Counts(0.0, 0.0))
    _closed: Counts | None = None
    _least: float = 0.0

    def feed(self, reading: Reading) -> Assessment:
        """Take one more reading.

        Raises:
            WatchFailed: KE866, the server does not speculate.
        """
        draft = reading.draft
        if not reading.algorithm or draft is None:
            raise WatchFailed(_not_speculating(reading))
        notes: list[Diagnostic] = []
        before = self._last
        if before is not None and _restarted(before, reading):
            notes.append(_restart(before, reading))
            self._forget()
            before = None
        if self._evidence is None:
            self._evidence = self.examine(reading)
        self._last = reading
        limit = limit_for(draft, self._evidence, self.baseline)
        if self.baseline is not None and limit.expected is None:
            notes.append(_other_baseline(self.baseline, draft))
        progress = _progress(before, reading) if before is not None else None
        self._follow(reading, limit, progress)
        length, steps, source = self._judged
        judgement = judge(
            self._outcome, length, steps, reading, draft, self._evidence, limit, self.baseline
        )
        throughput, measured = _throughput(before, reading, progress)
        notes += _missing(reading)
        slower = self._slower(throughput, reading)
        window = self._window if self._window.steps >= 1 else self._closed
        return Assessment(
            reading=reading,
            draft=draft,
            evidence=self._evidence,
            limit=limit,
            judgement=judgement,
            length=length,
            steps=steps,
            source=source,
            window_length=window.tokens / window.steps if window else reading.recent_length,
            throughput=throughput,
            measured=measured,
            baseline=self.baseline,
            throughput_ratio=self._ratio(throughput, reading),
            findings=(*judgement.findings, *slower, *notes),
        )

    def _follow(self, reading: Reading, limit: Limit, progress: Counts | None) -> None:
        """Bring the outcome up to date."""
        if progress is not None:
            self._window = Counts(
                self._window.steps + progress.steps, self._window.tokens + progress.tokens
            )
        windows = reading.counts is not None or reading.decode_tokens is not None
        low = self._outcome in (Outcome.BELOW, Outcome.NOTHING)
        if windows and self._outcome is not Outcome.OPEN:
            if self._window.steps < WINDOW:
                return
            self._closed, self._window = self._window, Counts(0.0, 0.0)
            steps, length = self._closed.steps, self._closed.tokens / self._closed.steps
            self._turn(limit.outcome(length, steps, low=low), length, steps)
            return
        # The start, and releases that only give an average since then.
        average = reading.length
        self._least = max(self._least, reading.steps_at_least)
        if average is None:
            self._judged = (None, 0.0, "lifetime")
            return
        self._outcome = limit.outcome(average, self._least, low=low)
        self._judged = (average, self._least, "lifetime")

    def _turn(self, outcome: Outcome, length: float, steps: float) -> None:
        """Let windows in a row change the outcome, and the figures beside it."""
        if outcome is Outcome.OPEN:
            self._contrary = 0
        elif outcome is self._outcome:
            self._contrary = 0
            self._judged = (length, steps, "window")
        else:
            self._contrary += 1
            if self._contrary >= CONSECUTIVE:
                self._contrary = 0
                self._outcome = outcome
                self._judged = (length, steps, "window")

    def _forget(self) -> None:
        self._evidence = None
        self._outcome, self._contrary = Outcome.OPEN, 0
        self._judged = (None, 0.0, "lifetime")
        self._window, self._closed, self._least = Counts(0.0, 0.0), None, 0.0

    def _slower(self, throughput: float | None, reading: Reading) -> tuple[Diagnostic, ...]:
        plain = self.plain_rate
        if plain is None or not throughput or not reading.running or throughput >= plain:
            return ()
        finding = SLOWER_THAN_PLAIN.found(
            "Speculation makes the server slower.",
            where=f"SGLang {reading.version}, drafter {reading.drafter}",
            seen=f"{throughput:.1f} tokens per second with {reading.running:.0f} requests, "
            f"{plain:.1f} without speculation",
            leads_to="The same answers, later.",
            mend="If the load is that of the figure without speculation: mend the acceptance, or "
            "draft fewer tokens.",
        )
        return (finding,)

    def _ratio(self, throughput: float | None, reading: Reading) -> float | None:
        base = self.baseline
        if base is None or not base.throughput or not base.running:
            return None
        if not throughput or not reading.running:
            return None
        load = reading.running / base.running
        return throughput / base.throughput if 1 / _SAME_LOAD <= load <= _SAME_LOAD else None


def _progress(before: Reading, now: Reading) -> Counts | None:
    """Return what was verified between two readings; None when the server does not tell."""
    if before.counts is not None and now.counts is not None:
        steps = now.counts.steps - before.counts.steps
        tokens = now.counts.tokens - before.counts.tokens
    elif before.decode_tokens is not None and now.decode_tokens is not None and now.recent_length:
        tokens = now.decode_tokens - before.decode_tokens
        steps = tokens / now.recent_length
    else:
        return None
    # A reading is not one moment: without a whole step there is nothing to divide by.
    return Counts(steps, max(tokens, steps)) if steps >= 1 else None


def _throughput(
    before: Reading | None, now: Reading, progress: Counts | None
) -> tuple[float | None, bool]:
    if before is not None and progress is not None and now.at > before.at:
        return progress.tokens / (now.at - before.at), True
    if before is not None and before.counts == now.counts and now.counts is not None:
        return 0.0, True
    return now.throughput, False


def _restarted(before: Reading, now: Reading) -> bool:
    launch = ("version", "algorithm", "drafter", "target")
    if any(getattr(before, name) != getattr(now, name) for name in launch):
        return True
    if before.length is not None and now.length is None:
        return True
    counters = (
        (before.counts and before.counts.steps, now.counts and now.counts.steps),
        (before.decode_tokens, now.decode_tokens),
    )
    return any((old or 0) > (new or 0) for old, new in counters if old)


def _restart(before: Reading, now: Reading) -> Diagnostic:
    changed = "" if before.version == now.version else f", then {now.version}"
    return RESTARTED.found(
        "The server was started again.",
        where=f"SGLang {before.version}{changed}",
        leads_to="What was seen before is forgotten.",
    )


def _missing(reading: Reading) -> list[Diagnostic]:
    absent = []
    if reading.counts is None and reading.decode_tokens is None:
        absent.append("counts of verify steps, so that only the average since the start is known")
    if reading.running is None:
        absent.append("running requests")
    if reading.throughput is None:
        absent.append("tokens per second")
    if not absent:
        return []
    return [
        FIGURES_MISSING.found(
            "The server does not publish everything.",
            where=f"SGLang {reading.version}",
            seen=f"missing: {'; '.join(absent)}",
            leads_to="A change shows late.",
            mend="" if reading.metrics else "Launch it with --enable-metrics.",
        )
    ]


def _other_baseline(baseline: Baseline, draft: Draft) -> Diagnostic:
    return OTHER_BASELINE.found(
        "The baseline holds for other draft settings.",
        where=baseline.source,
        seen=f"{_shape(baseline.draft)} there, {_shape(draft)} here",
        leads_to="The built-in limit is used instead.",
        mend="Save a baseline with these settings.",
    )


def _shape(draft: Draft | None) -> str:
    if draft is None:
        return "unknown"
    return f"{draft.num_steps} steps, topk {draft.topk}, {draft.num_draft_tokens} tokens"


def _not_speculating(reading: Reading) -> Diagnostic:
    if reading.algorithm:
        return NOT_SPECULATING.found(
            "The server does not say how much it drafts.",
            where=f"SGLang {reading.version}, model {reading.target}",
            seen=f"speculative_algorithm {reading.algorithm}, but no usable "
            "speculative_num_steps or speculative_num_draft_tokens",
            leads_to="Acceptance cannot be told from anything: there is nothing to watch.",
            mend="Launch it with --speculative-num-steps and --speculative-num-draft-tokens.",
        )
    return NOT_SPECULATING.found(
        "The server runs without speculative decoding.",
        where=f"SGLang {reading.version}, model {reading.target}",
        seen=f"speculative_algorithm {reading.algorithm or 'none'}",
        leads_to="There is nothing to watch.",
        mend="Launch it with --speculative-algorithm EAGLE3 and a drafter.",
    )
