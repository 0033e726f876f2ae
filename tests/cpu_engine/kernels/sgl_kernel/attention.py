"""Attention over SGLang's paged key-value cache, one request at a time."""

from typing import Any

import torch
from torch import Tensor


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None,
    scale: float,
    logit_cap: float = 0.0,
) -> Tensor:
    """Grouped-query attention in float32.

    query [new, heads, width], key [seen, kv heads, width], value [seen, kv heads, value
    width], visible [new, seen] (None: everything); the result is [new, heads, value width].
    """
    new, heads, _ = query.shape
    kv_heads = key.shape[1]
    grouped = query.float().view(new, kv_heads, heads // kv_heads, -1).permute(1, 2, 0, 3)
    scores = grouped @ key.float().permute(1, 2, 0).unsqueeze(1) * scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    mixed = scores.softmax(-1) @ value.float().transpose(0, 1).unsqueeze(1)
    return mixed.permute(2, 0, 1, 3).reshape(new, heads, -1).to(query.dtype)


def decode_attention_cpu(*args: Any) -> None:
    """One new token a request: store its key and value, then attend.

    Called by ``layers/attention/intel_amx_backend.py`` (0.5.16+).  The two cache scales
    before the output exist from 0.5.20.
    """
    args = _without_scales(args, first=3)
    query, keys, values, output, new_key, new_value, slots, _scratch = args[:8]
    req_to_token, requests, seq_lens, scale, logit_cap, cross, window, *_ = args[8:]
    _refuse(cross, window)
    if new_key is not None:
        _store(keys, slots, new_key)
        if values.data_ptr() != keys.data_ptr():
            _store(values, slots, new_value)
    for row, (request, length) in enumerate(zip(requests.tolist(), seq_lens.tolist(), strict=True)):
        seen = req_to_token[request, :length]
        output[row] = attend(
            query[row : row + 1], keys[seen], values[seen], None, scale, logit_cap
        )[0]


def extend_attention_cpu(*args: Any) -> None:
    """Several new tokens a request: prefill, verify and draft extend.

    Called by ``layers/attention/intel_amx_backend.py`` (0.5.16+), which has stored the new
    keys and values already.  A sequence's first tokens take them from the arguments all
    the same: unabsorbed MLA attends to per-head ones that never reach the latent cache.
    A tree mask holds one square a request: what each new token sees among the new ones.
    The two cache scales exist from 0.5.20, the closing ``is_causal`` from 0.5.19.
    """
    args = _without_scales(args, first=6)
    query, new_key, new_value, output, keys, values = args[:6]
    req_to_token, requests, seq_lens, new_lens, starts = args[6:11]
    _longest, scale, logit_cap, cross, window, _encoder, sinks, tree_mask, *causal = args[11:]
    _refuse(cross, window, sinks)
    rows = zip(
        requests.tolist(), seq_lens.tolist(), new_lens.tolist(), starts.tolist(), strict=True
    )
    squares = 0
    for request, length, new, start in rows:
        own = slice(start, start + new)
        if new == length and new_key is not None:
            key = new_key[own].view(new, -1, query.shape[-1])
            value = new_value[own].view(new, -1, output.shape[-1])
        else:
            seen = req_to_token[request, :length]
            key, value = keys[seen], values[seen]
        visible = torch.ones(new, length, dtype=torch.bool)
        if tree_mask is not None:
            visible[:, length - new :] = tree_mask[squares : squares + new * new].view(new, new)
            squares += new * new
        elif all(causal):
            visible = visible.tril(length - new)
        output[own] = attend(query[own], key, value, visible, scale, logit_cap)


def _without_scales(args: tuple[Any, ...], first: int) -> tuple[Any, ...]:
    if not isinstance(args[first], float):
        return args
    if args[first : first + 2] != (1.0, 1.0):
        raise NotImplementedError("a scaled key-value cache")
    return args[:first] + args[first + 2 :]


def _refuse(cross: bool, window: int, sinks: Tensor | None = None) -> None:
    if cross or window > 0 or sinks is not None:
        raise NotImplementedError("cross attention, sliding windows and attention sinks")


def _store(buffer: Tensor, slots: Tensor, rows: Tensor) -> None:
    buffer[slots] = rows.view(-1, *buffer.shape[1:]).to(buffer.dtype)
