"""The reference draft model: both EAGLE-3 classes in plain torch, for inference.

A model of ``forward`` of SGLang 0.5.9 - 0.5.23, ``models/llama_eagle3.py`` and
``models/kimi_k25_eagle3.py``; what the worker puts in place of the drafter's own tensors
(``set_embed``, ``set_embed_and_head``) is read from the target's checkpoint.  What is not known
here is refused.

Computes in float32 on weights kept in the checkpoint's dtype, a block of a matrix at a time, so
that the largest drafters need little more memory than their file.  Shapes: T positions, R those of
them that are asked about, C hidden size, S states, W width of the target's states.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_kimi_eagle.probing.attention import KeysValues, chain_attention
from sglang_kimi_eagle.probing.rope import Rope, Tables

if TYPE_CHECKING:
    import torch

_BLOCK = 1 << 25
"""Numbers of a matrix converted at a time: 128 MB of float32."""
_ROWS = 1024
"""Positions that go through the widest layers at a time."""


@dataclass(frozen=True)
class Head:
    """From hidden states to tokens of the target's vocabulary."""

    weight: torch.Tensor
    """[draft vocabulary, C]."""
    targets: torch.Tensor | None
    """Target id of each draft id, int64; None when they are the same."""

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """[T, C] -> [T, draft vocabulary]."""
        return linear(normed, self.weight)

    def best(self, normed: torch.Tensor) -> torch.Tensor:
        """Return the target id of the largest logit of each row: [T, C] -> int64 [T].

        The first one where two are equal, as ``argmax`` does.
        """
        import torch

        rows = normed.shape[0]
        value = normed.new_full((rows,), float("-inf"))
        found = torch.zeros(rows, dtype=torch.int64, device=normed.device)
        step = _block(self.weight)
        for start in range(0, self.weight.shape[0], step):
            part = self.weight[start : start + step].to(normed.dtype)
            for first in range(0, rows, _ROWS):
                span = slice(first, first + _ROWS)
                top, index = (normed[span] @ part.T).max(-1)
                better = top > value[span]
                value[span] = torch.where(better, top, value[span])
                found[span] = torch.where(better, index + start, found[span])
        return found if self.targets is None else self.targets[found]


class Attention(ABC):
    """The projections of a class's attention."""

    def __init__(self, weights: Mapping[str, torch.Tensor], rope: Rope) -> None:
        self._weights = weights
        self._rope = rope

    @property
    @abstractmethod
    def scale(self) -> float:
        """What scores are multiplied by."""

    @abstractmethod
    def queries(self, x: torch.Tensor, tables: Tables) -> torch.Tensor:
        """[R, 2 C] -> [H, R, D]."""

    @abstractmethod
    def keys_values(self, x: torch.Tensor, tables: Tables) -> KeysValues:
        """[T, 2 C] -> keys [K, T, D] and values [K, T, its D]."""

    def __call__(
        self, x: torch.Tensor, positions: torch.Tensor, past: list[KeysValues], first: int
    ) -> torch.Tensor:
        """Attend from the rows from ``first`` on; step 0 has those before them too.

        Args:
            x: [T, 2 C] at step 0, [R, 2 C] later.
            positions: of the rows of ``x``.
            past: keys and values of the steps before; this step's are appended.
            first: the first row that is asked about.

        Returns:
            [R, C].
        """
        own = first if not past else 0
        past.append(self.keys_values(x, self._rope.tables(positions)))
        q = self.queries(x[own:], self._rope.tables(positions[own:]))
        mixed = chain_attention(q, past, self.scale, first)
        return linear(mixed.flatten(1), self._weights["o_proj"], self._weights.get("o_proj.bias"))


