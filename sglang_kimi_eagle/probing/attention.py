"""Attention of every position's chain of drafts in one pass, a block of rows at a time.

Shapes: T positions, R rows that are asked about, H heads, K key heads (H is a multiple of K), D
channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

KeysValues = tuple["torch.Tensor", "torch.Tensor"]
"""Keys [K, T, D] and values [K, T, its D] of one step; of steps behind the first [K, R, ...]."""
_SCORES = 1 << 25
"""Scores held at a time: 128 MB of float32."""


def chain_attention(
    q: torch.Tensor, past: Sequence[KeysValues], scale: float, first: int = 0
) -> torch.Tensor:
    """Attend from the rows of the last step in ``past``: [H, R, D] -> [R, H, D of the values].

    Only rows from ``first`` on are there, R = T - first of them, but for the keys and values of
    step 0.  Row i of step s = len(past) - 1 stands for the chain whose last true state is that of
    position i - s.  It sees what the cache of an engine then holds: step 0 (true states) at
    positions up to i - s, and its own step j > 0 at position i - s + j, which is row i - s + j of
    that step.  The first s rows stand for no chain.
    """
    import torch

    heads, count, _ = q.shape
    step = len(past) - 1
    keys, values = past[0]
    groups, length = keys.shape[:2]
    q = q.view(groups, heads // groups, count, -1) * scale
    mixed = q.new_empty(groups, heads // groups, count, values.shape[-1])
    block = max(1, _SCORES // (heads * length))
    for start in range(0, count, block):
        rows = torch.arange(start, min(start + block, count), device=q.device)
        # Positions of the last true state, and what is before it.
        last = (first + rows - step).clamp(min=0)
        seen = int(last[-1]) + 1
        own = q[:, :, start : start + block]
        scores = own @ keys[:, None, :seen].transpose(-2, -1)
        hidden = torch.arange(seen, device=q.device)[None] > last[:, None]
        parts = [scores.masked_fill_(hidden, float("-inf"))]
        # Step j of the chain of row i is row i - (step - j).
        origins = [(rows - (step - j)).clamp(min=0) for j in range(1, step + 1)]
        for (k, _), origin in zip(past[1:], origins, strict=True):
            parts.append((own * k[:, None, origin]).sum(-1, keepdim=True))
        weights = torch.cat(parts, dim=-1).softmax(-1)
        part = weights[..., :seen] @ values[:, None, :seen]
        for j, ((_, v), origin) in enumerate(zip(past[1:], origins, strict=True)):
            part += weights[..., seen + j, None] * v[:, None, origin]
        mixed[:, :, start : start + block] = part
    return mixed.flatten(0, 1).transpose(0, 1)
