"""Processor of the tiny Kimi-K2.5: text and still images.

It has the interface of the processor in the published repositories that SGLang uses:
``media_processor.media_proc_cfg``, ``media_processor.media_tokens_calculator`` and a
call that takes ``text`` and ``medias``.
"""

import json
import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer, BatchFeature
from transformers.processing_utils import ProcessorMixin


class MediaProcessor:
    """Resizes, pads, normalizes and cuts images into patches."""

    def __init__(self, media_proc_cfg: dict[str, Any]) -> None:
        self.media_proc_cfg = media_proc_cfg

    def _sizes(self, image: Image.Image) -> tuple[list[int], list[int]]:
        """New (width, height) of an image and the same rounded up to whole tokens."""
        cfg = self.media_proc_cfg
        patch, side = cfg["patch_size"], cfg["patch_limit_on_one_side"]
        width, height = image.size
        patches = max(1, width // patch) * max(1, height // patch)
        scale = min(
            1.0,
            math.sqrt(cfg["in_patch_limit"] / patches),
            side * patch / width,
            side * patch / height,
        )
        size = [min(max(1, int(v * scale)), side * patch) for v in (width, height)]
        factor = cfg["merge_kernel_size"] * patch
        return size, [-(-value // factor) * factor for value in size]

    def media_tokens_calculator(self, media: dict[str, Any]) -> int:
        """The number of placeholder tokens of ``{"type": "image", "image": ...}``."""
        cfg = self.media_proc_cfg
        factor = cfg["merge_kernel_size"] * cfg["patch_size"]
        _, (width, height) = self._sizes(media["image"])
        return (width // factor) * (height // factor)

    def _patches(self, image: Image.Image) -> tuple[np.ndarray, tuple[int, int, int]]:
        """Pixel patches [N, 3, patch, patch] of an image and its grid (t, h, w)."""
        cfg = self.media_proc_cfg
        size, (width, height) = self._sizes(image)
        canvas = np.zeros((height, width, 3), dtype=np.float32)
        resized = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        canvas[: size[1], : size[0]] = np.asarray(resized, dtype=np.float32) / 255.0
        canvas = (canvas - np.float32(cfg["image_mean"])) / np.float32(cfg["image_std"])
        patch = cfg["patch_size"]
        rows, columns = height // patch, width // patch
        blocks = canvas.reshape(rows, patch, columns, patch, 3).transpose(0, 2, 4, 1, 3)
        return blocks.reshape(-1, 3, patch, patch), (1, rows, columns)

    def preprocess(self, medias: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """``pixel_values`` [patches, 3, patch, patch] and ``grid_thws`` [images, 3]."""
        images = [self._patches(media["image"]) for media in medias]
        return {
            "pixel_values": torch.from_numpy(np.concatenate([patches for patches, _ in images])),
            "grid_thws": torch.tensor([grid for _, grid in images], dtype=torch.int64),
        }


class KimiK25Processor(ProcessorMixin):
    """Tokenizer and media processor."""

    attributes: ClassVar[list[str]] = ["tokenizer"]
    tokenizer_class = "AutoTokenizer"

    def __init__(self, tokenizer: Any, media_proc_cfg: dict[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.chat_template = getattr(tokenizer, "chat_template", None)
        self.media_processor = MediaProcessor(media_proc_cfg)
        self.image_processor = self.media_processor

    @classmethod
    def from_pretrained(cls, folder: str, **kwargs: Any) -> "KimiK25Processor":
        config = json.loads((Path(folder) / "preprocessor_config.json").read_text())
        return cls(AutoTokenizer.from_pretrained(folder), config["media_proc_cfg"])

    def __call__(
        self,
        text: str | list[str],
        medias: list[dict[str, Any]] | None = None,
        return_tensors: str = "pt",
        **kwargs: Any,
    ) -> BatchFeature:
        """Tokens of ``text``, whose placeholders are expanded already, and patches."""
        padding = kwargs.get("padding", False)
        tokens = self.tokenizer(text, padding=padding, return_tensors=return_tensors)
        pixels = self.media_processor.preprocess(medias) if medias else {}
        return BatchFeature({**tokens, **pixels})
