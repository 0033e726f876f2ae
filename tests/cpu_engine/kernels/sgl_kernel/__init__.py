"""The kernels of ``sgl_kernel`` that speculation on SGLang's CPU engine calls, in torch.

Stands in for the compiled package of that name, whose CPU build is not published.
``convert_weight_packed`` is left out on purpose: without it SGLang sees no AMX and
keeps its own torch layers for everything but attention.

SGLang 0.5.16 and later take all of this.  Earlier releases have no speculation on CPU
and take the tree kernels only, under the names of the CUDA build.
"""

import torch

from .attention import decode_attention_cpu, extend_attention_cpu
from .kv_cache import copy_all_layer_kv_cache_cpu
from .slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from .tree import build_tree, verify_tree

build_tree_kernel_efficient = build_tree_kernel_efficient_cpu = build_tree
verify_tree_greedy = verify_tree_greedy_cpu = verify_tree

torch.ops.sgl_kernel.decode_attention_cpu = decode_attention_cpu
torch.ops.sgl_kernel.extend_attention_cpu = extend_attention_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy",
    "verify_tree_greedy_cpu",
]
