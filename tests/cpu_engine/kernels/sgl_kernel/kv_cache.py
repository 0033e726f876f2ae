"""Moving key-value rows."""

import ctypes

import torch
from torch import Tensor


def copy_all_layer_kv_cache_cpu(
    addresses: Tensor, strides: Tensor, targets: Tensor, sources: Tensor
) -> None:
    """Copy slots within every layer's buffer: accepted nodes of a tree move to the front.

    Buffers come as raw addresses with their bytes a slot.
    """
    if sources.numel() == 0:
        return
    slots = int(torch.maximum(sources.max(), targets.max())) + 1
    for address, stride in zip(addresses.tolist(), strides.tolist(), strict=True):
        raw = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        rows = torch.frombuffer(raw, dtype=torch.uint8).view(slots, stride)
        rows[targets.long()] = rows[sources.long()]
