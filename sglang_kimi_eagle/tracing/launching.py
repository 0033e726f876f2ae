"""A launch with `SGLANG_KIMI_EAGLE_TRACE` set, before anything is loaded."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.states import show
from sglang_kimi_eagle.tracing.request import VARIABLE, TraceRequest

FOLDER_UNWRITABLE = rule(
    "KE802",
    "trace-folder-unwritable",
    Severity.ERROR,
    "The folder that `SGLANG_KIMI_EAGLE_TRACE` names cannot be made or written to, so that nothing "
    "would be recorded.",
    example="SGLANG_KIMI_EAGLE_TRACE=/proc/trace",
)
NO_SUCH_STATE = rule(
    "KE803",
    "traced-state-missing",
    Severity.ERROR,
    "A state to be traced does not exist: a target of n layers has h[0] (the embedding) to h[n] "
    "(the last layer's output before the final norm).",
    example="SGLANG_KIMI_EAGLE_TRACE='trace?states=2,30,62' with the 61 layers of Kimi-K2.5",
)
PREFILL_GRAPH = rule(
    "KE804",
    "traced-prefill-graph",
    Severity.ERROR,
    "The launch asks for prefill from CUDA graphs. A replayed graph runs no Python, so that "
    "nothing would be recorded. Graphs of prefill that SGLang uses by default are switched off "
    "for a traced launch; those asked for are not.",
    example="SGLANG_KIMI_EAGLE_TRACE=trace with --cuda-graph-backend-prefill breakable",
)
NOTHING_TRACED = rule(
    "KE805",
    "trace-unused",
    Severity.WARNING,
    "`SGLANG_KIMI_EAGLE_TRACE` is set, but this launch has no states to trace: it is not EAGLE-3 "
    "with a Kimi-K2.5 target, or its drafter takes none.",
    example="SGLANG_KIMI_EAGLE_TRACE=trace without --speculative-algorithm EAGLE3",
)
TRACE_STOPPED = rule(
    "KE806",
    "trace-stopped",
    Severity.WARNING,
    "Tracing has stopped, or passed over a prefill, while the server goes on serving.",
    example="A folder on a disk that is full.",
)


def check_request(request: TraceRequest, num_layers: int) -> Iterator[Diagnostic]:
    """Find what is wrong with a request for a target of ``num_layers``; make its folder."""
    missing = [state for state in request.states or () if state > num_layers]
    if missing:
        yield NO_SUCH_STATE.found(
            f"The target has no {show(missing)}.",
            where=f"environment, {VARIABLE}",
            seen=f"states up to h[{num_layers}]",
            mend="Name states that it has, or states=all.",
        )
    try:
        request.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=request.folder):
            pass
    except OSError as error:
        yield FOLDER_UNWRITABLE.found(
            "The folder for the trace cannot be written to.",
            where=str(request.folder),
            seen=error.strerror or str(error),
            mend=f"Name another folder in {VARIABLE}.",
        )


def prefill_eagerly(server_args: Any) -> Iterator[Diagnostic]:
    """Switch off graphs of prefill in SGLang's ``ServerArgs``.

    The first call must come before they are resolved; another one changes nothing.

    ``srt/server_args.py``: 0.5.9 has them on request only, 0.5.10 - 0.5.13.post1 unless
    ``disable_piecewise_cuda_graph``, later releases unless ``disable_prefill_cuda_graph``.  A
    backend that the user names wins there over both, and is a finding here.
    """
    config = getattr(server_args, "cuda_graph_config", None)
    prefill = config.get("prefill") if isinstance(config, dict) else None
    asked = {
        "--cuda-graph-config": prefill.get("backend") if isinstance(prefill, dict) else None,
        "--cuda-graph-backend-prefill": getattr(server_args, "cuda_graph_backend_prefill", None),
        "--enforce-piecewise-cuda-graph": getattr(
            server_args, "enforce_piecewise_cuda_graph", None
        ),
        "--enable-piecewise-cuda-graph": getattr(server_args, "enable_piecewise_cuda_graph", None),
    }
    for flag, value in asked.items():
        if value and value != "disabled":
            yield graph_finding(f"{flag} ({value})", f"Leave out {flag} while tracing.")
            return
    for name in ("disable_prefill_cuda_graph", "disable_piecewise_cuda_graph"):
        if getattr(server_args, name, None) is False:
            setattr(server_args, name, True)
            return


def graph_finding(seen: str, mend: str) -> Diagnostic:
    """Return the finding of a launch whose prefill runs from graphs."""
    return PREFILL_GRAPH.found(
        "Prefill would run from CUDA graphs, where nothing can be recorded.",
        where="launch arguments",
        seen=seen,
        leads_to="The trace would stay empty.",
        mend=mend,
    )


def nothing_traced(seen: str) -> Diagnostic:
    """Return the warning about a launch that has nothing to trace."""
    return NOTHING_TRACED.found(
        "This launch has no states to trace.",
        where=f"environment, {VARIABLE}={os.environ.get(VARIABLE, '')}",
        seen=seen,
        leads_to="Nothing is recorded.",
        mend=f"Unset {VARIABLE}, or launch a Kimi-K2.5 with an EAGLE-3 drafter.",
    )
