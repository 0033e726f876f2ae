"""Drafter checkpoints as files of any size: headers are real, weights are holes (sparse files)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BITS = {"BF16": 16, "F16": 16, "F32": 32, "I64": 64, "I32": 32, "BOOL": 8, "F8_E4M3": 8, "U8": 8}


@dataclass
class Tensor:
    """A tensor of a checkpoint; without data it is all zeros, and a hole in the file."""

    shape: tuple[int, ...]
    dtype: str = "BF16"
    data: bytes = b""

    @property
    def length(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * BITS[self.dtype] // 8


@dataclass
class Checkpoint:
    """A drafter to write; tests change a copy and see what is said."""

    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def write(self, folder: Path, shards: int = 1) -> Path:
        """Write the checkpoint as one file, or as shards with an index."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        names = list(self.tensors)
        if shards == 1:
            write_safetensors(folder / "model.safetensors", self.tensors)
            return folder
        weight_map = {}
        for number in range(shards):
            file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
            part = names[number::shards]
            write_safetensors(folder / file, {name: self.tensors[name] for name in part})
            weight_map.update(dict.fromkeys(part, file))
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    def renamed(self, old: str, new: str) -> Checkpoint:
        """Return a copy whose tensors have ``old`` at the beginning of their names replaced."""
        return Checkpoint(
            self.config,
            {
                new + name[len(old) :] if name.startswith(old) else name: tensor
                for name, tensor in self.tensors.items()
            },
        )


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with holes where tensors have no data."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.length
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in tensors.items():
            if tensor.data:
                file.seek(8 + len(text) + header[name]["data_offsets"][0])
                file.write(tensor.data)
        file.truncate(8 + len(text) + offset)


def d2t(targets: Sequence[int]) -> Tensor:
    """The map of a reduced vocabulary."""
    offsets = [target - index for index, target in enumerate(targets)]
    data = b"".join(offset.to_bytes(8, "little", signed=True) for offset in offsets)
    return Tensor((len(offsets),), "I64", data)


def t2d(targets: Sequence[int], vocab: int) -> Tensor:
    """The mask of a reduced vocabulary."""
    marks = bytearray(vocab)
    for target in targets:
        marks[target] = 1
    return Tensor((vocab,), "BOOL", bytes(marks))


KIMI_TEXT = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "vocab_size": 163840,
    "max_position_embeddings": 262144,
    "bos_token_id": 163584,
    "eos_token_id": 163585,
    "torch_dtype": "bfloat16",
}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "eos_token_id": 163586,
    "dtype": "bfloat16",
    "text_config": KIMI_TEXT,
}
"""The keys of Kimi-K2.5's config that are looked at."""
KIMI_TOKENS = {"bos_token_id": 163584, "eos_token_id": 163585}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}
"""The same keys of DeepSeek-V3's."""

YARN = {
    "type": "yarn",
    "factor": 64.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def tiny_target(**changes: Any) -> dict[str, Any]:
    """A target of 8 layers for the tiny drafters."""
    text = KIMI_TEXT | {
        "num_hidden_layers": 8,
        "hidden_size": 128,
        "vocab_size": 1024,
        "max_position_embeddings": 2048,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return KIMI | {"eos_token_id": 1, "text_config": text | changes}


def llama(
    *,
    hidden: int = 128,
    inner: int = 256,
    heads: int = 4,
    groups: int = 2,
    head: int = 32,
    vocab: int = 1024,
    draft_vocab: int | None = 384,
    target_hidden: int | None = None,
    states: int = 3,
    layer: str = "midlayer",
    own_embedding: bool = False,
    **config: Any,
) -> Checkpoint:
    """A drafter of LlamaForCausalLMEagle3; the defaults are the tiny one's sizes."""
    width = target_hidden or hidden
    tensors = {
        "fc.weight": Tensor((hidden, states * width)),
        f"{layer}.self_attn.q_proj.weight": Tensor((heads * head, 2 * hidden)),
        f"{layer}.self_attn.k_proj.weight": Tensor((groups * head, 2 * hidden)),
        f"{layer}.self_attn.v_proj.weight": Tensor((groups * head, 2 * hidden)),
        f"{layer}.self_attn.o_proj.weight": Tensor((hidden, heads * head)),
        **_norms_and_mlp(layer, hidden, inner),
        "norm.weight": Tensor((hidden,)),
    }
    full = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": vocab,
        "draft_vocab_size": draft_vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": head,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
            "use_aux_hidden_state": True,
        },
    }
    if target_hidden is not None:
        full["target_hidden_size"] = target_hidden
    return _with_vocabulary(full | config, tensors, hidden, vocab, draft_vocab, own_embedding)