class GroupedAttention(Attention):
    """Grouped-query attention of the Llama class."""

    def __init__(
        self, weights: Mapping[str, torch.Tensor], rope: Rope, heads: int, groups: int
    ) -> None:
        super().__init__(weights, rope)
        self._heads, self._groups = heads, groups

    @property
    def scale(self) -> float:
        """See `Attention.scale`."""
        return 1 / math.sqrt(self._rope.size)

    def queries(self, x: torch.Tensor, tables: Tables) -> torch.Tensor:
        """See `Attention.queries`."""
        return self._rope.rotate(_heads(linear(x, self._weights["q_proj"]), self._heads), tables)

    def keys_values(self, x: torch.Tensor, tables: Tables) -> KeysValues:
        """See `Attention.keys_values`."""
        w = self._weights
        k = self._rope.rotate(_heads(linear(x, w["k_proj"]), self._groups), tables)
        return k, _heads(linear(x, w["v_proj"]), self._groups)


class LatentAttention(Attention):
    """DeepSeek's latent attention, with the keys and values of each head written out."""

    def __init__(
        self,
        weights: Mapping[str, torch.Tensor],
        rope: Rope,
        heads: int,
        plain: int,
        value: int,
        eps: float,
    ) -> None:
        super().__init__(weights, rope)
        self._heads, self._plain, self._value, self._eps = heads, plain, value, eps

    @property
    def scale(self) -> float:
        """See `Attention.scale`."""
        return self._rope.score_scale / math.sqrt(self._plain + self._rope.size)

    def queries(self, x: torch.Tensor, tables: Tables) -> torch.Tensor:
        """See `Attention.queries`."""
        import torch

        w, rope = self._weights, self._rope
        low = rms_norm(linear(x, w["q_a_proj"]), w["q_a_layernorm"], self._eps)
        q_plain, q_rope = _heads(linear(low, w["q_b_proj"]), self._heads).split(
            (self._plain, rope.size), dim=-1
        )
        return torch.cat((q_plain, rope.rotate(q_rope, tables)), dim=-1)

    def keys_values(self, x: torch.Tensor, tables: Tables) -> KeysValues:
        """See `Attention.keys_values`."""
        import torch

        w, rope = self._weights, self._rope
        mixed = linear(x, w["kv_a_proj_with_mqa"])
        latent, k_rope = mixed[:, : -rope.size], mixed[:, -rope.size :]
        latent = rms_norm(latent, w["kv_a_layernorm"], self._eps)
        k_plain, v = _heads(linear(latent, w["kv_b_proj"]), self._heads).split(
            (self._plain, self._value), dim=-1
        )
        shared = rope.rotate(k_rope, tables).expand(self._heads, -1, -1)
        return torch.cat((k_plain, shared), dim=-1), v


