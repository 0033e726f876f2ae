"""Writing and reading the tiny Kimi-K3's checkpoints."""

import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from tiny_models.export import (
    LANGUAGE_PREFIX,
    REMOTE_CODE,
    WEIGHTS,
    language_tensors,
    save_tensors,
    write_processing,
)
from tiny_models.k3_drafter import K3Drafter, drafter_config
from tiny_models.k3_target import K3TargetModel, K3TextConfig
from tiny_models.k3_vision import K3VisionConfig, k3_vision_tensors
from tiny_models.tokenizer import BOS_ID, EOS_ID, MEDIA_PAD_ID

_FROM_K25 = ("tokenizer.json", "tokenizer_config.json", REMOTE_CODE.name)


def target_to_hf(text: K3TextConfig, vision: K3VisionConfig) -> dict[str, Any]:
    """``config.json`` of the target."""
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "dtype": "bfloat16",
        "media_placeholder_token_id": MEDIA_PAD_ID,
        "ignore_index": -100,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": EOS_ID,
        "tie_word_embeddings": False,
        "text_config": text.to_hf(),
        "vision_config": vision.to_hf(),
    }


def save_k3_target(model: K3TargetModel, k25: Path, folder: Path) -> None:
    """Everything a server needs to load the target; the tokenizer is that of ``k25``."""
    vision = K3VisionConfig(text_hidden_size=model.config.hidden_size)
    language = {LANGUAGE_PREFIX + name: value for name, value in model.tensors().items()}
    config = target_to_hf(model.config, vision)
    save_tensors(folder, config, language | k3_vision_tensors(vision, seed=6))
    write_processing(folder, vision.media_proc_cfg())
    for name in _FROM_K25:
        shutil.copyfile(k25 / name, folder / name)


def save_k3_drafter(
    drafter: K3Drafter, target: K3TargetModel, layer_ids: tuple[int, ...], folder: Path
) -> None:
    """A drafter with ``layer_ids`` in its configuration, and its target's embedding."""
    embedding = {"embed_tokens.weight": target.model.embed_tokens.weight}
    save_tensors(folder, drafter.to_hf(layer_ids), drafter.tensors() | embedding)


def load_k3_target(folder: Path) -> K3TargetModel:
    """The twin of an exported target, in float32."""
    model = K3TargetModel(K3TextConfig())
    model.load_tensors(language_tensors(folder))
    return model.eval().requires_grad_(False)


def load_k3_drafter(folder: Path) -> K3Drafter:
    """The twin of an exported drafter, in float32."""
    drafter = K3Drafter(drafter_config(K3TextConfig()))
    tensors = load_file(folder / WEIGHTS)
    del tensors["embed_tokens.weight"]
    drafter.load_state_dict(tensors)
    return drafter.eval().requires_grad_(False)
