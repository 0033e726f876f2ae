"""KE30x: the drafter's class, its type and its sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.drafter.document import brief
from sglang_kimi_eagle.drafter.values import whole
from sglang_kimi_eagle.loaders import LLAMA, MLA

UNKNOWN = rule(
    "KE301",
    "architecture-unknown",
    Severity.ERROR,
    "The drafter's architecture is not one of the EAGLE-3 classes that SGLang has for Kimi-K2.5 "
    f"(`{LLAMA}`, `{MLA}`). Under another class its tensors are dropped or misread.",
    example='{"architectures": ["LlamaForCausalLM"]}',
)
UNSERVED = rule(
    "KE302",
    "architecture-unserved",
    Severity.ERROR,
    "The running release does not have the drafter's class.",
    example=f'{{"architectures": ["{MLA}"]}} on SGLang 0.5.11',
)
MODEL_TYPE = rule(
    "KE303",
    "model-type-unknown",
    Severity.ERROR,
    "transformers finds the config class by `model_type`. Without one that the release knows, the "
    "launch fails with a KeyError. A warning where it is none that drafters are known to have.",
    example='{"model_type": "kimi_k2"} on SGLang 0.5.11',
)
VALUE = rule(
    "KE304",
    "config-value",
    Severity.ERROR,
    "A size that the drafter's class is built from is missing, or is no positive whole number.",
    example='{"hidden_size": "7168"}',
)
LAYERS = rule(
    "KE305",
    "layer-count",
    Severity.ERROR,
    "The release's class takes drafters of one layer only.",
    example='{"num_hidden_layers": 2} on SGLang 0.5.11',
)
HEADS = rule(
    "KE306",
    "head-count",
    Severity.ERROR,
    "The attention heads do not divide: the query heads are no multiple of the key heads.",
    example='{"num_attention_heads": 64, "num_key_value_heads": 7}',
)

EAGLE3_NAMES = frozenset(
    {
        "Eagle3LlamaForCausalLM",
        "Eagle3Speculator",
        "Eagle3DraftModel",
        "Eagle3DeepseekV3ForCausalLM",
        "EagleLlama3ForCausalLM",
        "LlamaForCausalLM",
    }
)
"""Names that other engines and trainers give to what SGLang calls the two classes."""

_NULLABLE = ("head_dim", "num_key_value_heads")
_COMMON = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3", "deepseek_v2", "deepseek_v3", "kimi_k2"})
"""Types whose config classes have the sizes under the names that the two draft classes read."""
_MLA_SIZES = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def check_architecture(context: Context) -> Iterator[Diagnostic]:
    """Check that the release has the drafter's class."""
    if context.drafter is None:
        return
    where = f"{context.where}, architectures"
    if not (context.is_llama or context.is_mla):
        yield UNKNOWN.found(
            "The drafter's architecture is no EAGLE-3 class of SGLang.",
            where=where,
            seen=brief(context.config.get("architectures")),
            leads_to=f"{context.running} fails to load it, or loads it as another model and drops "
            "its tensors.",
            mend=_mend(context),
        )
    elif not context.served:
        yield UNSERVED.found(
            f"{context.running} does not have {MLA}.",
            where=where,
            seen=brief(context.config.get("architectures")),
            leads_to="The launch fails after the target is loaded: the architecture is not "
            "supported.",
            mend="Use SGLang 0.5.12 or later, or a drafter of LlamaForCausalLMEagle3.",
        )


def _mend(context: Context) -> str:
    drafter = context.drafter
    assert drafter is not None
    is_mla = any("kv_a_proj_with_mqa" in name for name in drafter.tensors)
    looks_like_eagle3 = any(name.endswith("fc.weight") for name in drafter.tensors)
    if looks_like_eagle3 or context.architecture in EAGLE3_NAMES:
        return f'Set "architectures": ["{MLA if is_mla else LLAMA}"] if it is an EAGLE-3 drafter.'
    return "Give the folder of an EAGLE-3 drafter."


def check_model_type(context: Context) -> Iterator[Diagnostic]:
    """Check that the release knows the config's ``model_type``."""
    if context.drafter is None or not context.served:
        return
    model_type = context.config.get("model_type")
    named = isinstance(model_type, str) and bool(model_type)
    early = model_type == "kimi_k2" and not context.loader.kimi_k2_type
    if named and model_type in _TYPES and not early:
        return
    type_for_class = "llama" if context.is_llama else "deepseek_v3"
    sure = early or not named
    found = MODEL_TYPE.found(
        f"{context.running} {'does' if sure else 'may'} not know this model_type.",
        where=f"{context.where}, model_type",
        seen=brief(model_type) if "model_type" in context.config else "no such key",
        leads_to="The launch fails with a KeyError while the drafter's config is read"
        + ("." if sure else ", or sizes are read under other names."),
        mend=f'Set "model_type": "{type_for_class}"'
        + (", or use SGLang 0.5.12 or later." if early else "."),
    )
    # transformers knows hundreds, other ones with each release.
    yield found if sure else replace(found, severity=Severity.WARNING)


def check_sizes(context: Context) -> Iterator[Diagnostic]:
    """Check the sizes that the drafter's class is built from."""
    if not context.served:
        return
    config = context.config
    needed = [*_COMMON, *(_MLA_SIZES if context.is_mla else ())]
    given = [
        key for key in ("target_hidden_size", "head_dim", "num_key_value_heads") if key in config
    ]
    for key in [*needed, *given]:
        # The config classes fill these in.
        nullable = key in _NULLABLE or (key == "target_hidden_size" and context.is_mla)
        if whole(config, key) is None and not (nullable and config[key] is None):
            yield VALUE.found(
                f"{key} must be a positive whole number.",
                where=f"{context.where}, {key}",
                seen=brief(config[key]) if key in config else "no such key",
                leads_to=f"{context.running} fails while it builds the drafter, after the target "
                "is loaded.",
                mend=f"Set {key} to the value the drafter was trained with"
                + (", or remove the key." if key in given else "."),
            )
    heads, groups = whole(config, "num_attention_heads"), whole(config, "num_key_value_heads")
    if context.is_llama and heads and groups and heads % groups:
        yield HEADS.found(
            "num_attention_heads is no multiple of num_key_value_heads.",
            where=f"{context.where}, num_key_value_heads",
            seen=f"{heads} and {groups}",
            leads_to="The attention kernels cannot share keys evenly.",
            mend="Set both to the values the drafter was trained with.",
        )


def check_layer_count(context: Context) -> Iterator[Diagnostic]:
    """Check the number of layers against what the class takes."""
    if not context.served:
        return
    layers = context.config.get("num_hidden_layers")
    many = context.is_llama and context.loader.layer_stack
    if whole(context.config, "num_hidden_layers") is not None and (many or layers == 1):
        return
    yield LAYERS.found(
        f"{context.architecture} of {context.running} takes "
        + ("one layer or more." if many else "exactly one layer."),
        where=f"{context.where}, num_hidden_layers",
        seen=brief(layers) if "num_hidden_layers" in context.config else "no such key",
        leads_to="The launch fails after the target is loaded.",
        mend="Set num_hidden_layers to the number of layers in the checkpoint"
        + (
            "."
            if many
            else "; for more than one layer use LlamaForCausalLMEagle3 on SGLang 0.5.12 or later."
        ),
    )
