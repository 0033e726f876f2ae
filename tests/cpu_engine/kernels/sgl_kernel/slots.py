"""Bookkeeping of cache slots: ``req_to_token[request, position]`` is a slot.

Every function but ``build_draft_decode_metadata_cpu`` writes into an argument.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    requests: Tensor,
    req_to_token: Tensor,
    starts: Tensor,
    ends: Tensor,
    slots: Tensor,
    _pool_len: int,
) -> None:
    """Enter freshly allocated slots for positions start..end of each request."""
    taken = 0
    for request, start, end in _rows(requests, starts, ends):
        req_to_token[request, start:end] = slots[taken : taken + end - start]
        taken += end - start


def assign_extend_cache_locs_cpu(
    requests: Tensor,
    req_to_token: Tensor,
    starts: Tensor,
    ends: Tensor,
    slots: Tensor,
    _pool_len: int,
) -> None:
    """Read the slots of positions start..end of each request, packed."""
    taken = 0
    for request, start, end in _rows(requests, starts, ends):
        slots[taken : taken + end - start] = req_to_token[request, start:end]
        taken += end - start


def assign_draft_cache_locs_contiguous_cpu(
    requests: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
    _pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """The slots the draft writes: those right after each sequence."""
    count = topk * num_steps
    for row, (request, start) in enumerate(_rows(requests, seq_lens)):
        slots[row * count : (row + 1) * count] = req_to_token[request, start : start + count]


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    requests: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """A ``req_to_token`` row for every branch: the sequence, then the branch's own slots."""
    table = req_to_token.new_zeros(requests.numel() * topk, pool_len)
    for row, (request, length) in enumerate(_rows(requests, seq_lens)):
        for branch in range(topk):
            own = length + branch * num_steps
            line = table[row * topk + branch]
            line[:length] = req_to_token[request, :length]
            line[length : length + num_steps] = req_to_token[request, own : own + num_steps]
    return table


def fill_bonus_tokens_cpu(
    accepted: Tensor, accept_lens: Tensor, bonus: Tensor, stride: int
) -> None:
    """The last accepted token of each request."""
    rows = torch.arange(accept_lens.numel())
    bonus.copy_(accepted.view(-1, stride)[rows, accept_lens.long() - 1])


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, slots: Tensor, accepted: Tensor) -> None:
    """Pack the slots of accepted tokens (index not -1) to the front."""
    index = accept_index.flatten()
    kept = slots[index[index >= 0].long()]
    accepted[: kept.numel()] = kept


def rotate_input_ids_cpu(*_args: object) -> None:
    """Imported with the others; only multi-layer (MTP) drafters call it."""
    raise NotImplementedError("multi-layer drafters")


def _rows(*tensors: Tensor) -> Iterator[tuple[int, ...]]:
    return zip(*(tensor.tolist() for tensor in tensors), strict=True)
