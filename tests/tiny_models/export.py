"""Writing and reading checkpoint folders in the Hugging Face layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tiny_models.drafters import (
    Drafter,
    LlamaDrafter,
    LlamaDrafterConfig,
    MLADrafter,
    mla_drafter_to_hf,
)
from tiny_models.target import TargetModel, TextConfig
from tiny_models.tokenizer import (
    BOS_ID,
    EOS_ID,
    IM_END_ID,
    MEDIA_PAD_ID,
    save_tokenizer,
)
from tiny_models.vision import VisionConfig, vision_tensors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LANGUAGE_PREFIX = "language_model."
REMOTE_CODE = Path(__file__).parent / "remote_code" / "kimi_k25_processor.py"
WEIGHTS = "model.safetensors"


def target_to_hf(text: TextConfig, vision: VisionConfig) -> dict[str, Any]:
    """``config.json`` of the target."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "torch_dtype": "bfloat16",
        "media_placeholder_token_id": MEDIA_PAD_ID,
        "use_unified_vision_chunk": True,
        "video_placeholder": "<|kimi_k25_video_placeholder|>",
        "ignore_index": -100,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": EOS_ID,
        "tie_word_embeddings": False,
        "text_config": text.to_hf(),
        "vision_config": vision.to_hf(),
    }


def save_target(model: TargetModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Everything a server needs to load the target."""
    vision = VisionConfig(text_hidden_size=model.config.hidden_size)
    language = {LANGUAGE_PREFIX + k: v for k, v in model.state_dict().items()}
    save_tensors(
        folder,
        target_to_hf(model.config, vision),
        language | vision_tensors(vision, seed=3),
    )
    write_processing(folder, vision.media_proc_cfg())
    shutil.copyfile(REMOTE_CODE, folder / REMOTE_CODE.name)
    save_tokenizer(tokenizer, folder, model.config.max_position_embeddings)


def write_processing(folder: Path, media: dict[str, Any]) -> None:
    """The files on generation and on images that both targets have."""
    write_json(
        folder / "generation_config.json",
        {"bos_token_id": BOS_ID, "eos_token_id": [EOS_ID, IM_END_ID], "pad_token_id": EOS_ID},
    )
    write_json(
        folder / "preprocessor_config.json",
        {
            "auto_map": {"AutoProcessor": f"{REMOTE_CODE.stem}.KimiK25Processor"},
            "media_proc_cfg": media,
        },
    )


def language_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of an exported target's language model, without the prefix."""
    return {
        name.removeprefix(LANGUAGE_PREFIX): tensor
        for name, tensor in load_file(folder / WEIGHTS).items()
        if name.startswith(LANGUAGE_PREFIX)
    }


def save_drafter(drafter: Drafter, layer_ids: tuple[int, ...], folder: Path) -> None:
    """A drafter with ``layer_ids`` in its configuration."""
    if isinstance(drafter, LlamaDrafter):
        config = drafter.config.to_hf(layer_ids)
    elif isinstance(drafter, MLADrafter):
        config = mla_drafter_to_hf(drafter.config, layer_ids)
    else:
        raise TypeError(f"no checkpoint layout for {type(drafter).__name__}")
    save_tensors(folder, config, drafter.tensors())


def load_target(folder: Path) -> TargetModel:
    """The twin of an exported target, in float32."""
    model = TargetModel(TextConfig())
    model.load_state_dict(language_tensors(folder))
    return model.eval().requires_grad_(False)


def load_drafter(folder: Path) -> Drafter:
    """The twin of an exported drafter of either kind, in float32."""
    tensors = load_file(folder / WEIGHTS)
    drafter: Drafter
    if "d2t" in tensors:
        d2t = tensors.pop("d2t")
        del tensors["t2d"]
        drafter = LlamaDrafter(LlamaDrafterConfig(), d2t + torch.arange(len(d2t)))
    else:
        drafter = MLADrafter(TextConfig())
    drafter.load_state_dict(tensors)
    return drafter.eval().requires_grad_(False)


def _stored(name: str, tensor: Tensor) -> Tensor:
    """Weights as bfloat16; the experts' selection bias and id tables as they are."""
    keep = name.endswith("e_score_correction_bias") or not tensor.is_floating_point()
    tensor = tensor if keep else tensor.to(torch.bfloat16)
    return tensor.detach().contiguous().clone()


def save_tensors(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """A folder with ``config.json`` and the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    stored = {name: _stored(name, tensor) for name, tensor in tensors.items()}
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})


def write_json(path: Path, content: dict[str, Any]) -> None:
    """JSON as the checkpoints have it."""
    path.write_text(json.dumps(content, indent=2) + "\n")
