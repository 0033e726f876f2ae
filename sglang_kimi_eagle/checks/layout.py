"""The parameters that a release's draft class builds, and how it finds them in a checkpoint.

A model of ``__init__`` and ``load_weights`` of the two classes; see `loaders`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.drafter.values import whole

Shape = tuple[int | None, ...]
"""None where the config does not give the size."""

_LEGACY = {
    "midlayer": "layers.0",
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
}
_MAX_LAYERS = 64
"""More layers than that are not laid out: no drafter has them."""


@dataclass
class Layout:
    """What the class builds: parameter -> shape, by the names of `Context.loader`'s release."""

    shapes: dict[str, Shape] = field(default_factory=dict)
    optional: set[str] = field(default_factory=set)
    """Parameters that do without a tensor: unused, shared with the target, or all ones."""

    def add(self, name: str, *shape: int | None, optional: bool = False) -> None:
        """Add a parameter."""
        self.shapes[name] = shape
        if optional:
            self.optional.add(name)


def uses_fc_norm(context: Context) -> bool:
    """Tell whether the config asks for norms before ``fc``, one per state."""
    return bool(context.config.get("fc_norm") or context.config.get("use_aux_norm"))


def uses_input_norm(context: Context) -> bool:
    """Tell whether the config asks for one norm before ``fc``, over all states."""
    config = context.config
    return bool(context.eagle_config.get("norm_before_fc", config.get("norm_before_fc", False)))


def ties_head(context: Context) -> bool:
    """Tell whether head and embedding are one tensor."""
    return bool(context.config.get("tie_word_embeddings", False))


def has_fc_norm(context: Context) -> bool:
    """Tell whether the release's class knows ``fc_norm`` and ``norm_output``."""
    loader = context.loader
    return loader.layer_stack if context.is_llama else loader.mla_fc_norm


def layout_of(context: Context) -> Layout:
    """Return what the running release's class builds for the drafter's config."""
    config, layout = context.config, Layout()
    hidden, states = whole(config, "hidden_size"), context.num_states
    width = context.target_hidden_size
    fc_width = width * states if width is not None and states is not None else None
    vocab = whole(config, "vocab_size")
    # The worker puts the target's embedding in place, unless the widths differ.
    layout.add("embed_tokens.weight", vocab, hidden, optional=not needs_embedding(context))
    layout.add("fc.weight", hidden, fc_width, optional=not context.uses_states)
    if config.get("bias"):
        layout.add("fc.bias", hidden, optional=not context.uses_states)
    if uses_fc_norm(context) and has_fc_norm(context):
        for index in range(min(states or 0, _MAX_LAYERS)):
            layout.add(f"fc_norm.{index}.weight", width)
    if uses_input_norm(context) and context.is_llama and context.loader.llama_norm_before_fc:
        layout.add("input_norm.weight", fc_width)
    layout.add("norm.weight", hidden)
    if not ties_head(context):
        from_target = config.get("draft_vocab_size") is None
        layout.add("lm_head.weight", context.draft_vocab_size, hidden, optional=from_target)
    if context.is_mla:
        _mla_layer(config, layout, hidden)
    else:
        count = whole(config, "num_hidden_layers") or 1
        if not context.loader.layer_stack:
            _llama_layer(config, layout, "midlayer", hidden, first=True)
        else:
            for index in range(min(count, _MAX_LAYERS)):
                _llama_layer(config, layout, f"layers.{index}", hidden, first=index == 0)
    return layout


def needs_embedding(context: Context) -> bool:
    """Tell whether the drafter must bring its own embedding: ``set_embed`` does nothing then."""
    own, given = whole(context.config, "hidden_size"), context.config.get("target_hidden_size")
    return given is not None and given != own


def is_plain(parameter: str, context: Context) -> bool:
    """Tell whether the class builds a parameter without a quantised method, whatever the config."""
    name = parameter.removesuffix(".weight")
    if name == "fc":
        return context.is_llama or not context.loader.mla_fc_quantised
    # The MLA class takes kv_b_proj apart after loading, as floating-point numbers only.
    return name == "embed_tokens" or "norm" in name or name.endswith(".kv_b_proj")


