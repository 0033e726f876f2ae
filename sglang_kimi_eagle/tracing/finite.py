"""Traced states that are numbers: what NaN or infinity are compared with says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.measuring import all_finite
from sglang_kimi_eagle.states import State, show
from sglang_kimi_eagle.tracing.trace_file import Sequence, Trace, UnreadableTrace

if TYPE_CHECKING:
    import torch

TRACE_NOT_FINITE = rule(
    "KE807",
    "trace-not-finite",
    Severity.ERROR,
    "Traced states hold NaN or infinity. The target computed them so: its weights, a quantisation "
    "or a kernel is broken, or its dtype overflows. Nothing can be compared with such states, and "
    "a drafter that is fed them drafts nothing.",
    example="A trace of a server that ran a bfloat16 target with --dtype float16",
)
_MEND = (
    "See that the traced server answers sensibly, then record again: the target's weights, "
    "--dtype, --quantization and the attention backend are where to look."
)


def finite_state(trace: Trace, sequence: Sequence, k: State) -> torch.Tensor:
    """Read h[k] of a sequence as `Trace.state` does.

    Raises:
        UnreadableTrace: the file went away, or the state is not finite.
    """
    values = trace.state(sequence, k)
    if all_finite(values):
        return values
    bad = (~values.isfinite().all(dim=-1)).nonzero().flatten().tolist()
    raise UnreadableTrace(
        TRACE_NOT_FINITE.found(
            "A traced state is not finite.",
            where=_file_of(sequence, bad[0]),
            seen=f"{show((k,))} has NaN or infinity in {len(bad)} of {len(values)} rows",
            leads_to="Nothing is compared with it.",
            mend=_MEND,
        )
    )


def not_finite(trace: Trace, rows: Mapping[State, int], total: int) -> Diagnostic:
    """Build the finding of states that are not finite in so many of ``total`` rows."""
    worst = max(rows.values())
    return TRACE_NOT_FINITE.found(
        "Traced states are not finite.",
        where=str(trace.folder),
        seen=f"{show(tuple(sorted(rows)))}: NaN or infinity in up to {worst} of {total} rows",
        leads_to="Those rows are not compared; the dump is not to blame for them.",
        mend=_MEND,
    )


def _file_of(sequence: Sequence, row: int) -> str:
    for path, piece in sequence.pieces:
        if row < piece.rows:
            return str(path)
        row -= piece.rows
    raise IndexError(row)
