"""EAGLE-3 drafters: plain PyTorch twins of the Llama and the latent-attention kind.

At position i a drafter sees the embedding of token i + 1 and the target's states of
position i, and predicts token i + 2.  Further tokens of a chain are predicted from its
own output in place of the target's states.

Shapes: B sequences, T positions, H heads, D head size, C hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

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
    rotate_halves,
    split_heads,
)
from tiny_models.target import TextConfig, plain_yarn
from tiny_models.tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE

KeysValues = tuple[Tensor, Tensor]


class Attention(Protocol):
    """Projections around an attention."""

    o_proj: nn.Linear

    def project(self, x: Tensor, tables: RopeTables) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, 2 C] -> queries, keys and values, each [B, H, T, D]."""


@dataclass(frozen=True)
class LlamaDrafterConfig:
    """Geometry of the Llama drafter, with the names of its ``config.json``."""

    vocab_size: int = VOCAB_SIZE
    draft_vocab_size: int = 384
    hidden_size: int = 128
    target_hidden_size: int = 128
    num_hidden_layers: int = 1
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 256
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 4096

    def to_hf(self, layer_ids: tuple[int, ...]) -> dict[str, Any]:
        """``config.json`` with ``layer_ids`` as the configured capture layers."""
        return asdict(self) | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "torch_dtype": "bfloat16",
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "use_cache": True,
            "bos_token_id": BOS_ID,
            "eos_token_id": EOS_ID,
            "pad_token_id": EOS_ID,
            "eagle_config": _eagle_config(layer_ids),
        }


def mla_drafter_to_hf(config: TextConfig, layer_ids: tuple[int, ...]) -> dict[str, Any]:
    """``config.json`` of the latent-attention drafter, which has the target's sizes."""
    return {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "torch_dtype": "bfloat16",
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "q_lora_rank": config.q_lora_rank,
        "kv_lora_rank": config.kv_lora_rank,
        "qk_nope_head_dim": config.qk_nope_head_dim,
        "qk_rope_head_dim": config.qk_rope_head_dim,
        "v_head_dim": config.v_head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": plain_yarn(config.max_position_embeddings),
        "max_position_embeddings": config.max_position_embeddings,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": EOS_ID,
        "eagle_config": _eagle_config(layer_ids),
    }


def _eagle_config(layer_ids: tuple[int, ...]) -> dict[str, Any]:
    return {
        "eagle_aux_hidden_state_layer_ids": list(layer_ids),
        "use_aux_hidden_state": True,
    }


