"""Tiny targets around other language models, with random weights, written where they are needed.

They have the width and the vocabulary of the shipped drafters, so that those can be served with
them: what they draft is rejected mostly, which is no matter where states and tokens are compared.
Weights of towers for images or sound are left out: no test sends any.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tiny_models.paths import CHECKPOINTS, TARGET

LAYERS = 8
_HIDDEN, _VOCABULARY, _HEADS, _GROUPS, _HEAD_DIM, _INNER = 128, 1024, 4, 2, 32, 256
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "kimi_k25_processor.py",
)


def write_target(folder: Path, config: dict[str, Any], prefix: str, **parts: bool) -> Path:
    """Write a checkpoint whose language model has Llama's names behind ``prefix``.

    Args:
        folder: where; must not exist.
        config: its ``config.json``.
        prefix: of the names of weights, such as ``language_model.``.
        parts: ``bias`` of the projections, ``qk_norm`` of queries and keys.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    for name in _COPIED:
        shutil.copy(CHECKPOINTS / TARGET / name, folder / name)
    tensors = {prefix + name: value for name, value in _language_model(**parts)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def text_config(model_type: str, architecture: str, **more: Any) -> dict[str, Any]:
    """Return the part of a config that describes the language model."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": _VOCABULARY,
        "hidden_size": _HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _GROUPS,
        "head_dim": _HEAD_DIM,
        "intermediate_size": _INNER,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        **more,
    }


def qwen2_audio(folder: Path) -> Path:
    """Write a Qwen2-Audio: a wrapper around ``Qwen2ForCausalLM``."""
    audio = {
        "model_type": "qwen2_audio_encoder",
        "d_model": 64,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "num_mel_bins": 16,
    }
    config = {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "model_type": "qwen2_audio",
        "torch_dtype": "bfloat16",
        "audio_token_index": 5,
        "audio_config": audio,
        "text_config": text_config("qwen2", "Qwen2ForCausalLM"),
    }
    return write_target(folder, config, "language_model.", bias=True)


def qwen3_vl(folder: Path) -> Path:
    """Write a Qwen3-VL: a class with its own head around ``Qwen3LLMModel``."""
    vision = {
        "model_type": "qwen3_vl",
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": _HIDDEN,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 64,
    }
    text = text_config(
        "qwen3_vl_text",
        "Qwen3ForCausalLM",
        rope_scaling={
            "mrope_interleaved": True,
            "mrope_section": [6, 5, 5],
            "rope_type": "default",
        },
    )
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "torch_dtype": "bfloat16",
        "image_token_id": 5,
        "video_token_id": 6,
        "vision_start_token_id": 7,
        "vision_end_token_id": 8,
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": vision,
    }
    return write_target(folder, config, "", qk_norm=True)


def glm_asr(folder: Path) -> Path:
    """Write a GLM-ASR: a wrapper around ``LlamaForCausalLM``."""
    audio = {
        "model_type": "glmasr_encoder",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_mel_bins": 16,
    }
    config = {
        "architectures": ["GlmAsrForConditionalGeneration"],
        "model_type": "glmasr",
        "torch_dtype": "bfloat16",
        "audio_token_id": 5,
        "tie_word_embeddings": False,
        "audio_config": audio,
        "text_config": text_config("llama", "LlamaForCausalLM"),
    }
    return write_target(folder, config, "language_model.")


def kimi_vl(folder: Path) -> Path:
    """Write a Kimi-VL: a wrapper around ``DeepseekV2ForCausalLM``, with queries of full rank.

    All else of its language model is the shipped tiny Kimi-K2.5's.
    """
    source = CHECKPOINTS / TARGET
    folder.mkdir(parents=True)
    for name in _COPIED:
        shutil.copy(source / name, folder / name)
    kimi = json.loads((source / "config.json").read_text())
    text = kimi["text_config"]
    config = {
        **{key: kimi[key] for key in ("torch_dtype", "bos_token_id", "eos_token_id")},
        "architectures": ["KimiVLForConditionalGeneration"],
        "model_type": "kimi_vl",
        "media_placeholder_token_id": kimi["media_placeholder_token_id"],
        "pad_token_id": kimi["pad_token_id"],
        "tie_word_embeddings": False,
        "text_config": {**text, "model_type": "deepseek_v3", "q_lora_rank": None},
        "vision_config": {
            "model_type": "moonvit",
            "patch_size": 14,
            "init_pos_emb_height": 8,
            "init_pos_emb_width": 8,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "hidden_size": 64,
            "intermediate_size": 128,
            "merge_kernel_size": [2, 2],
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _copy_tensors(
        source / "model.safetensors",
        folder / "model.safetensors",
        lambda name: name.startswith("language_model.") and ".self_attn.q_" not in name,
    )
    random = np.random.default_rng(1)
    width = text["num_attention_heads"] * (text["qk_nope_head_dim"] + text["qk_rope_head_dim"])
    queries = {
        f"language_model.model.layers.{index}.self_attn.q_proj.weight": (
            random.standard_normal((width, _HIDDEN)) / np.sqrt(_HIDDEN)
        ).astype(np.float32)
        for index in range(text["num_hidden_layers"])
    }
    save_file(queries, folder / "queries.safetensors", metadata={"format": "pt"})
    return folder


def _copy_tensors(source: Path, target: Path, wanted: Callable[[str], bool]) -> None:
    """Copy the tensors with a ``wanted`` name, whatever their type (no torch here)."""
    raw = source.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    header: dict[str, Any] = json.loads(raw[8:begin])
    kept: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, about in header.items():
        if wanted(name):
            first, last = (begin + offset for offset in about["data_offsets"])
            kept[name] = {**about, "data_offsets": [len(data), len(data) + last - first]}
            data += raw[first:last]
    text = json.dumps(kept).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _language_model(
    *, bias: bool = False, qk_norm: bool = False
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield name and weight, float32, as wide as lets the states of all layers differ."""
    random = np.random.default_rng(1)

    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def vector(size: int) -> np.ndarray[Any, Any]:
        return (0.1 * random.standard_normal(size)).astype(np.float32)

    yield "model.embed_tokens.weight", matrix(_VOCABULARY, _HIDDEN) * np.float32(np.sqrt(_HIDDEN))
    for index in range(LAYERS):
        layer = f"model.layers.{index}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{norm}.weight", 1 + vector(_HIDDEN)
        for name, heads in (("q", _HEADS), ("k", _GROUPS), ("v", _GROUPS)):
            yield f"{layer}self_attn.{name}_proj.weight", matrix(heads * _HEAD_DIM, _HIDDEN)
            if bias:
                yield f"{layer}self_attn.{name}_proj.bias", vector(heads * _HEAD_DIM)
            if qk_norm and name != "v":
                yield f"{layer}self_attn.{name}_norm.weight", 1 + vector(_HEAD_DIM)
        yield f"{layer}self_attn.o_proj.weight", matrix(_HIDDEN, _HEADS * _HEAD_DIM)
        for name in ("gate", "up"):
            yield f"{layer}mlp.{name}_proj.weight", matrix(_INNER, _HIDDEN)
        yield f"{layer}mlp.down_proj.weight", matrix(_HIDDEN, _INNER)
    yield "model.norm.weight", 1 + vector(_HIDDEN)
    yield "lm_head.weight", matrix(_VOCABULARY, _HIDDEN)
