"""Emulates FlashInfer's fused all-reduce, which SGLang takes on SM90 and SM100 with TP > 1.

``layers/communicator.py`` decides on it (``apply_flashinfer_allreduce_fusion``) and
``layers/flashinfer_comm_fusion.py`` calls the kernel; 0.5.9 to 0.5.20.
"""

from typing import Any

from redirections.after_import import after_import


def register() -> None:
    after_import("sglang.srt.layers.communicator", _always_fuse)
    after_import("sglang.srt.layers.flashinfer_comm_fusion", _fuse_in_torch)


def _always_fuse(module: Any) -> None:
    module.apply_flashinfer_allreduce_fusion = lambda batch_size: batch_size > 0


def _fuse_in_torch(module: Any) -> None:
    import torch

    def allreduce_residual_rmsnorm(
        input_tensor: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float = 1e-6,
        **_options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return norm(all_reduce(input) + residual) and the sum, both [tokens, hidden]."""
        from sglang.srt.distributed import tensor_model_parallel_all_reduce

        total = tensor_model_parallel_all_reduce(input_tensor) + residual
        scaled = total.float() * torch.rsqrt(total.float().pow(2).mean(-1, keepdim=True) + eps)
        return scaled.to(total.dtype) * weight, total

    module.flashinfer_allreduce_residual_rmsnorm = allreduce_residual_rmsnorm
