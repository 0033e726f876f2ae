"""A probe's report with made-up numbers, for what only shows it."""

from __future__ import annotations

from typing import Any

from sglang_kimi_eagle.probing.acceptance import Difference, Interval, Scores
from sglang_kimi_eagle.probing.candidates import Candidate
from sglang_kimi_eagle.probing.report import Report, Scored


def scored(states: tuple[int, ...], length: float, name: str = "ids") -> Scored:
    share = Interval(length / 4, length / 4 - 0.02, length / 4 + 0.02)
    scores = Scores(Interval(length, length - 0.1, length + 0.1), (share,) * 3, (share,) * 3)
    return Scored(Candidate(states, (name,)), scores, True)


def report(**changes: Any) -> Report:
    known: dict[str, Any] = {
        "drafter": "drafter",
        "trace": "trace",
        "target": "kimi",
        "sglang": "0.5.23",
        "running": (2, 30, 58),
        "steps": 3,
        "sequences": 24,
        "rows": 2000,
        "generated": True,
        "measured": 2.08,
        "embedding": "target",
        "scored": (scored((3, 31, 59), 3.18), scored((2, 30, 58), 2.08, "running")),
        "missing": (),
        "difference": Difference(Interval(1.1, 0.9, 1.3), 50),
        "clear": True,
        "searched": None,
        "findings": (),
    }
    return Report(**known | changes)
