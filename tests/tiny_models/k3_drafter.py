"""A drafter for the tiny Kimi-K3 in the layout of published ones ("EAGLE-3.1").

It is ``Eagle3DeepseekV2ForCausalLM`` with a norm on each of the target's states (``fc_norm``) and
normed output fed back (``norm_output``).  Its config says ``mla_use_nope``, as published ones do;
its attention has rope all the same.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tiny_models.drafters import MLADrafter, mla_drafter_to_hf, shift
from tiny_models.k3_target import K3TextConfig
from tiny_models.layers import RMSNorm
from tiny_models.target import TextConfig


def drafter_config(target: K3TextConfig) -> TextConfig:
    """The drafter's geometry: the target's, with rope."""
    return TextConfig(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        q_lora_rank=target.q_lora_rank,
        kv_lora_rank=target.kv_lora_rank,
        qk_nope_head_dim=target.qk_nope_head_dim,
        qk_rope_head_dim=target.qk_rope_head_dim,
        v_head_dim=target.v_head_dim,
        intermediate_size=target.intermediate_size,
        rms_norm_eps=target.rms_norm_eps,
        max_position_embeddings=target.max_position_embeddings,
    )


class K3Drafter(MLADrafter):
    """See the module."""

    def __init__(self, config: TextConfig, states: int = 3) -> None:
        super().__init__(config)
        self.fc_norm = nn.ModuleList(
            RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(states)
        )

    def unroll(self, next_embeds: Tensor, aux: Tensor, steps: int) -> Iterator[Tensor]:
        """See `Drafter.unroll`."""
        tables, past = self.rope(aux.shape[1]), []
        chunks = aux.chunk(len(self.fc_norm), dim=-1)
        normed = [norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)]
        hidden = self.fc(torch.cat(normed, dim=-1))
        for _ in range(steps):
            hidden = self.norm(self.layer(next_embeds, hidden, tables, past))
            yield self.lm_head(hidden)
            hidden = shift(hidden, 1)

    def to_hf(self, layer_ids: tuple[int, ...]) -> dict[str, Any]:
        """``config.json`` with ``layer_ids`` as the configured capture layers."""
        return mla_drafter_to_hf(self.config, layer_ids) | {
            "fc_norm": True,
            "norm_output": True,
            "mla_use_nope": True,
        }
