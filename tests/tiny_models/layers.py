"""Layers shared by the target and the drafters, in plain PyTorch.

Shapes: B sequences, T positions, H heads, D head size, C hidden size.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RopeTables = tuple[Tensor, Tensor]
"""Cosines and sines, each [T, D / 2]."""


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x * scale * self.weight


class GatedMLP(nn.Module):
    """``down(silu(gate(x)) * up(x))``, [..., C] -> [..., C]."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rope_tables(length: int, size: int, theta: float) -> RopeTables:
    """Rotation angles of positions 0 .. length - 1 for heads of ``size``."""
    frequencies = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotate_pairs(x: Tensor, tables: RopeTables) -> Tensor:
    """DeepSeek's rope: rotates (x0, x1), (x2, x3), ...; x is [B, H, T, D]."""
    cos, sin = tables
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def rotate_halves(x: Tensor, tables: RopeTables) -> Tensor:
    """Llama's rope: rotates (x0, x[D/2]), (x1, x[D/2 + 1]), ...; x is [B, H, T, D]."""
    cos, sin = tables
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, H * D] -> [B, H, T, D]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, T, D] -> [B, T, H * D]."""
    return x.transpose(1, 2).flatten(-2)


@dataclass(frozen=True)
class LatentSizes:
    """Geometry of multi-head latent attention."""

    num_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @classmethod
    def of(cls, config: Any) -> "LatentSizes":
        """Take them from a configuration with the names of ``text_config``."""
        return cls(
            config.num_attention_heads,
            config.q_lora_rank,
            config.kv_lora_rank,
            config.qk_nope_head_dim,
            config.qk_rope_head_dim,
            config.v_head_dim,
        )

    @property
    def qk_head_dim(self) -> int:
        """Size of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


class LatentProjections(nn.Module):
    """The projections of multi-head latent attention, without the attention."""

    def __init__(self, input_size: int, hidden_size: int, sizes: LatentSizes, eps: float) -> None:
        super().__init__()
        self.sizes = s = sizes
        self.q_a_proj = nn.Linear(input_size, s.q_lora_rank, bias=False)
        self.q_a_layernorm = RMSNorm(s.q_lora_rank, eps)
        self.q_b_proj = nn.Linear(s.q_lora_rank, s.num_heads * s.qk_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(
            input_size, s.kv_lora_rank + s.qk_rope_head_dim, bias=False
        )
        self.kv_a_layernorm = RMSNorm(s.kv_lora_rank, eps)
        self.kv_b_proj = nn.Linear(
            s.kv_lora_rank,
            s.num_heads * (s.qk_nope_head_dim + s.v_head_dim),
            bias=False,
        )
        self.o_proj = nn.Linear(s.num_heads * s.v_head_dim, hidden_size, bias=False)

    def project(self, x: Tensor, tables: RopeTables) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, input size] -> queries, keys and values, each [B, H, T, its D]."""
        s = self.sizes
        q = split_heads(self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))), s.num_heads)
        q_nope, q_rope = q.split((s.qk_nope_head_dim, s.qk_rope_head_dim), dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split(
            (s.kv_lora_rank, s.qk_rope_head_dim), dim=-1
        )
        kv = split_heads(self.kv_b_proj(self.kv_a_layernorm(latent)), s.num_heads)
        k_nope, v = kv.split((s.qk_nope_head_dim, s.v_head_dim), dim=-1)
        k_rope = rotate_pairs(k_rope.unsqueeze(1), tables).expand(-1, s.num_heads, -1, -1)
        q = torch.cat((q_nope, rotate_pairs(q_rope, tables)), dim=-1)
        return q, torch.cat((k_nope, k_rope), dim=-1), v


def init_weights(module: nn.Module, generator: torch.Generator) -> None:
    """Normal matrices of variance 1 / inputs; small embeddings; norms stay at one."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() == 2:
                std = 0.02 if "embed_tokens" in name else parameter.shape[1] ** -0.5
                parameter.normal_(std=std, generator=generator)
