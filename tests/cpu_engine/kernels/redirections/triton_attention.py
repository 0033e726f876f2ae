"""Attention of the Triton backend in torch, far faster than interpreted Triton.

``layers/attention/triton_ops``, 0.5.9 to 0.5.15.post1: later releases serve on CPU with
the kernels of ``intel_amx`` instead.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from redirections.after_import import after_import

_FOLDER = "sglang.srt.layers.attention.triton_ops"
_UNSUPPORTED = {"sinks": None, "sliding_window_size": -1, "page_size": 1}


def register() -> None:
    after_import(f"{_FOLDER}.decode_attention", _decode)
    after_import(f"{_FOLDER}.extend_attention", _extend)


def _decode(module: Any) -> None:
    module.decode_attention_fwd = _by_name(module.decode_attention_fwd, _decode_attention)


def _extend(module: Any) -> None:
    module.extend_attention_fwd = _by_name(module.extend_attention_fwd, _extend_attention)


def _by_name(
    original: Callable[..., None], replacement: Callable[[dict[str, Any]], None]
) -> Callable[..., None]:
    """Call ``replacement`` with the arguments by name: their order differs by release."""
    signature = inspect.signature(original)

    @wraps(original)
    def redirected(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, expected in _UNSUPPORTED.items():
            if bound.arguments.get(name, expected) != expected:
                raise NotImplementedError(f"attention with {name}")
        replacement(bound.arguments)

    return redirected


def _decode_attention(a: dict[str, Any]) -> None:
    from sgl_kernel.attention import attend

    query, output = a["q"], a["o"]
    bounds = a["kv_indptr"][: query.shape[0] + 1].tolist()
    for row in range(query.shape[0]):
        seen = a["kv_indices"][bounds[row] : bounds[row + 1]]
        output[row] = attend(
            query[row : row + 1],
            a["k_buffer"][seen],
            a["v_buffer"][seen],
            None,
            a["sm_scale"],
            a["logit_cap"],
        )[0]


def _extend_attention(a: dict[str, Any]) -> None:
    import torch
    from sgl_kernel.attention import attend

    mask = a["custom_mask"]
    query_bounds, seen_bounds = a["qo_indptr"].tolist(), a["kv_indptr"].tolist()
    for row in range(len(query_bounds) - 1):
        own = slice(query_bounds[row], query_bounds[row + 1])
        seen = a["kv_indices"][seen_bounds[row] : seen_bounds[row + 1]]
        key, value, new = a["k_extend"][own], a["v_extend"][own], own.stop - own.start
        if seen.numel():
            key = torch.cat([a["k_buffer"][seen], key])
            value = torch.cat([a["v_buffer"][seen], value])
        visible = torch.ones(new, key.shape[0], dtype=torch.bool)
        if mask is not None:
            first = int(a["mask_indptr"][row])
            square = mask[first : first + visible.numel()].view(visible.shape)
            visible[:, seen.numel() :] = square[:, seen.numel() :]
        elif a["is_causal"]:
            visible = visible.tril(seen.numel())
        a["o_extend"][own] = attend(
            a["q_extend"][own], key, value, visible, a["sm_scale"], a["logit_cap"]
        )