@dataclass(frozen=True)
class Reference:
    """A drafter that can be run."""

    attention: Attention
    weights: Mapping[str, torch.Tensor]
    """``fc``, the norms and the MLP, by their names without ``.weight``."""
    head: Head
    num_states: int
    width: int
    """W, the width of one state."""
    eps: float
    norm_output: bool
    """A chain goes on from the normed output instead of the plain one."""
    ahead: int = 0
    """Positions that steps behind the first are rotated too far (`DraftLoader`)."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    def contribution(self, state: torch.Tensor, slot: int) -> torch.Tensor:
        """Return what a state adds to ``fc``'s output in a slot: [T, W] -> [T, C] float32.

        `combine` makes the input of the layer of one contribution for each slot; ``fc`` is linear,
        and a norm before it that spans all states is a factor for each row.
        """
        w, columns = self.weights, slice(slot * self.width, (slot + 1) * self.width)
        state = state.to(self.device).float()
        if "input_norm" in w:
            state = state * w["input_norm"][columns].float()
        if f"fc_norm.{slot}" in w:
            state = rms_norm(state, w[f"fc_norm.{slot}"], self.eps)
        return linear(state, w["fc"][:, columns])

    def combine(
        self, parts: Sequence[torch.Tensor], squares: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Return the layer's input [T, C] of the slots' contributions.

        Args:
            parts: of `contribution`, one a slot.
            squares: of `squares`, one a slot.
        """
        import torch

        hidden = torch.stack(list(parts)).sum(0)
        if "input_norm" in self.weights:
            mean = torch.stack(list(squares)).sum(0) / (self.width * self.num_states)
            hidden = hidden * torch.rsqrt(mean + self.eps)
        bias = self.weights.get("fc.bias")
        return hidden if bias is None else hidden + bias.float()

    def squares(self, state: torch.Tensor) -> torch.Tensor:
        """Return the sum of a state's squares: [T, W] -> [T, 1] float32."""
        return state.to(self.device).float().square().sum(-1, keepdim=True)

    def enter(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the layer's input of the states of each slot: S times [T, W] -> [T, C]."""
        parts = [self.contribution(state, slot) for slot, state in enumerate(states)]
        return self.combine(parts, [self.squares(state) for state in states])

    def unroll(
        self, embeds: torch.Tensor, hidden: torch.Tensor, steps: int, first: int = 0
    ) -> Iterator[Step]:
        """Run the chains of the positions from ``first`` on for some steps.

        Row i of step s belongs to the chain that starts at position i - s: with the target's
        states up to there, and the true token i + 1 at each of its steps.  The first s rows mean
        nothing.

        Args:
            embeds: [T, C], row i embeds token i + 1.
            hidden: [T, C], of `enter` or `combine`.
            steps: of the chains.
            first: rows before it are only attended to.

        Yields:
            what each step predicts, for the R = T - first rows: row i is about token i + 2.
        """
        import torch

        past: list[KeysValues] = []
        positions = torch.arange(hidden.shape[0], device=hidden.device)
        w = self.weights
        entering = rms_norm(embeds, w["input_layernorm"], self.eps)
        for step in range(steps):
            x = torch.cat((entering, rms_norm(hidden, w["hidden_norm"], self.eps)), dim=-1)
            mixed = self.attention(x, positions, past, first)
            if step == 0:
                entering, hidden = entering[first:], hidden[first:]
                positions = positions[first:] + self.ahead
            hidden = hidden + mixed
            hidden = hidden + self._mlp(rms_norm(hidden, w["post_attention_layernorm"], self.eps))
            normed = rms_norm(hidden, w["norm"], self.eps)
            yield Step(self.head, normed)
            # The chain of row i goes on at row i + 1.
            hidden = (normed if self.norm_output else hidden).roll(1, 0)

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        import torch
        import torch.nn.functional as functional

        w, parts = self.weights, []
        for part in x.split(_ROWS):
            inner = functional.silu(linear(part, w["gate_proj"])) * linear(part, w["up_proj"])
            parts.append(linear(inner, w["down_proj"]))
        return torch.cat(parts)


@dataclass(frozen=True)
class Step:
    """What one step of all chains says about the next tokens."""

    head: Head
    normed: torch.Tensor
    """[R, C], what enters the head."""

    @property
    def logits(self) -> torch.Tensor:
        """[R, draft vocabulary] float32."""
        return self.head.logits(self.normed)

    @property
    def tokens(self) -> torch.Tensor:
        """The greedy token of each row, as ids of the target: int64 [R]."""
        return self.head.best(self.normed)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """[T, n] float32 by a matrix [m, n] of any float dtype -> [T, m] float32."""
    step = _block(weight)
    out = x.new_empty(x.shape[0], weight.shape[0])
    for start in range(0, weight.shape[0], step):
        part = weight[start : start + step].to(x.dtype)
        out[:, start : start + step] = x @ part.T
    return out if bias is None else out + bias.to(x.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm of float32 rows."""
    import torch

    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.to(x.dtype)


def _block(weight: torch.Tensor) -> int:
    return max(1, _BLOCK // max(int(weight.shape[1]), 1))


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[T, H D] -> [H, T, D]."""
    return x.unflatten(-1, (heads, -1)).transpose(0, 1).contiguous()
