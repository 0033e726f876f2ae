"""A tiny MoonViT3d tower and projector: configuration and random weights.

They are not trained.  They only have to load and to run, so that images can be sent.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class VisionConfig:
    """Geometry of the tower."""

    hidden_size: int = 64
    num_attention_heads: int = 2
    num_hidden_layers: int = 1
    intermediate_size: int = 128
    patch_size: int = 14
    pos_emb_size: int = 8
    pos_emb_time: int = 4
    merge_size: int = 2
    text_hidden_size: int = 128

    def to_hf(self) -> dict[str, Any]:
        """The ``vision_config`` block of ``config.json``.

        Sizes come in both spellings: the tower reads the plain names, the projector
        those of the published configuration, which start with ``vt_``.
        """
        sizes = {
            "hidden_size": self.hidden_size,
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "intermediate_size": self.intermediate_size,
        }
        return {
            **sizes,
            **{f"vt_{name}": value for name, value in sizes.items()},
            "patch_size": self.patch_size,
            "init_pos_emb_height": self.pos_emb_size,
            "init_pos_emb_width": self.pos_emb_size,
            "init_pos_emb_time": self.pos_emb_time,
            "pos_emb_type": "divided_fixed",
            "merge_kernel_size": [self.merge_size, self.merge_size],
            "merge_type": "sd2_tpool",
            "video_attn_type": "spatial_temporal",
            "mm_projector_type": "patchmerger",
            "mm_hidden_size": self.hidden_size,
            "projector_hidden_act": "gelu",
            "projector_ln_eps": 1e-5,
            "text_hidden_size": self.text_hidden_size,
        }

    def media_proc_cfg(self) -> dict[str, Any]:
        """The ``media_proc_cfg`` block of ``preprocessor_config.json``."""
        return {
            "patch_size": self.patch_size,
            "merge_kernel_size": self.merge_size,
            "in_patch_limit": self.pos_emb_size**2,
            "patch_limit_on_one_side": self.pos_emb_size,
            "fixed_output_tokens": None,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        }


def vision_shapes(config: VisionConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of tower and projector."""
    size, inner = config.hidden_size, config.intermediate_size
    merged = size * config.merge_size**2
    patch, grid = config.patch_size, config.pos_emb_size
    shapes: dict[str, tuple[int, ...]] = {
        "vision_tower.patch_embed.proj.weight": (size, 3, patch, patch),
        "vision_tower.patch_embed.proj.bias": (size,),
        "vision_tower.patch_embed.pos_emb.weight": (grid, grid, size),
        "vision_tower.encoder.final_layernorm.weight": (size,),
        "vision_tower.encoder.final_layernorm.bias": (size,),
        "mm_projector.pre_norm.weight": (size,),
        "mm_projector.pre_norm.bias": (size,),
        "mm_projector.proj.0.weight": (merged, merged),
        "mm_projector.proj.0.bias": (merged,),
        "mm_projector.proj.2.weight": (config.text_hidden_size, merged),
        "mm_projector.proj.2.bias": (config.text_hidden_size,),
    }
    linears = {
        "wqkv": (3 * size, size),
        "wo": (size, size),
        "mlp.fc0": (inner, size),
        "mlp.fc1": (size, inner),
    }
    for index in range(config.num_hidden_layers):
        block = f"vision_tower.encoder.blocks.{index}"
        for norm in ("norm0", "norm1"):
            shapes[f"{block}.{norm}.weight"] = (size,)
            shapes[f"{block}.{norm}.bias"] = (size,)
        for name, shape in linears.items():
            shapes[f"{block}.{name}.weight"] = shape
            shapes[f"{block}.{name}.bias"] = shape[:1]
    return shapes


def vision_tensors(config: VisionConfig, seed: int) -> dict[str, Tensor]:
    """Random weights; norm weights are one, biases zero."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in vision_shapes(config).items():
        if name.endswith("bias"):
            tensors[name] = torch.zeros(shape)
        elif len(shape) == 1:
            tensors[name] = torch.ones(shape)
        else:
            tensors[name] = torch.randn(shape, generator=generator) * 0.02
    return tensors
