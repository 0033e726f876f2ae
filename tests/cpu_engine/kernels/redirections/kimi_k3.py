"""Kimi-K3 without a GPU, 0.5.17 and later: for tiny models whose layers are all latent attention.

Nothing here touches what the model computes, captures or hands to a drafter.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from redirections.after_import import after_import


def register() -> None:
    after_import("sglang.srt.configs.hybrid_arch", _no_linear_layers)
    after_import("sglang.srt.layers.attn_residual", _mix_in_torch)
    after_import("sglang.srt.models.kimi_k3", _no_streams)


def _no_linear_layers(module: Any) -> None:
    """``configs/hybrid_arch.py``: a Kimi-K3 without KDA layers needs no KDA backend.

    SGLang builds one for every Kimi-K3, with a pool for its states; its kernels are Triton's.
    """
    original = module.kimi_linear_config

    @wraps(original)
    def kimi_linear_config(model_config: Any) -> Any:
        config = original(model_config)
        return config if getattr(config, "is_linear_attn", True) else None

    module.kimi_linear_config = kimi_linear_config


def _mix_in_torch(module: Any) -> None:
    """``layers/attn_residual.py``: that file's own reference in place of its Triton kernels."""
    module._mix_fused = module.aggregate_stream_torch
    # 0.5.17 and 0.5.18 ask the GPU first whether it has a faster kernel.
    module._FAST_SUPPORTED = False


def _no_streams(module: Any) -> None:
    """``models/kimi_k3.py``: the model makes CUDA streams that it never uses on a CPU."""
    model = module.KimiK3LinearModel
    model.__init__ = _without_streams(model.__init__)


class _Stream:
    """Stands in for ``torch.cuda.Stream``."""


def _without_streams(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        import torch

        real, torch.cuda.Stream = torch.cuda.Stream, _Stream
        try:
            original(self, *args, **kwargs)
        finally:
            torch.cuda.Stream = real

    return __init__
