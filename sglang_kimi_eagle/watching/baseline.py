"""What the acceptance is compared with: a saved watch, a probe's result, or a bare number."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from sglang_kimi_eagle.ordinary_files import read_ordinary
from sglang_kimi_eagle.states import MAX_STATES, States
from sglang_kimi_eagle.watching.chain import chance_of, length_of
from sglang_kimi_eagle.watching.findings import BAD_BASELINE, WatchFailed
from sglang_kimi_eagle.watching.server import Draft, number_of, parse_json, text_of

SCHEMA = 1
"""Of the file that `save_baseline` writes; described in docs/watch.md."""
MAX_FILE = 4 << 20
"""Bytes of a baseline; a probe's result has some ten kB."""


@dataclass(frozen=True)
class Baseline:
    """An acceptance length that was measured, or is expected."""

    length: float
    """Tokens per verify step, the target's own included."""
    source: str
    """Where it is from, for people."""
    draft: Draft | None = None
    """The draft settings it holds for; None where they are not known."""
    states: States | None = None
    """The states the drafter was fed."""
    version: str = ""
    throughput: float | None = None
    """Tokens per second."""
    running: float | None = None
    """Requests that ran meanwhile."""

    def length_for(self, draft: Draft | None) -> float | None:
        """Return the length to be expected with other draft settings; None when unknown.

        A chain is converted by its chance per draft.  A tree is not: it is only compared with the
        same tree.
        """
        if self.draft is None or draft is None or self.draft == draft:
            return self.length
        if self.draft.topk == draft.topk == 1:
            chance = chance_of(self.length, self.draft.num_steps)
            return length_of(chance, draft.num_steps)
        return None


def load_baseline(path: Path) -> Baseline:
    """Read a baseline that `save_baseline` or ``probe --json`` wrote.

    Raises:
        WatchFailed: KE867.
    """
    try:
        document = parse_json(read_ordinary(path, MAX_FILE))
    except FileNotFoundError:
        raise _bad(path, "no such file") from None
    except OSError as problem:
        raise _bad(path, problem.strerror or str(problem)) from None
    except ValueError as problem:
        raise _bad(path, str(problem)[:200]) from None
    if not isinstance(document, dict):
        raise _bad(path, "no JSON object")
    found = _probed(document, path) if "candidates" in document else _saved(document, path)
    if found is None or not 1 <= found.length <= 1000:
        raise _bad(path, "it holds no acceptance length of at least 1")
    return found


def save_baseline(path: Path, content: Mapping[str, Any]) -> None:
    """Write a baseline in one step: whoever reads it meanwhile sees the old file or the new one.

    Raises:
        OSError: it cannot be written.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"schema": SCHEMA, **content}, file, indent=2)
            file.write("\n")
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _saved(document: Mapping[str, Any], path: Path) -> Baseline | None:
    length = number_of(document.get("acceptance_length"))
    if length is None:
        return None
    draft = document.get("draft")
    steps, topk, tokens = (
        number_of(draft.get(name)) if isinstance(draft, dict) else None
        for name in ("num_steps", "eagle_topk", "num_draft_tokens")
    )
    return Baseline(
        length,
        str(path),
        Draft(int(steps), int(topk or 1), int(tokens or steps + 1)) if _is_count(steps) else None,
        _states(document.get("states")),
        text_of(document.get("sglang")),
        number_of(document.get("tokens_per_second")),
        number_of(document.get("running_requests")),
    )


def _probed(document: Mapping[str, Any], path: Path) -> Baseline | None:
    """Take the best candidate of a probe (docs/probe.md); it is the first."""
    candidates = document["candidates"]
    best = candidates[0] if isinstance(candidates, list) and candidates else None
    interval = best.get("acceptance_length") if isinstance(best, dict) else None
    length = number_of(interval.get("value")) if isinstance(interval, dict) else None
    if best is None or length is None:
        return None
    steps = number_of(document.get("steps"))
    verdict = document.get("verdict")
    clear = isinstance(verdict, dict) and verdict.get("clear") is True
    return Baseline(
        length,
        f"{path}, probed",
        Draft(int(steps), 1, int(steps) + 1) if _is_count(steps) else None,
        _states(best.get("states")) if clear else None,
        text_of(document.get("sglang")),
    )


def _is_count(steps: float | None) -> TypeGuard[float]:
    return steps is not None and 1 <= steps <= 1000


def _states(value: object) -> States | None:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_STATES:
        return None
    return tuple(value) if all(type(state) is int for state in value) else None


def _bad(path: Path, why: str) -> WatchFailed:
    return WatchFailed(
        BAD_BASELINE.found(
            "The baseline cannot be used.",
            where=str(path)[:300],
            seen=why,
            mend="Name a file that --save-baseline or `probe --json` wrote, or give the acceptance "
            "length itself with --baseline-length.",
        )
    )
