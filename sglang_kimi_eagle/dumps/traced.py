"""The states of a trace: those that were asked for, and those that the draft model was fed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_kimi_eagle.states import MAX_STATES, State, States
from sglang_kimi_eagle.tracing.trace_file import Sequence, Trace

if TYPE_CHECKING:
    import torch


def traced_states(trace: Trace) -> States:
    """Return every state that `read_state` can read, ascending."""
    fed = trace.facts.wired if trace.has_fed and trace.sequences else ()
    return tuple(sorted({*trace.states, *fed}))


def untraced_states(trace: Trace) -> States:
    """Return the target's states that were not traced; the first few of very many."""
    known = set(traced_states(trace))
    most = min(trace.facts.num_layers, len(known) + MAX_STATES)
    return tuple(k for k in range(most + 1) if k not in known)


def read_state(trace: Trace, sequence: Sequence, k: State) -> torch.Tensor:
    """Read h[k] of a sequence: [len(sequence), hidden size] in the target's dtype.

    Raises:
        UnreadableTrace: a file went away.
    """
    if k in trace.states:
        return trace.state(sequence, k)
    width, place = trace.facts.hidden_size, trace.facts.wired.index(k)
    return trace.fed(sequence)[:, place * width : (place + 1) * width]
