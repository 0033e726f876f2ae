"""Profiles the scheduler's decode steps with cProfile.

``managers/scheduler.py``, ``Scheduler.run_batch`` (0.5.9 to 0.5.23).  After 20 decode batches the
calls of every function go to the JSON file CPU_ENGINE_PROFILE: [[file, function, calls], ...].
"""

import cProfile
import json
import os
import pstats
from typing import Any

from redirections.after_import import after_import

_BATCHES = 20


def register() -> None:
    after_import("sglang.srt.managers.scheduler", _profile_run_batch)


def _profile_run_batch(module: Any) -> None:
    original = module.Scheduler.run_batch
    profile = cProfile.Profile()
    left = [_BATCHES]

    def run_batch(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not batch.forward_mode.is_decode() or left[0] == 0:
            return original(scheduler, batch, *args, **kwargs)
        profile.enable()
        try:
            return original(scheduler, batch, *args, **kwargs)
        finally:
            profile.disable()
            left[0] -= 1
            if left[0] == 0:
                _write(profile)

    module.Scheduler.run_batch = run_batch


def _write(profile: cProfile.Profile) -> None:
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    rows = [[file, name, calls[0]] for (file, _line, name), calls in stats.items()]
    with open(os.environ["CPU_ENGINE_PROFILE"], "w") as note:
        json.dump(rows, note)