def mla(
    *,
    hidden: int = 128,
    inner: int = 256,
    heads: int = 4,
    q_rank: int = 64,
    kv_rank: int = 64,
    nope: int = 32,
    rope: int = 16,
    value: int = 32,
    vocab: int = 1024,
    draft_vocab: int | None = 384,
    target_hidden: int | None = None,
    states: int = 3,
    layer: str = "layers.0",
    own_embedding: bool = False,
    **config: Any,
) -> Checkpoint:
    """A drafter of Eagle3DeepseekV2ForCausalLM."""
    width = target_hidden or hidden
    tensors = {
        "fc.weight": Tensor((hidden, states * width)),
        f"{layer}.self_attn.q_a_proj.weight": Tensor((q_rank, 2 * hidden)),
        f"{layer}.self_attn.q_a_layernorm.weight": Tensor((q_rank,)),
        f"{layer}.self_attn.q_b_proj.weight": Tensor((heads * (nope + rope), q_rank)),
        f"{layer}.self_attn.kv_a_proj_with_mqa.weight": Tensor((kv_rank + rope, 2 * hidden)),
        f"{layer}.self_attn.kv_a_layernorm.weight": Tensor((kv_rank,)),
        f"{layer}.self_attn.kv_b_proj.weight": Tensor((heads * (nope + value), kv_rank)),
        f"{layer}.self_attn.o_proj.weight": Tensor((hidden, heads * value)),
        **_norms_and_mlp(layer, hidden, inner),
        "norm.weight": Tensor((hidden,)),
    }
    full = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "torch_dtype": "bfloat16",
        "vocab_size": vocab,
        "draft_vocab_size": draft_vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "q_lora_rank": q_rank,
        "kv_lora_rank": kv_rank,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
            "use_aux_hidden_state": True,
        },
    }
    if target_hidden is not None:
        full["target_hidden_size"] = target_hidden
    return _with_vocabulary(full | config, tensors, hidden, vocab, draft_vocab, own_embedding)


def _norms_and_mlp(layer: str, hidden: int, inner: int) -> dict[str, Tensor]:
    return {
        f"{layer}.input_layernorm.weight": Tensor((hidden,)),
        f"{layer}.hidden_norm.weight": Tensor((hidden,)),
        f"{layer}.post_attention_layernorm.weight": Tensor((hidden,)),
        f"{layer}.mlp.gate_proj.weight": Tensor((inner, hidden)),
        f"{layer}.mlp.up_proj.weight": Tensor((inner, hidden)),
        f"{layer}.mlp.down_proj.weight": Tensor((hidden, inner)),
    }


def _with_vocabulary(
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    hidden: int,
    vocab: int,
    draft_vocab: int | None,
    own_embedding: bool,
) -> Checkpoint:
    if own_embedding:
        tensors["embed_tokens.weight"] = Tensor((vocab, hidden))
    if draft_vocab is not None:
        tensors["lm_head.weight"] = Tensor((draft_vocab, hidden))
        if draft_vocab < vocab:
            step = vocab // draft_vocab
            targets = range(0, draft_vocab * step, step)
            tensors["d2t"] = d2t(targets)
            tensors["t2d"] = t2d(targets, vocab)
    return Checkpoint(config, tensors)


