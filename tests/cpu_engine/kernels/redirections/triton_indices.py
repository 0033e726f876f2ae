"""Triton kernels that fill index tables, in torch: interpreted, they take most of a step.

The kernels are the same from 0.5.9 to 0.5.15.post1.  They are in
``speculative/spec_utils.py`` and ``layers/attention/utils.py`` to 0.5.12.post1, then in
``speculative/triton_ops/cache_locs.py`` and ``layers/attention/triton_ops/kv_indices.py``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from redirections.after_import import after_import


def register() -> None:
    after_import("sglang.srt.layers.attention.utils", _redirect)
    after_import("sglang.srt.layers.attention.triton_ops.kv_indices", _redirect)
    after_import("sglang.srt.speculative.spec_utils", _redirect)
    after_import("sglang.srt.speculative.triton_ops.cache_locs", _redirect)


def _redirect(module: Any) -> None:
    for name, function in (
        ("create_flashinfer_kv_indices_triton", _kv_indices),
        ("generate_draft_decode_kv_indices", _draft_kv_indices),
        ("assign_req_to_token_pool", _assign_slots),
    ):
        if hasattr(module, name):
            setattr(module, name, _Kernel(function))


class _Kernel:
    """Stands for a compiled kernel: ``kernel[grid](...)`` calls ``function(grid, ...)``."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._function, grid)


def _kv_indices(
    grid: tuple[int, ...],
    req_to_token: Any,
    requests: Any,
    lengths: Any,
    indptr: Any,
    starts: Any,
    indices: Any,
    _stride: int,
) -> None:
    """The slots of ``length`` positions of each request from its start on, packed."""
    for row in range(grid[0]):
        start = 0 if starts is None else int(starts[row])
        at, length = int(indptr[row]), int(lengths[row])
        indices[at : at + length] = req_to_token[int(requests[row]), start : start + length]


def _draft_kv_indices(
    grid: tuple[int, ...],
    requests: Any,
    req_to_token: Any,
    lengths: Any,
    indices: Any,
    indptr: Any,
    _positions: Any,
    *constants: int,
) -> None:
    """For every step of the draft: what each branch sees, the sequence and its own slots."""
    num_steps, num_seqs, topk = grid
    if constants[-1] != 1:
        raise NotImplementedError("drafting with pages of more than one token")
    for step in range(num_steps):
        at = 0
        for row in range(num_seqs):
            length = int(lengths[row])
            slots = req_to_token[int(requests[row])]
            for branch in range(topk):
                own = length + branch * num_steps
                indices[step, at : at + length] = slots[:length]
                at += length
                indices[step, at : at + step + 1] = slots[own : own + step + 1]
                at += step + 1
                indptr[step, row * topk + branch + 1] = at


def _assign_slots(
    _grid: tuple[int, ...],
    requests: Any,
    req_to_token: Any,
    starts: Any,
    ends: Any,
    slots: Any,
    pool_len: int,
    _upper: int,
) -> None:
    """Enter freshly allocated slots for positions start..end of each request."""
    from sgl_kernel import assign_req_to_token_pool_cpu

    assign_req_to_token_pool_cpu(requests, req_to_token, starts, ends, slots, pool_len)
