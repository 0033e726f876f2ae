"""The tiny Kimi-K2.5 language model: a plain PyTorch twin.

``TargetModel.state_dict()`` has the names of a DeepSeek-V3 checkpoint (``model.*``,
``lm_head.*``); the Kimi-K2.5 checkpoint puts ``language_model.`` in front.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiny_models.layers import (
    GatedMLP,
    LatentProjections,
    LatentSizes,
    RMSNorm,
    RopeTables,
    merge_heads,
    rope_tables,
)
from tiny_models.tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE


def plain_yarn(max_position_embeddings: int) -> dict[str, Any]:
    """A YaRN block of factor one, which is plain rope.

    SGLang has no plain rope for latent attention on a CPU.
    """
    return {
        "type": "yarn",
        "factor": 1.0,
        "original_max_position_embeddings": max_position_embeddings,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }


@dataclass(frozen=True)
class TextConfig:
    """Geometry of the language model, with the names of ``text_config``."""

    vocab_size: int = VOCAB_SIZE
    hidden_size: int = 128
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    q_lora_rank: int = 64
    kv_lora_rank: int = 256
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 32
    v_head_dim: int = 32
    intermediate_size: int = 256
    moe_intermediate_size: int = 64
    n_routed_experts: int = 8
    n_shared_experts: int = 1
    num_experts_per_tok: int = 2
    first_k_dense_replace: int = 1
    routed_scaling_factor: float = 2.827
    rope_theta: float = 50000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 4096

    def to_hf(self) -> dict[str, Any]:
        """The ``text_config`` block of ``config.json``."""
        return asdict(self) | {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "kimi_k2",
            "torch_dtype": "bfloat16",
            "hidden_act": "silu",
            "moe_layer_freq": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "rope_scaling": plain_yarn(self.max_position_embeddings),
            "attention_bias": False,
            "attention_dropout": 0.0,
            "num_nextn_predict_layers": 0,
            "tie_word_embeddings": False,
            "use_cache": True,
            "bos_token_id": BOS_ID,
            "eos_token_id": EOS_ID,
            "pad_token_id": EOS_ID,
        }


class LatentAttention(LatentProjections):
    """Causal multi-head latent attention, [B, T, C] -> [B, T, C]."""

    def forward(self, x: Tensor, tables: RopeTables) -> Tensor:
        q, k, v = self.project(x, tables)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(merge_heads(mixed))


class Gate(nn.Module):
    """Scores of the experts; the bias only takes part in choosing them."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))


class MixtureOfExperts(nn.Module):
    """Sigmoid-routed experts and one that every token passes, [B, T, C] -> [B, T, C].

    ``load`` holds the number of tokens per expert of the last forward pass.
    """

    load: Tensor

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.scaling = config.routed_scaling_factor
        size = config.moe_intermediate_size
        self.gate = Gate(config)
        self.experts = nn.ModuleList(
            GatedMLP(config.hidden_size, size) for _ in range(config.n_routed_experts)
        )
        self.shared_experts = GatedMLP(config.hidden_size, size * config.n_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        scores = F.linear(tokens, self.gate.weight).sigmoid()
        biased = scores + self.gate.e_score_correction_bias
        chosen = biased.topk(self.top_k, dim=-1).indices
        weights = scores.gather(1, chosen)
        weights = weights / weights.sum(-1, keepdim=True) * self.scaling
        self.load = torch.bincount(chosen.flatten(), minlength=len(self.experts))
        routed = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            rows, slots = (chosen == index).nonzero(as_tuple=True)
            output = expert(tokens[rows]) * weights[rows, slots, None]
            routed = routed.index_add(0, rows, output)
        return (routed + self.shared_experts(tokens)).view_as(x)


class DecoderLayer(nn.Module):
    """h[k] -> h[k + 1], both [B, T, C]."""

    def __init__(self, config: TextConfig, index: int) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(size, eps)
        self.self_attn = LatentAttention(size, size, LatentSizes.of(config), eps)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = (
            GatedMLP(size, config.intermediate_size)
            if index < config.first_k_dense_replace
            else MixtureOfExperts(config)
        )

    def forward(self, x: Tensor, tables: RopeTables) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), tables)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """Embeddings, decoder layers and final norm."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class TargetModel(nn.Module):
    """The language model."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """ids [B, T] -> logits [B, T, vocabulary] and h[0] .. h[n], each [B, T, C].

        h[k] is the residual stream after k decoder layers: h[0] are the embeddings,
        h[n] enters the final norm.
        """
        config = self.config
        tables = rope_tables(ids.shape[1], config.qk_rope_head_dim, config.rope_theta)
        states = [self.model.embed_tokens(ids)]
        for layer in self.model.layers:
            states.append(layer(states[-1], tables))
        return self.lm_head(self.model.norm(states[-1])), states

    def mixtures(self) -> list[MixtureOfExperts]:
        """The mixture-of-experts blocks, in layer order."""
        return [m for m in self.modules() if isinstance(m, MixtureOfExperts)]

    @torch.no_grad()
    def greedy(
        self, prompt: list[int], count: int, stop: frozenset[int] = frozenset()
    ) -> list[int]:
        """Up to ``count`` greedy tokens after ``prompt``; a stop token is included."""
        ids = list(prompt)
        while len(ids) < len(prompt) + count:
            logits, _ = self(torch.tensor([ids]))
            ids.append(int(logits[0, -1].argmax()))
            if ids[-1] in stop:
                break
        return ids[len(prompt) :]
