"""Acceptance length of greedy chain speculation, computed with the twins.

One verify step checks ``steps`` drafted tokens and emits the accepted ones plus the
target's own next token (the bonus token).  The emitted sequence is the target's greedy
one whatever is drafted, so the chains from all positions can be computed in one pass:
a chain matters only as long as it agrees with that sequence.
"""

from dataclasses import dataclass

import torch

from tiny_models.drafters import Drafter
from tiny_models.target import TargetModel


@dataclass(frozen=True)
class Acceptance:
    """Counts over some generations."""

    tokens: int = 0
    verifies: int = 0

    @property
    def length(self) -> float:
        """Tokens per verify step, bonus token included."""
        return self.tokens / self.verifies

    def __add__(self, other: "Acceptance") -> "Acceptance":
        return Acceptance(self.tokens + other.tokens, self.verifies + other.verifies)


@torch.no_grad()
def chain_hits(
    target: TargetModel,
    drafter: Drafter,
    layers: tuple[int, ...],
    ids: list[int],
    steps: int,
) -> list[list[bool]]:
    """``hits[i][s]``: token i + s + 2 is what the chain from position i has at s.

    The chain from position i starts from the target's states h[k], k in ``layers``, of
    positions up to i and from the tokens up to i + 1.
    """
    sequence = torch.tensor([ids])
    _, states = target(sequence)
    aux = torch.cat([states[k] for k in layers], dim=-1)[:, :-1]
    embeds = target.model.embed_tokens(sequence[:, 1:])
    wanted = sequence[0, 2:]
    rows = [
        (drafter.to_target(logits[0].argmax(-1))[:-1] == wanted).tolist()
        for logits in drafter.unroll(embeds, aux, steps)
    ]
    return [
        [rows[s][i + s] for s in range(steps) if i + s < len(wanted)] for i in range(len(wanted))
    ]


def simulate(
    target: TargetModel,
    drafter: Drafter,
    layers: tuple[int, ...],
    prompt: list[int],
    output: list[int],
    steps: int = 3,
) -> Acceptance:
    """Speculation that emits ``output``, the target's greedy tokens after ``prompt``.

    As SGLang counts: the first token, which the prefill gives, is one of the tokens
    but takes no verify step.
    """
    hits = chain_hits(target, drafter, layers, prompt + output, steps)
    position, last, verifies = len(prompt), len(prompt) + len(output) - 1, 0
    while position < last:
        chain = hits[position - 1]
        accepted = next((s for s, hit in enumerate(chain) if not hit), len(chain))
        position, verifies = position + accepted + 1, verifies + 1
    return Acceptance(len(output), verifies)
