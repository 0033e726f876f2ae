"""The tiny Kimi-K3 language model: a plain PyTorch twin.

Every layer has gated latent attention without rope; none is linear (KDA).  In place of one
residual stream there is an *attention residual*: layers come in blocks of ``attn_res_block_size``,
a block adds up its own outputs only (the *prefix*), and what finished blocks added up stays in a
*bank*.  A sublayer reads a *mixture*: bank and prefix, weighted by a softmax over learned scores.

h[k] is the prefix after k layers, the tensor that EAGLE-3 drafters of Kimi-K3 are trained on; at
k = 0 these are the embeddings.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiny_models.layers import LatentProjections, LatentSizes, RMSNorm, RopeTables, merge_heads
from tiny_models.tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE


@dataclass(frozen=True)
class K3TextConfig:
    """Geometry of the language model, with the names of ``text_config``."""

    vocab_size: int = VOCAB_SIZE
    hidden_size: int = 128
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    q_lora_rank: int = 64
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    v_head_dim: int = 32
    intermediate_size: int = 256
    attn_res_block_size: int = 3
    activation_situ_beta: float = 4.0
    activation_situ_linear_beta: float = 8.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 4096

    def to_hf(self) -> dict[str, Any]:
        """The ``text_config`` block of ``config.json``."""
        return asdict(self) | {
            "architectures": ["KimiK3LinearForCausalLM"],
            "model_type": "kimi_linear",
            "dtype": "bfloat16",
            "head_dim": self.qk_nope_head_dim + self.qk_rope_head_dim,
            "hidden_act": "situ",
            # There are no experts; SGLang's CPU engine reads their size all the same.
            "moe_intermediate_size": self.intermediate_size,
            "mla_use_nope": True,
            "mla_use_output_gate": True,
            "linear_attn_config": {
                "kda_layers": [],
                "full_attn_layers": list(range(1, self.num_hidden_layers + 1)),
                "num_heads": self.num_attention_heads,
                "head_dim": self.v_head_dim,
                "short_conv_kernel_size": 4,
            },
            "model_max_length": self.max_position_embeddings,
            "tie_word_embeddings": False,
            "use_cache": True,
            "bos_token_id": BOS_ID,
            "eos_token_id": EOS_ID,
            "pad_token_id": EOS_ID,
        }


class SituMLP(nn.Module):
    """``down(beta tanh(g / beta) sigmoid(g) * lin tanh(u / lin))``, [..., C] -> [..., C]."""

    def __init__(self, config: K3TextConfig) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)
        self.beta, self.linear = config.activation_situ_beta, config.activation_situ_linear_beta

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        gate = self.beta * torch.tanh(gate / self.beta) * gate.sigmoid()
        return self.down_proj(gate * self.linear * torch.tanh(up / self.linear))


class GatedLatentAttention(LatentProjections):
    """Causal latent attention without positions, gated before its last projection."""

    def __init__(self, config: K3TextConfig) -> None:
        size, sizes = config.hidden_size, LatentSizes.of(config)
        super().__init__(size, size, sizes, config.rms_norm_eps)
        self.g_proj = nn.Linear(size, sizes.num_heads * sizes.v_head_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x, _unrotated(x, self.sizes.qk_rope_head_dim))
        mixed = merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.o_proj(mixed * self.g_proj(x).sigmoid())


def _unrotated(x: Tensor, size: int) -> RopeTables:
    shape = (x.shape[1], size // 2)
    return x.new_ones(shape), x.new_zeros(shape)


class Mixture(nn.Module):
    """Reads bank and prefix: n + 1 tensors [B, T, C] -> one, by a softmax over their scores."""

    def __init__(self, config: K3TextConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.proj = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, bank: list[Tensor], prefix: Tensor) -> Tensor:
        rows = torch.stack([*bank, prefix], dim=-2)
        weights = self.proj(self.norm(rows)).softmax(-2)
        return (weights * rows).sum(-2)


class K3Layer(nn.Module):
    """One decoder layer; extends the bank where a block begins."""

    def __init__(self, config: K3TextConfig, index: int) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.begins_block = index % config.attn_res_block_size == 0
        self.attention_mixture = Mixture(config)
        self.input_layernorm = RMSNorm(size, eps)
        self.self_attn = GatedLatentAttention(config)
        self.mlp_mixture = Mixture(config)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = SituMLP(config)

    def forward(self, bank: list[Tensor], prefix: Tensor) -> Tensor:
        """Bank and h[k] [B, T, C] -> h[k + 1]."""
        read = self.attention_mixture(bank, prefix)
        update = self.self_attn(self.input_layernorm(read))
        if self.begins_block:
            bank.append(prefix)
            prefix = update
        else:
            prefix = prefix + update
        read = self.mlp_mixture(bank, prefix)
        return prefix + self.mlp(self.post_attention_layernorm(read))


class K3Trunk(nn.Module):
    """Embeddings, decoder layers, the last mixture and the final norm."""

    def __init__(self, config: K3TextConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            K3Layer(config, index) for index in range(config.num_hidden_layers)
        )
        self.output_mixture = Mixture(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


_NAMES = (
    ("attention_mixture.", "self_attention_res_"),
    ("mlp_mixture.", "mlp_res_"),
    ("output_mixture.", "output_attn_res_"),
)


class K3TargetModel(nn.Module):
    """The language model."""

    def __init__(self, config: K3TextConfig) -> None:
        super().__init__()
        self.config = config
        self.model = K3Trunk(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """ids [B, T] -> logits [B, T, vocabulary] and h[0] .. h[n], each [B, T, C]."""
        logits, states, _ = self.run(ids)
        return logits, states

    def run(self, ids: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Like `forward`; third come the mixtures m[0] .. m[n], each [B, T, C].

        m[k] is what layer k reads (m[n]: the final norm), the tensor that SGLang captures after
        layer k - 1 for a DSPARK drafter.
        """
        trunk = self.model
        states, bank, mixtures = [trunk.embed_tokens(ids)], [], []
        for layer in trunk.layers:
            mixtures.append(layer.attention_mixture(bank, states[-1]))
            states.append(layer(bank, states[-1]))
        mixtures.append(trunk.output_mixture(bank, states[-1]))
        return self.lm_head(trunk.norm(mixtures[-1])), states, mixtures

    def tensors(self) -> dict[str, Tensor]:
        """The tensors under the names of the checkpoint's language model."""
        return {_rename(name, _NAMES): value for name, value in self.state_dict().items()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take tensors named as `tensors` names them."""
        back = tuple((new, old) for old, new in _NAMES)
        self.load_state_dict({_rename(name, back): value for name, value in tensors.items()})

    @torch.no_grad()
    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The ``count`` greedy tokens after ``prompt``."""
        ids = list(prompt)
        while len(ids) < len(prompt) + count:
            logits, _ = self(torch.tensor([ids]))
            ids.append(int(logits[0, -1].argmax()))
        return ids[len(prompt) :]


def _rename(name: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        name = name.replace(old, new)
    return name
