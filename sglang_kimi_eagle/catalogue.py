"""Published drafters whose meaning of layer ids is known from a public source.

An entry is found by content, never by the name of a repository: names are reused for other
weights, and folders are renamed.  The content is a digest of the config fields that describe the
drafter, and of ``d2t`` where there is one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sglang_kimi_eagle.states import Convention
from sglang_kimi_eagle.wiring import Evidence, read_ids

FIELDS = (
    "architectures",
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "vocab_size",
    "draft_vocab_size",
)
"""The config fields of a digest; the nested layer ids are added to them."""


class KnownDrafter(NamedTuple):
    """One drafter whose convention is known."""

    name: str
    digest: str
    """`digest_of` its config and d2t."""
    convention: Convention
    source: str
    """Where the convention is known from."""


def digest_of(config: Mapping[str, Any], d2t: bytes | None) -> str:
    """Return the digest that identifies a drafter.

    Args:
        config: the drafter's decoded ``config.json``.
        d2t: the raw bytes of the ``d2t`` tensor, None when the drafter has none.
    """
    ids = read_ids(config).ids
    content: dict[str, Any] = {field: config.get(field) for field in FIELDS}
    content["ids"] = None if ids is None else list(ids)
    content["d2t"] = None if d2t is None else hashlib.sha256(d2t).hexdigest()
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# The fields of TorchSpec's Kimi-K2.5 MLA template, with the ids under which the drafters were
# published (TorchSpec's export for vLLM adds one).
_TORCHSPEC_K25_MLA: dict[str, Any] = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 1,
    "num_attention_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 163840,
    "draft_vocab_size": 163840,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
}


def _k3(ids: list[int]) -> dict[str, Any]:
    # TorchSpec's Kimi-K3 template has the fields of the one for Kimi-K2.5.
    return {**_TORCHSPEC_K25_MLA, "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}


KNOWN: tuple[KnownDrafter, ...] = (
    KnownDrafter(
        "lightseekorg/kimi-k2.5-eagle3-mla, kimi-k2.6-eagle3-mla",
        digest_of(_TORCHSPEC_K25_MLA, None),
        Convention.LAYER_INPUT,
        "as sglang#25454 says of lightseekorg/kimi-k2.5-eagle3-mla",
    ),
    KnownDrafter(
        "lightseekorg/kimi-k3-eagle3-mla, kimi-k3-eagle3.1-mla",
        digest_of(_k3([2, 46, 90]), None),
        Convention.LAYER_INPUT,
        "as SGLang's test of kimi-k3-eagle3.1-mla says: ids count completed layers from 1",
    ),
    KnownDrafter(
        "a Kimi-K3 drafter as TorchSpec's template has it",
        digest_of(_k3([1, 45, 89]), None),
        Convention.LAYER_OUTPUT,
        "TorchSpec's configs/draft_models/kimi_k3_eagle3_mla.json; exported as [2, 46, 90]",
    ),
)


def lookup(
    config: Mapping[str, Any], d2t: bytes | None, known: Sequence[KnownDrafter] = KNOWN
) -> Evidence | None:
    """Return what is known of this very drafter, if it is in the catalogue."""
    if read_ids(config).ids is None:
        return None
    digest = digest_of(config, d2t)
    for entry in known:
        if entry.digest == digest:
            return Evidence(entry.convention, f"{entry.source} ({entry.name})")
    return None
