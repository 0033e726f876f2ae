"""An assessment as JSON, as Prometheus text, and as a baseline file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.states import show
from sglang_kimi_eagle.watching.baseline import Baseline
from sglang_kimi_eagle.watching.chain import chance_of
from sglang_kimi_eagle.watching.exposition import Metric, render
from sglang_kimi_eagle.watching.judgement import Verdict
from sglang_kimi_eagle.watching.server import Draft
from sglang_kimi_eagle.watching.watcher import Assessment

SCHEMA = 1
"""Of the JSON output; described in docs/watch.md."""
_PREFIX = "sglang_kimi_eagle_"


def as_dict(found: Assessment, url: str, findings: Iterable[Diagnostic], status: int) -> Any:
    """Return an assessment in the shape of the JSON output."""
    reading, limit = found.reading, found.limit
    return {
        "schema": SCHEMA,
        "url": url,
        "status": status,
        "verdict": found.judgement.verdict.value,
        "likely": found.judgement.likely,
        "server": {
            "sglang": reading.version,
            "algorithm": reading.algorithm,
            "target": reading.target,
            "drafter": reading.drafter,
            "draft": _draft(found.draft),
            "ranks": len(reading.lengths),
            "metrics": reading.metrics,
        },
        "wiring": {
            "standing": found.evidence.standing.value,
            "states": _states(found),
            "explanation": found.evidence.text,
        },
        "acceptance": {
            "length": _rounded(found.length),
            "source": found.source,
            "verify_steps": int(found.steps),
            "rate": _rounded(found.rate),
            "chance_per_draft": _rounded(_chance(found)),
            "limit": _rounded(limit.length),
            "lifetime_length": _rounded(reading.length),
            "window_length": _rounded(found.window_length),
            "by_rank": [_rounded(length) for length in reading.lengths],
        },
        "throughput": {
            "tokens_per_second": _rounded(found.throughput),
            "measured": found.measured,
            "running_requests": _rounded(reading.running),
        },
        "baseline": _baseline(found),
        "findings": [finding.as_dict() for finding in findings],
    }


def failure_as_dict(verdict: Verdict, url: str, finding: Diagnostic, status: int) -> Any:
    """Return why there is no assessment, with the same keys at the top."""
    return {
        "schema": SCHEMA,
        "url": url,
        "status": status,
        "verdict": verdict.value,
        "likely": None,
        "server": None,
        "wiring": None,
        "acceptance": None,
        "throughput": None,
        "baseline": None,
        "findings": [finding.as_dict()],
    }


def baseline_of(found: Assessment) -> Mapping[str, Any]:
    """Return what a baseline file keeps of an assessment."""
    return {
        "acceptance_length": _rounded(found.length),
        "verify_steps": int(found.steps),
        "tokens_per_second": _rounded(found.throughput),
        "running_requests": _rounded(found.reading.running),
        "sglang": found.reading.version,
        "drafter": found.reading.drafter,
        "draft": _draft(found.draft),
        "states": _states(found),
        "wiring": found.evidence.standing.value,
    }


def as_prometheus(found: Assessment | None, verdict: Verdict, url: str) -> str:
    """Return the figures in the Prometheus text format; what is not known is left out."""
    server = {"server": url}
    metrics = [
        _gauge("up", "Whether the server could be read.", server, float(found is not None)),
        Metric(
            f"{_PREFIX}verdict",
            "The verdict: 1 for the one that holds.",
            [({**server, "verdict": v.value}, float(v is verdict)) for v in Verdict],
        ),
    ]
    if found is not None:
        reading, limit = found.reading, found.limit
        info = {
            "version": reading.version,
            "drafter": reading.drafter,
            "wiring": found.evidence.standing.value,
            "states": show(_states(found) or ()),
        }
        metrics += [
            _gauge("server_info", "What is served.", {**server, **info}, 1.0),
            _gauge(
                "acceptance_length",
                "Tokens per verify step, the target's own included, as judged.",
                {**server, "over": found.source},
                found.length,
            ),
            _gauge(
                "acceptance_rate",
                "Accepted drafts over drafted tokens.",
                {**server, "over": found.source},
                found.rate,
            ),
            _gauge("verify_steps", "Verify steps behind it, at least.", server, found.steps),
            _gauge(
                "acceptance_length_limit",
                "Acceptance length below which something is wrong.",
                server,
                limit.length,
            ),
            _gauge("acceptance_length_expected", "By the baseline.", server, limit.expected),
            Metric(
                f"{_PREFIX}rank_acceptance_length",
                "Tokens per verify step of one data-parallel rank since its start.",
                [
                    ({**server, "dp_rank": str(rank)}, length)
                    for rank, length in enumerate(reading.lengths)
                    if length is not None
                ],
            ),
            _gauge("tokens_per_second", "Generated tokens per second.", server, found.throughput),
            _gauge("running_requests", "Requests that run.", server, reading.running),
        ]
    return render(metrics)


def _gauge(name: str, help: str, labels: Mapping[str, str], value: float | None) -> Metric:
    return Metric(f"{_PREFIX}{name}", help, [] if value is None else [(labels, value)])


def _chance(found: Assessment) -> float | None:
    """Return the chance per draft of a chain; a tree has no such single figure."""
    if found.length is None or found.draft.topk != 1:
        return None
    return chance_of(found.length, found.draft.num_steps)


def _states(found: Assessment) -> list[int] | None:
    wiring = found.evidence.wiring
    return list(wiring.states) if wiring is not None and wiring.states else None


def _draft(draft: Draft) -> dict[str, int]:
    return {
        "num_steps": draft.num_steps,
        "eagle_topk": draft.topk,
        "num_draft_tokens": draft.num_draft_tokens,
    }


def _baseline(found: Assessment) -> dict[str, Any] | None:
    baseline: Baseline | None = found.baseline
    if baseline is None:
        return None
    expected = found.limit.expected
    known = found.length is not None and expected is not None
    return {
        "source": baseline.source,
        "acceptance_length": _rounded(baseline.length),
        "expected_here": _rounded(expected),
        "length_ratio": _rounded(found.length / expected if known else None),  # type: ignore[operator]
        "tokens_per_second": _rounded(baseline.throughput),
        "tokens_per_second_ratio": _rounded(found.throughput_ratio),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
