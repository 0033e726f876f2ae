"""What each SGLang release makes of a drafter's config and tensors, and of its arguments.

Facts read in ``srt/models/llama_eagle3.py`` and ``kimi_k25_eagle3.py``, ``layers`` and
``speculative`` of the wheels;
`tests/checks/test_loaders.py` reads them again.
"""

from __future__ import annotations

from typing import NamedTuple

from sglang_kimi_eagle.releases import NEWEST, RELEASES, Release

LLAMA = "LlamaForCausalLMEagle3"
MLA = "Eagle3DeepseekV2ForCausalLM"
NO_DRAFT_BACKENDS = frozenset(
    {"torch_native", "flex_attention", "cutlass_mla", "wave", "dual_chunk_flash_attn"}
)
"""Attention backends that no release's ``DraftBackendFactory`` has, whatever the drafter."""

_IMAGES_UNKNOWN = (
    "the drafter looks up the place holders of an image in its embedding, where they are not: an "
    "index out of range, or drafts from noise (sglang#21358)"
)
_IMAGES_IN_GRAPHS = (
    "a prefill graph of the drafter, the default on CUDA, looks up the place holders of an image "
    "in its embedding, where they are not: an index out of range (sglang#38330)"
)


class DraftLoader(NamedTuple):
    """The draft classes of one release, and what the engine does around them."""

    layer_stack: bool
    """Llama: layers are ``layers.N``, ``midlayer`` and ``aux_norm_*`` are mapped to the new names,
    ``fc_norm``/``norm_output`` are honoured, the number of states comes from the config, and more
    than one layer is taken.  Before: ``midlayer`` alone, three states."""
    llama_norm_before_fc: bool
    """Llama: ``norm_before_fc`` builds ``input_norm``."""
    mla_fc_quantised: bool
    """MLA: ``fc`` takes a quantised method; before it is a plain ``nn.Linear``, as Llama's is."""
    yarn_needs_original: bool
    """YaRN and the like read ``original_max_position_embeddings`` without a default."""
    mla_fc_norm: bool
    """MLA: ``fc_norm``/``norm_output`` are honoured."""
    llama_yarn_mscale: bool
    """Llama: YaRN's ``mscale`` and ``mscale_all_dim`` are honoured.  Before, its cosines are scaled
    as if they were not given."""
    chain_positions_ahead: bool
    """The drafts behind the first of a chain are rotated one position too far: the worker counts
    ``positions`` up before each forward of them, not after it."""
    kimi_k2_type: bool
    """``model_type`` ``kimi_k2`` is registered (an alias of ``deepseek_v3``)."""
    null_eagle_config: bool
    """``eagle_config: null`` does not fail in the EAGLE worker."""
    dp_attention: bool
    """Kimi-K2.5 runs with data-parallel attention (sglang#21391)."""
    tree_page_backends: tuple[str, ...]
    """Attention backends that take topk > 1 with a page size > 1."""
    draft_images: str
    """What becomes of the images of a request in the drafter; empty when they are embedded right
    (sglang#21358; sglang#38330, since prefill graphs of drafters)."""


def draft_loader(release: Release) -> DraftLoader:
    """Return what the draft classes of ``release`` do; an unknown release is like the newest."""
    order = list(RELEASES)
    position = order.index(release.version if release.version in order else NEWEST)

    def since(version: str) -> bool:
        return position >= order.index(version)

    return DraftLoader(
        layer_stack=since("0.5.12"),
        llama_norm_before_fc=since("0.5.17"),
        mla_fc_quantised=since("0.5.15"),
        yarn_needs_original=not since("0.5.10"),
        mla_fc_norm=since("0.5.13"),
        llama_yarn_mscale=since("0.5.16"),
        chain_positions_ahead=not since("0.5.12"),
        kimi_k2_type=since("0.5.12"),
        null_eagle_config=since("0.5.15"),
        dp_attention=since("0.5.10"),
        draft_images=_IMAGES_UNKNOWN
        if not since("0.5.10")
        else _IMAGES_IN_GRAPHS
        if since("0.5.19") and not since("0.5.22")
        else "",
        tree_page_backends=("flashinfer", "fa3", *(("triton",) if since("0.5.13") else ())),
    )