def torchspec_mla() -> Checkpoint:
    """TorchSpec's MLA template for Kimi-K2.5 with the positions of its target."""
    return mla(
        hidden=7168,
        inner=18432,
        heads=64,
        q_rank=1536,
        kv_rank=512,
        nope=128,
        rope=64,
        value=128,
        vocab=163840,
        draft_vocab=163840,
        own_embedding=True,
        rope_theta=50000.0,
        rope_scaling=dict(YARN),
        max_position_embeddings=262144,
        eagle_config={
            "eagle_aux_hidden_state_layer_ids": [1, 29, 57],
            "use_aux_hidden_state": True,
        },
    )


def torchspec_mha() -> Checkpoint:
    """TorchSpec's MHA template for Kimi-K2.5 as it is exported, with draft_vocab_size."""
    checkpoint = llama(
        hidden=7168,
        inner=12288,
        heads=64,
        groups=64,
        head=128,
        vocab=163840,
        draft_vocab=163840,
        own_embedding=True,
        rope_theta=50000.0,
        rope_scaling=dict(YARN),
        max_position_embeddings=262144,
    )
    del checkpoint.config["eagle_config"]
    return checkpoint


def torchspec_mla_verbatim() -> Checkpoint:
    """The MLA template itself: its positions are left to the config class."""
    checkpoint = torchspec_mla()
    config = checkpoint.config
    del config["max_position_embeddings"], config["tie_word_embeddings"]
    config["rope_scaling"] |= {"beta_fast": 1.0}
    config |= {"num_key_value_heads": 64, **KIMI_TOKENS, "pad_token_id": 0}
    return checkpoint


def torchspec_mha_verbatim() -> Checkpoint:
    """The MHA template itself: no draft_vocab_size."""
    checkpoint = torchspec_mha()
    del checkpoint.config["draft_vocab_size"]
    checkpoint.config |= {
        **KIMI_TOKENS,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "max_window_layers": 36,
        "rms_norm_eps": 1e-6,
        "sliding_window": None,
        "transformers_version": "4.51.0",
        "use_cache": True,
        "use_sliding_window": False,
    }
    return checkpoint


def specforge_verbatim() -> Checkpoint:
    """SpecForge's template for DeepSeek-V3: Llama 3's token ids, and no head_dim."""
    checkpoint = llama(
        hidden=7168,
        inner=40960,
        heads=56,
        groups=8,
        head=128,
        vocab=129280,
        draft_vocab=32000,
        max_position_embeddings=163840,
        torch_dtype="float16",
        bos_token_id=128000,
        eos_token_id=128001,
        pad_token_id=0,
        initializer_range=0.02,
        transformers_version="4.28.1",
        use_cache=True,
        eagle_config={
            "eagle_aux_hidden_state_layer_ids": [1, 29, 57],
            "use_aux_hidden_state": True,
        },
    )
    del checkpoint.config["head_dim"], checkpoint.config["rope_theta"]
    return checkpoint


def reduced_mha() -> Checkpoint:
    """The shape of AQ-MedAI/Kimi-K25-eagle3: 32000 tokens, d2t, t2d, no embedding."""
    return llama(
        hidden=7168,
        inner=12288,
        heads=64,
        groups=64,
        head=128,
        vocab=163840,
        draft_vocab=32000,
        max_position_embeddings=262144,
        eagle_config={
            "eagle_aux_hidden_state_layer_ids": [1, 29, 57],
            "use_aux_hidden_state": True,
        },
    )


def modelopt_mla() -> Checkpoint:
    """Model-Optimizer's MLA export: more keys in eagle_config, no embedding."""
    checkpoint = torchspec_mla()
    del checkpoint.tensors["embed_tokens.weight"]
    checkpoint.config["eagle_config"] |= {
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    }
    return checkpoint


TEMPLATES = {
    "torchspec-mla": torchspec_mla,
    "torchspec-mha": torchspec_mha,
    "reduced-mha": reduced_mha,
    "modelopt-mla": modelopt_mla,
}
VERBATIM = {
    "torchspec-mla": torchspec_mla_verbatim,
    "torchspec-mha": torchspec_mha_verbatim,
    "specforge": specforge_verbatim,
}
"""Configs as the trainers' repositories have them, before their exporters fill them in."""
