"""The tiny Kimi-K3's vision tower and projector: configuration and random weights.

They are not trained, and no test sends an image: they are there because the published checkpoint
has them, so that SGLang's wrapper loads whole.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class K3VisionConfig:
    """Geometry of the tower."""

    hidden_size: int = 32
    num_attention_heads: int = 2
    num_hidden_layers: int = 1
    intermediate_size: int = 64
    patch_size: int = 14
    pos_emb_size: int = 4
    merge_size: int = 2
    text_hidden_size: int = 128

    def to_hf(self) -> dict[str, Any]:
        """The ``vision_config`` block of ``config.json``."""
        return {
            "vt_hidden_size": self.hidden_size,
            "vt_num_attention_heads": self.num_attention_heads,
            "vt_num_hidden_layers": self.num_hidden_layers,
            "vt_intermediate_size": self.intermediate_size,
            "qkv_hidden_size": self.hidden_size,
            "mm_hidden_size": self.hidden_size,
            "text_hidden_size": self.text_hidden_size,
            "patch_size": self.patch_size,
            "init_pos_emb_height": self.pos_emb_size,
            "init_pos_emb_width": self.pos_emb_size,
            "init_pos_emb_time": 4,
            "pos_emb_type": "divided_fixed",
            "merge_kernel_size": [self.merge_size, self.merge_size],
            "merge_type": "sd2_tpool",
            "norm_type": "rmsnorm",
            "attn_bias": False,
            "linear_bias": False,
            "patch_embed_proj_bias": False,
            "projector_ln_eps": 1e-5,
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


def k3_vision_tensors(config: K3VisionConfig, seed: int) -> dict[str, Tensor]:
    """Random weights; norm weights are one."""
    size, inner, merged = (
        config.hidden_size,
        config.intermediate_size,
        config.hidden_size * config.merge_size**2,
    )
    grid, patch = config.pos_emb_size, config.patch_size
    shapes: dict[str, tuple[int, ...]] = {
        "vision_tower.patch_embed.proj.weight": (size, 3, patch, patch),
        "vision_tower.patch_embed.pos_emb.weight": (grid, grid, size),
        "vision_tower.encoder.final_layernorm.weight": (size,),
        "mm_projector.proj.0.weight": (merged, merged),
        "mm_projector.proj.2.weight": (config.text_hidden_size, merged),
        "mm_projector.post_norm.weight": (config.text_hidden_size,),
    }
    for index in range(config.num_hidden_layers):
        block = f"vision_tower.encoder.blocks.{index}"
        shapes |= {
            f"{block}.norm0.weight": (size,),
            f"{block}.norm1.weight": (size,),
            f"{block}.wqkv.weight": (3 * size, size),
            f"{block}.wo.weight": (size, size),
            f"{block}.mlp.fc0.weight": (inner, size),
            f"{block}.mlp.fc1.weight": (size, inner),
        }
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=generator) * 0.02
        for name, shape in shapes.items()
    }
