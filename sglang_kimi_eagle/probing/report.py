"""What a probe found: the verdict, and its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang_kimi_eagle.diagnostics import REFUSED, Diagnostic, Severity, errors
from sglang_kimi_eagle.probing.acceptance import CONFIDENCE, DECISION, Difference, Scores
from sglang_kimi_eagle.probing.candidates import Candidate
from sglang_kimi_eagle.probing.search import Searched
from sglang_kimi_eagle.states import States, show

SCHEMA = 1


@dataclass(frozen=True)
class Scored:
    """A candidate with its numbers."""

    candidate: Candidate
    scores: Scores
    reachable: bool
    """The traced release can capture these states in this order."""

    @property
    def states(self) -> States:
        """The candidate's states."""
        return self.candidate.states

    @property
    def length(self) -> float:
        """The expected acceptance length."""
        return self.scores.acceptance_length.value

    def as_dict(self) -> dict[str, Any]:
        """Return it in the shape of the JSON output."""
        return {
            "states": list(self.states),
            "names": list(self.candidate.names),
            "reachable": self.reachable,
            "acceptance_length": self.scores.acceptance_length.as_dict(),
            "first_step": self.scores.first_step.as_dict(),
            "teacher_forced": [interval.as_dict() for interval in self.scores.teacher_forced],
            "self_fed": [interval.as_dict() for interval in self.scores.self_fed],
        }


@dataclass(frozen=True)
class Report:
    """The whole answer."""

    drafter: str
    trace: str
    target: str
    sglang: str
    running: States
    steps: int
    sequences: int
    rows: int
    generated: bool
    measured: float | None
    """Acceptance length of the traced server itself on these tokens, with its own settings."""
    embedding: str
    """Where the embedding was read: ``target`` or ``drafter``."""
    scored: tuple[Scored, ...]
    """The candidates, the best first."""
    missing: tuple[tuple[Candidate, States], ...]
    """Candidates that were not scored, and the states that the trace lacks."""
    difference: Difference | None
    """The best less the runner-up; None with one candidate alone."""
    clear: bool
    searched: Searched | None
    findings: tuple[Diagnostic, ...]
    written: str | None = None

    @property
    def best(self) -> Scored:
        """The candidate with the longest acceptance."""
        return self.scored[0]

    @property
    def status(self) -> int:
        """The exit status: 0 when the running wiring is clearly the best, 3 with errors, else 1."""
        if errors(self.findings):
            return REFUSED
        return 0 if self.clear and self.best.states == self.running else 1

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        if not self.clear:
            return "Cannot tell." + self._more_needed
        length = f"{self.best.length:.2f}"
        if self.best.states == self.running:
            return (
                f"{show(self.running)}: the running wiring is the best, expected acceptance "
                f"length {length}."
            )
        fed = next((one for one in self.scored if one.states == self.running), None)
        now = f", {fed.length:.2f} with the running {show(self.running)}" if fed else ""
        return f"{show(self.best.states)}: expected acceptance length {length}{now}."

    @property
    def _more_needed(self) -> str:
        if self.difference is None:
            return " Only one candidate could be scored."
        if self.difference.settled:
            return ""
        needed = self.difference.rows_needed
        if needed is None or needed > 1000 * self.rows:
            return " The best two accept the same, as far as any sample would show."
        first, second = self.scored[:2]
        return (
            f" {show(first.states)} and {show(second.states)} differ by "
            f"{self.difference.interval.value:.3f}; about {needed} tokens would settle that, "
            f"{self.rows} were scored."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report in the shape of the JSON output (docs/probe.md)."""
        return {
            "schema": SCHEMA,
            "drafter": self.drafter,
            "trace": self.trace,
            "target": self.target,
            "sglang": self.sglang,
            "running": list(self.running),
            "steps": self.steps,
            "sample": {
                "sequences": self.sequences,
                "rows": self.rows,
                "generated": self.generated,
                "measured_acceptance_length": self.measured,
                "embedding": self.embedding,
            },
            "confidence": {"intervals": CONFIDENCE, "decision": DECISION},
            "candidates": [scored.as_dict() for scored in self.scored],
            "not_scored": [
                {
                    "states": list(candidate.states),
                    "names": list(candidate.names),
                    "missing": list(states),
                }
                for candidate, states in self.missing
            ],
            "comparison": self._comparison(),
            "search": self.searched.as_dict() if self.searched is not None else None,
            "verdict": {
                "clear": self.clear,
                "states": list(self.best.states) if self.clear else None,
                "running_is_best": self.best.states == self.running if self.clear else None,
                "text": self.verdict,
            },
            "written": self.written,
            "findings": [finding.as_dict() for finding in self.findings],
            "status": self.status,
        }

    def _comparison(self) -> dict[str, Any] | None:
        if self.difference is None:
            return None
        return {
            "best": list(self.scored[0].states),
            "runner_up": list(self.scored[1].states),
            "difference": self.difference.interval.as_dict(),
            "settled": self.difference.settled,
            "rows_needed": self.difference.rows_needed,
        }


def counted(number: int, what: str) -> str:
    """Format a number of things: ``1 row``, ``2 rows``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def worst(findings: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return findings, errors before warnings before notes."""
    order = [Severity.ERROR, Severity.WARNING, Severity.NOTE]
    return sorted(findings, key=lambda finding: order.index(finding.severity))