def canonical(name: str, context: Context) -> str:
    """Return the parameter that the class's ``load_weights`` looks for under ``name``."""
    if context.is_mla:
        # Everything but lm_head gets the prefix "model.": a name that has it already is lost.
        return re.sub(r"^layers\.0\.", "midlayer.", name)
    if context.loader.layer_stack:
        for legacy, new in _LEGACY.items():
            name = name.replace(legacy, new)
    return name if name.startswith("model.lm_head.") else name.removeprefix("model.")


def is_vocabulary_map(name: str, context: Context) -> str:
    """Return ``d2t`` or ``t2d`` when the class takes the tensor for it, else an empty string."""
    for kind in ("d2t", "t2d"):
        if (kind in name) if context.is_llama else (name == kind or name.endswith(f".{kind}")):
            return kind
    return ""


def _norm_and_mlp(
    config: Mapping[str, object], layout: Layout, prefix: str, hidden: int | None, *, first: bool
) -> None:
    inner = whole(config, "intermediate_size")
    # A later layer has an input_layernorm and does not use it.
    layout.add(f"{prefix}.input_layernorm.weight", hidden, optional=not first)
    layout.add(f"{prefix}.hidden_norm.weight", hidden)
    layout.add(f"{prefix}.post_attention_layernorm.weight", hidden)
    layout.add(f"{prefix}.mlp.gate_proj.weight", inner, hidden)
    layout.add(f"{prefix}.mlp.up_proj.weight", inner, hidden)
    layout.add(f"{prefix}.mlp.down_proj.weight", hidden, inner)


def _llama_layer(
    config: Mapping[str, object], layout: Layout, prefix: str, hidden: int | None, *, first: bool
) -> None:
    heads = whole(config, "num_attention_heads")
    groups = whole(config, "num_key_value_heads") or heads
    size = whole(config, "head_dim")
    if size is None and hidden and heads:
        size = hidden // heads
    entering = 2 * hidden if hidden and first else hidden
    layout.add(f"{prefix}.self_attn.q_proj.weight", _times(heads, size), entering)
    layout.add(f"{prefix}.self_attn.k_proj.weight", _times(groups, size), entering)
    layout.add(f"{prefix}.self_attn.v_proj.weight", _times(groups, size), entering)
    layout.add(f"{prefix}.self_attn.o_proj.weight", hidden, _times(heads, size))
    if config.get("attention_bias") or config.get("bias"):
        layout.add(f"{prefix}.self_attn.o_proj.bias", hidden)
    _norm_and_mlp(config, layout, prefix, hidden, first=first)


def _mla_layer(config: Mapping[str, object], layout: Layout, hidden: int | None) -> None:
    heads = whole(config, "num_attention_heads")
    q_rank, kv_rank = whole(config, "q_lora_rank"), whole(config, "kv_lora_rank")
    plain, rope = whole(config, "qk_nope_head_dim"), whole(config, "qk_rope_head_dim")
    value = whole(config, "v_head_dim")
    entering = 2 * hidden if hidden else None
    attention = "midlayer.self_attn"
    layout.add(f"{attention}.q_a_proj.weight", q_rank, entering)
    layout.add(f"{attention}.q_a_layernorm.weight", q_rank)
    layout.add(f"{attention}.q_b_proj.weight", _times(heads, _plus(plain, rope)), q_rank)
    layout.add(f"{attention}.kv_a_proj_with_mqa.weight", _plus(kv_rank, rope), entering)
    layout.add(f"{attention}.kv_a_layernorm.weight", kv_rank)
    layout.add(f"{attention}.kv_b_proj.weight", _times(heads, _plus(plain, value)), kv_rank)
    layout.add(f"{attention}.o_proj.weight", hidden, _times(heads, value))
    _norm_and_mlp(config, layout, "midlayer", hidden, first=True)


def _times(left: int | None, right: int | None) -> int | None:
    return left * right if left is not None and right is not None else None


def _plus(left: int | None, right: int | None) -> int | None:
    return left + right if left is not None and right is not None else None
