"""Notes what of a trace is in the scheduler's process, after every batch.

``model_executor/model_runner.py``, ``ModelRunner.__init__``, and ``managers/scheduler.py``,
``Scheduler.run_batch`` (0.5.9 to 0.5.23).  The JSON file CPU_ENGINE_TRACE_NOTE gets the modules of
tracing that are imported, and the models whose ``forward`` is not their class's or that have hooks.
"""

import json
import os
import sys
from functools import wraps
from pathlib import Path
from typing import Any

from redirections.after_import import after_import

_runners: list[Any] = []


def register() -> None:
    after_import("sglang.srt.model_executor.model_runner", _keep_runners)
    after_import("sglang.srt.managers.scheduler", _note_after_batches)


def _keep_runners(module: Any) -> None:
    original = module.ModelRunner.__init__

    @wraps(original)
    def keep(runner: Any, *args: Any, **kwargs: Any) -> None:
        original(runner, *args, **kwargs)
        _runners.append(runner)

    module.ModelRunner.__init__ = keep


def _note_after_batches(module: Any) -> None:
    original = module.Scheduler.run_batch

    def run_batch(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scheduler, *args, **kwargs)
        wrapped = [
            type(part).__name__
            for runner in _runners
            for part in runner.model.modules()
            if "forward" in vars(part) or part._forward_pre_hooks or part._forward_hooks
        ]
        loaded = [name for name in sys.modules if name.startswith("sglang_kimi_eagle.tracing")]
        note = Path(os.environ["CPU_ENGINE_TRACE_NOTE"])
        unfinished = note.with_suffix(".partial")
        unfinished.write_text(json.dumps({"loaded": sorted(loaded), "wrapped": wrapped}))
        unfinished.rename(note)
        return result

    module.Scheduler.run_batch = run_batch
