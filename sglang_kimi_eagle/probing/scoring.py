"""Run the drafter over traced states and compare its chains with the tokens that follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_kimi_eagle.probing.loading import Loaded
from sglang_kimi_eagle.probing.samples import Sample
from sglang_kimi_eagle.states import States
from sglang_kimi_eagle.tracing.finite import finite_state
from sglang_kimi_eagle.tracing.trace_file import Trace

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass(frozen=True)
class Hits:
    """What the chains of one sample got right."""

    right: np.ndarray
    """bool [rows, steps]: the token that step s of the chain of a row predicts, fed the true
    tokens before it, is the one that follows."""
    known: np.ndarray
    """bool [rows, steps]: that token is within the sequence."""


def score(
    loaded: Loaded,
    trace: Trace,
    samples: Sequence[Sample],
    states: States,
    steps: int,
    done: Callable[[Sample], None] = lambda _sample: None,
) -> list[Hits]:
    """Score one wiring on every sample, one sample's states in memory at a time.

    Raises:
        UnreadableTrace: a file of the trace went away, or a state is not finite.
    """
    import torch

    found = []
    with torch.inference_mode():
        for sample in samples:
            # The last token has a state, and nothing after it to be embedded.
            fed = [finite_state(trace, sample.sequence, k)[:-1] for k in states]
            hidden = loaded.reference.enter(fed)
            found.append(compare(loaded, sample, hidden, steps))
            done(sample)
    return found


def compare(loaded: Loaded, sample: Sample, hidden: torch.Tensor, steps: int) -> Hits:
    """Run the chains of a sample from the layer's input [tokens - 1, C] on."""
    import numpy as np
    import torch

    tokens = torch.tensor(sample.sequence.tokens, device=hidden.device)
    embeds = loaded.embedding.of(tokens[1:])
    wanted, first, rows = tokens[2:], sample.first, sample.rows
    right = np.zeros((rows, steps), bool)
    known = np.zeros((rows, steps), bool)
    for step, predicted in enumerate(loaded.reference.unroll(embeds, hidden, steps, first)):
        # Row i + step of this step goes on with the chain of row i.
        agrees = (predicted.tokens[:-1] == wanted[first:])[step:].cpu().numpy()
        right[: len(agrees), step] = agrees
        known[: len(agrees), step] = True
    return Hits(right, known)
