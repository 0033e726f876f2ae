"""EAGLE on CPU for the releases that have no CPU branch for it, 0.5.9 to 0.5.15.post1."""

from typing import Any

from redirections.after_import import after_import


def register() -> None:
    after_import("sglang.srt.speculative.eagle_utils", _tree_kernels)
    after_import("sglang.srt.speculative.eagle_info_v2", _extend_slots)
    after_import("sglang.srt.speculative.triton_ops.cache_locs", _extend_slots)


def _tree_kernels(module: Any) -> None:
    """``speculative/eagle_utils.py``: the CUDA branch, with the kernels in torch."""
    import sgl_kernel

    module._is_cuda = True
    module.sgl_build_tree_kernel_efficient = sgl_kernel.build_tree_kernel_efficient


def _extend_slots(module: Any) -> None:
    """``assign_extend_cache_locs_func``: its branch of interpreted Triton, not none.

    It is in ``speculative/eagle_info_v2.py`` to 0.5.12.post1, then until 0.5.15.post1 in
    ``speculative/triton_ops/cache_locs.py``.
    """
    module._is_cuda = True
