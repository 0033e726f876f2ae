"""The exit status of a server whose scheduler was refused.

What only the process that loads the model can see ends that process with `REFUSED`.  SGLang's
launching process finds the pipe to it closed, and would end with a traceback of that and status 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from sglang_kimi_eagle.diagnostics import REFUSED, LaunchRefused


def pass_on() -> None:
    """Let this process end with `REFUSED` when a scheduler that it started has ended so."""
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)


class _Hook:
    def __init__(
        self,
        previous: Callable[[type[BaseException], BaseException, TracebackType | None], object],
    ) -> None:
        self._previous = previous

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if was_refused(trace):
            # The interpreter takes its status from a SystemExit of the hook.
            raise LaunchRefused([])
        self._previous(kind, error, trace)


def was_refused(trace: TracebackType | None) -> bool:
    """Tell whether an exception is that of waiting for a scheduler that was refused.

    SGLang 0.5.9 - 0.5.23, ``entrypoints/engine.py``
    ``_wait_for_scheduler_ready(scheduler_pipe_readers, scheduler_procs)``, which joins the process
    that is gone before it raises.
    """
    while trace is not None:
        started = trace.tb_frame.f_locals.get("scheduler_procs")
        if isinstance(started, list):
            return any(getattr(process, "exitcode", None) == REFUSED for process in started)
        trace = trace.tb_next
    return False