class GroupedProjections(nn.Module):
    """The projections of grouped-query attention over [embedding ; state]."""

    def __init__(self, config: LlamaDrafterConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = (
            config.num_attention_heads,
            config.num_key_value_heads,
        )
        width, q_size = 2 * config.hidden_size, self.heads * config.head_dim
        self.q_proj = nn.Linear(width, q_size, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(q_size, config.hidden_size, bias=False)

    def project(self, x: Tensor, tables: RopeTables) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, 2 C] -> queries, keys and values, each [B, H, T, D]."""
        groups = self.heads // self.kv_heads
        q = rotate_halves(split_heads(self.q_proj(x), self.heads), tables)
        k = rotate_halves(split_heads(self.k_proj(x), self.kv_heads), tables)
        v = split_heads(self.v_proj(x), self.kv_heads)
        return q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)


def shift(x: Tensor, count: int) -> Tensor:
    """Move along the next-to-last dimension by ``count`` and fill up with zeros."""
    return F.pad(x, (0, 0, count, 0))[..., : x.shape[-2], :]


def chain_attention(q: Tensor, past: list[KeysValues]) -> Tensor:
    """Attention of unrolled step s = len(past) - 1, [B, H, T, D] -> [B, H, T, D'].

    ``past[j]`` are the keys and values of step j.  Row i of step s stands for the chain
    whose last true state is at position i - s: it sees step 0 at positions up to i - s
    and step j > 0 at position i - s + j, which is what the cache of an engine holds.
    """
    length, step = q.shape[-2], len(past) - 1
    q = q * q.shape[-1] ** -0.5
    keys, values = past[0]
    hidden = torch.ones(length, length, dtype=torch.bool).tril(-step).logical_not()
    scores = [(q @ keys.transpose(-2, -1)).masked_fill(hidden, -1e30)]
    moved = [(shift(k, step - j), shift(v, step - j)) for j, (k, v) in enumerate(past[1:], start=1)]
    scores += [(q * k).sum(-1, keepdim=True) for k, _ in moved]
    weights = torch.cat(scores, dim=-1).softmax(-1)
    mixed = weights[..., :length] @ values
    for j, (_, v) in enumerate(moved):
        mixed = mixed + weights[..., length + j, None] * v
    return mixed


class DraftLayer(nn.Module):
    """The only decoder layer of a drafter."""

    def __init__(self, attention: nn.Module, size: int, intermediate_size: int, eps: float) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(size, eps)
        self.hidden_norm = RMSNorm(size, eps)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = GatedMLP(size, intermediate_size)

    def forward(
        self, embeds: Tensor, hidden: Tensor, tables: RopeTables, past: list[KeysValues]
    ) -> Tensor:
        """Embeddings and states [B, T, C] -> states [B, T, C]; extends ``past``."""
        attention: Attention = self.self_attn
        x = torch.cat((self.input_layernorm(embeds), self.hidden_norm(hidden)), dim=-1)
        q, k, v = attention.project(x, tables)
        past.append((k, v))
        mixed = merge_heads(chain_attention(q, past))
        hidden = hidden + attention.o_proj(mixed)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Drafter(nn.Module, ABC):
    """What both kinds have in common."""

    fc: nn.Linear
    norm: RMSNorm
    lm_head: nn.Linear

    @property
    @abstractmethod
    def layer(self) -> DraftLayer:
        """The decoder layer."""

    @abstractmethod
    def rope(self, length: int) -> RopeTables:
        """Rope tables of the attention."""

    @abstractmethod
    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Ids of the draft vocabulary -> ids of the target's, same shape."""

    @abstractmethod
    def from_target(self, ids: Tensor) -> Tensor:
        """Ids of the target's vocabulary -> ids of the draft one, -1 where absent."""

    def unroll(self, next_embeds: Tensor, aux: Tensor, steps: int) -> Iterator[Tensor]:
        """Draft logits [B, T, draft vocabulary] of each unrolled step.

        ``next_embeds`` [B, T, C] embeds token i + 1 at row i, ``aux`` [B, T, 3 C] holds
        the target's three states of position i.  Row i of step s predicts token i + 2
        from target states up to position i - s; its first s rows mean nothing.
        """
        tables, past = self.rope(aux.shape[1]), []
        hidden = self.fc(aux)
        for _ in range(steps):
            hidden = self.layer(next_embeds, hidden, tables, past)
            yield self.lm_head(self.norm(hidden))
            hidden = shift(hidden, 1)

    @torch.no_grad()
    def draft(self, embed: nn.Embedding, ids: list[int], aux: Tensor, steps: int) -> list[int]:
        """The greedy chain of ``steps`` tokens after ``ids``.

        ``aux`` [len(ids) - 1, 3 C]: the target's states, which the last id lacks.
        """
        chain: list[int] = []
        for step in range(steps):
            known = torch.tensor([[*ids[1:], *chain]])
            padded = F.pad(aux, (0, 0, 0, step)).unsqueeze(0)
            logits = list(self.unroll(embed(known), padded, step + 1))[-1]
            chain.append(int(self.to_target(logits[0, -1].argmax())))
        return chain

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the checkpoint."""
        return dict(self.state_dict())


class LlamaDrafter(Drafter):
    """``LlamaForCausalLMEagle3``: a reduced vocabulary and Llama attention."""

    def __init__(self, config: LlamaDrafterConfig, vocabulary: Tensor) -> None:
        """``vocabulary`` [draft vocabulary] int64, ascending: target id of a draft id."""
        super().__init__()
        self.config = config
        size, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(3 * config.target_hidden_size, size, bias=False)
        self.midlayer = DraftLayer(GroupedProjections(config), size, config.intermediate_size, eps)
        self.norm = RMSNorm(size, eps)
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        self.vocabulary = vocabulary
        self.draft_id = torch.full((config.vocab_size,), -1)
        self.draft_id[vocabulary] = torch.arange(len(vocabulary))

    @property
    def layer(self) -> DraftLayer:
        return self.midlayer

    def rope(self, length: int) -> RopeTables:
        return rope_tables(length, self.config.head_dim, self.config.rope_theta)

    def to_target(self, draft_ids: Tensor) -> Tensor:
        return self.vocabulary[draft_ids]

    def from_target(self, ids: Tensor) -> Tensor:
        return self.draft_id[ids]

    def tensors(self) -> dict[str, Tensor]:
        """Adds ``d2t`` (target id minus draft id) and ``t2d`` (is in the vocabulary)."""
        return super().tensors() | {
            "d2t": self.vocabulary - torch.arange(len(self.vocabulary)),
            "t2d": self.draft_id >= 0,
        }


class MLADrafter(Drafter):
    """``Eagle3DeepseekV2ForCausalLM``: the target's vocabulary and latent attention."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        size, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(3 * size, size, bias=False)
        attention = LatentProjections(2 * size, size, LatentSizes.of(config), eps)
        self.layers = nn.ModuleList([DraftLayer(attention, size, config.intermediate_size, eps)])
        self.norm = RMSNorm(size, eps)
        self.lm_head = nn.Linear(size, config.vocab_size, bias=False)

    @property
    def layer(self) -> DraftLayer:
        return self.layers[0]

    def rope(self, length: int) -> RopeTables:
        return rope_tables(length, self.config.qk_rope_head_dim, self.config.rope_theta)

    def to_target(self, draft_ids: Tensor) -> Tensor:
        return draft_ids

    def from_target(self, ids: Tensor) -> Tensor:
        return ids
