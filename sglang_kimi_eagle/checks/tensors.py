"""KE31x: the drafter's tensors against what the release's class builds and takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.checks.layout import (
    Layout,
    Shape,
    canonical,
    has_fc_norm,
    is_plain,
    is_vocabulary_map,
    layout_of,
    needs_embedding,
    ties_head,
    uses_fc_norm,
    uses_input_norm,
)
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.drafter import TensorHeader
from sglang_kimi_eagle.drafter.document import brief, clip

FC_WIDTH = rule(
    "KE310",
    "fc-width",
    Severity.ERROR,
    "`fc` takes the concatenated states: its input must be the number of states times the width of "
    "the target's. Otherwise the launch fails on its shape after the target is loaded, or the "
    "first request does.",
    example="`fc.weight` [7168, 14336] with three layer ids and hidden_size 7168",
)
SHAPE = rule(
    "KE311",
    "tensor-shape",
    Severity.ERROR,
    "A tensor does not have the shape that the config says. The launch fails on it after the "
    "target is loaded.",
    example="`midlayer.mlp.up_proj.weight` [12288, 7168] with intermediate_size 18432",
)
MISSING = rule(
    "KE312",
    "tensor-missing",
    Severity.ERROR,
    "The release's class builds a parameter that the checkpoint has no tensor for. SGLang says "
    "nothing: the parameter stays uninitialised, and the drafter drafts from noise.",
    example="`layers.0.*` in place of `midlayer.*` on SGLang 0.5.11",
)
DROPPED = rule(
    "KE313",
    "tensor-dropped",
    Severity.ERROR,
    "The checkpoint has a tensor that the release's class does not take. It is dropped, without a "
    "word or with a line in the log: the drafter computes something else than it was trained for.",
    example="`fc_norm.0.weight` on SGLang 0.5.11",
)
FLAG_IGNORED = rule(
    "KE314",
    "flag-ignored",
    Severity.ERROR,
    "The config asks for a step that the release's class does not have. The drafter loads, and its "
    "acceptance length falls to about 1.",
    example='{"norm_before_fc": true} on SGLang 0.5.16',
)
EMBEDDING = rule(
    "KE315",
    "embedding-missing",
    Severity.ERROR,
    "The drafter is of another width than the target, so that SGLang does not give it the target's "
    "embedding, and it brings none of its own.",
    example='{"hidden_size": 4096, "target_hidden_size": 7168} without `embed_tokens.weight`',
)
HEAD_DROPPED = rule(
    "KE316",
    "head-dropped",
    Severity.WARNING,
    "The checkpoint has a head of its own, and the config makes SGLang use another one: the "
    "target's (`draft_vocab_size` null) or the embedding (`tie_word_embeddings` true).",
    example='`lm_head.weight` with {"draft_vocab_size": null}',
)
NOT_DECLARED = rule(
    "KE317",
    "quantisation-undeclared",
    Severity.ERROR,
    "Tensors of the drafter are quantised and its config has no `quantization_config`: SGLang "
    "reads the packed numbers as weights.",
    example="`midlayer.mlp.up_proj.weight` of dtype F8_E4M3 without quantization_config",
)

QUANTISED_PLAIN = rule(
    "KE318",
    "quantised-where-plain",
    Severity.ERROR,
    "A tensor is quantised that the release's class takes as floating-point numbers only, whatever "
    "the config says: its scale is dropped, and the numbers are read as they are, or the launch "
    "fails after the target is loaded.",
    example="`fc.weight` of dtype F8_E4M3 beside `fc.weight_scale`, in LlamaForCausalLMEagle3",
)

_FLOATS = ("F64", "F32", "F16", "BF16")
# What quantisers put beside or in place of a weight (compressed-tensors, quark, fp8, awq, gptq).
_QUANTISED = re.compile(
    r"\.(weight_scale|weight_scale_inv|weight_scale_2|input_scale|output_scale|weight_packed|"
    r"weight_shape|weight_zero_point|input_zero_point|weight_global_scale|input_global_scale|"
    r"weight_g_idx|qweight|qzeros|scales|g_idx|bias)$"
)
# Nothing that is trained: caches that old exports carried along, scales of a quantised KV cache.
_HARMLESS = re.compile(
    r"(rotary_emb\.\w+|\.inv_freq|_extra_state|\.self_attn\.(\w+\.)?[kv]_scale)$"
)


def check_tensors(context: Context) -> Iterator[Diagnostic]:
    """Compare the checkpoint's tensors with the parameters of the release's class."""
    if context.drafter is None or not context.served:
        return
    layout = layout_of(context)
    found: dict[str, str] = {}
    dropped: list[str] = []
    for name in context.drafter.tensors:
        if is_vocabulary_map(name, context) or _HARMLESS.search(name):
            continue
        parameter = canonical(name, context)
        if parameter in layout.shapes:
            found[parameter] = name
        elif not _goes_with(parameter, layout, context):
            dropped.append(name)
    yield from _shapes(context, layout, found)
    yield from _missing(context, layout, found, dropped)
    yield from _dropped(context, dropped)
    yield from _undeclared(context, found)
    yield from _quantised_plain(context, found)


def check_flags_taken(context: Context) -> Iterator[Diagnostic]:
    """Check that what the config asks of the class is something it does."""
    if not context.served:
        return
    if uses_input_norm(context) and not (context.is_llama and context.loader.llama_norm_before_fc):
        yield _ignored(context, "norm_before_fc", "the norm before fc", "0.5.17")
    if has_fc_norm(context):
        return
    since = "0.5.12" if context.is_llama else "0.5.13"
    if uses_fc_norm(context):
        yield _ignored(context, "fc_norm", "the norms before fc", since)
    if context.config.get("norm_output"):
        yield _ignored(context, "norm_output", "the norm after the last layer", since)


def _ignored(context: Context, key: str, step: str, since: str) -> Diagnostic:
    never = key == "norm_before_fc" and context.is_mla
    return FLAG_IGNORED.found(
        f"{context.running} ignores {key} in {context.architecture}.",
        where=f"{context.where}, {key}",
        seen=brief(context.eagle_config.get(key, context.config.get(key))),
        leads_to=f"It leaves {step} out, without a word: acceptance length about 1.",
        mend="No release does it for this class: serve a drafter that was trained without it."
        if never
        else f"Use SGLang {since} or later.",
    )


def _goes_with(parameter: str, layout: Layout, context: Context) -> bool:
    """Tell whether the tensor belongs to the quantised form of a parameter, or is handled apart."""
    if parameter == "lm_head.weight" and ties_head(context):
        return True
    match = _QUANTISED.search(parameter)
    if match is None or context.quantisation is None:
        return False
    weight = f"{parameter[: match.start()]}.weight"
    # GPTQ gives every layer a bias, of zeros where there was none.
    bias = match[1] != "bias" or "gptq" in brief(context.quantisation[1]).lower()
    return weight in layout.shapes and not is_plain(weight, context) and bias


def _shapes(context: Context, layout: Layout, found: dict[str, str]) -> Iterator[Diagnostic]:
    drafter = context.drafter
    assert drafter is not None
    for parameter, name in found.items():
        header, wanted = drafter.tensors[name], layout.shapes[parameter]
        if _fits(header.shape, wanted) or _is_packed(context, header, parameter):
            continue
        where = context.place(name)
        if parameter == "fc.weight" and len(header.shape) == 2 and header.shape[0] == wanted[0]:
            yield _fc(context, header, where)
        elif parameter != "lm_head.weight":
            # The head is checked with the vocabulary.
            yield SHAPE.found(
                f"{parameter} does not have the shape that the config says.",
                where=where,
                seen=f"{brief(header.shape)}; by config.json {_show(wanted)}",
                leads_to=f"{context.running} fails on it after the target is loaded.",
                mend="Correct the sizes in config.json, or export the drafter again.",
            )


def _fc(context: Context, header: TensorHeader, where: str) -> Diagnostic:
    width, states = context.target_hidden_size, context.num_states
    old = context.is_llama and not context.loader.layer_stack
    takes = header.shape[1] // width if width and header.shape[1] % width == 0 else None
    if takes is None:
        mend = "Set hidden_size (or target_hidden_size) to the width of the target it was made for."
    elif old:
        mend = "Use SGLang 0.5.12 or later: older releases take three states only."
    else:
        mend = f"List the {takes} layer ids it was trained with in eagle_config."
    return FC_WIDTH.found(
        "fc is not as wide as the states that it is fed.",
        where=where,
        seen=f"{header}; {states if states is not None else 'no clear number of'} states of width "
        f"{width}" + (f" make {width * states}" if width and states else ""),
        leads_to="A shape error, after the target is loaded or with the first request.",
        mend=mend,
    )


def _missing(
    context: Context, layout: Layout, found: dict[str, str], dropped: list[str]
) -> Iterator[Diagnostic]:
    drafter = context.drafter
    assert drafter is not None
    bases = {
        canonical(name, context)[: match.start()]
        for name in drafter.tensors
        if (match := _QUANTISED.search(canonical(name, context))) and match.group(1) != "bias"
    }
    missing = [
        parameter
        for parameter in layout.shapes
        if parameter not in found
        and parameter not in layout.optional
        and (parameter.removesuffix(".weight") not in bases or is_plain(parameter, context))
    ]
    if "embed_tokens.weight" in missing and needs_embedding(context):
        missing.remove("embed_tokens.weight")
        yield EMBEDDING.found(
            "The drafter needs an embedding of its own and has none.",
            where=f"{drafter.folder}, tensor embed_tokens.weight",
            seen=f"hidden_size {brief(context.config.get('hidden_size'))}, target_hidden_size "
            f"{brief(context.config.get('target_hidden_size'))}",
            leads_to="SGLang shares the target's embedding only between equal widths: the "
            "drafter's stays uninitialised.",
            mend="Export the drafter with its embed_tokens.weight.",
        )
    if missing:
        yield MISSING.found(
            f"{len(missing)} of {len(layout.shapes)} parameters of {context.architecture} have no "
            "tensor.",
            where=str(drafter.folder),
            seen=f"missing {brief(missing)}",
            leads_to=f"{context.running} leaves them uninitialised, without a word: acceptance "
            "length 1.",
            mend=_rename(context, missing, dropped),
        )


def _rename(context: Context, missing: list[str], dropped: list[str]) -> str:
    if context.is_llama and any(
        name.removeprefix("model.").startswith("layers.0.") for name in dropped
    ):
        return "Rename layers.0.* to midlayer.* in the checkpoint, or use SGLang 0.5.12 or later."
    if context.is_mla and any(name.startswith("model.") for name in dropped):
        return 'Remove the "model." that the names of the tensors begin with.'
    if any(name.startswith("fc_norm") for name in missing):
        return (
            "Remove fc_norm from the config if the drafter was trained without, or export it again."
        )
    return "Export the drafter again, with the names that the class expects."


def _dropped(context: Context, dropped: list[str]) -> Iterator[Diagnostic]:
    drafter = context.drafter
    assert drafter is not None
    if not dropped:
        return
    yield DROPPED.found(
        f"{context.architecture} of {context.running} drops {len(dropped)} tensors.",
        where=context.place(dropped[0]),
        seen=brief(dropped),
        leads_to="The drafter computes something else than it was trained for: its acceptance "
        "length falls, often to 1.",
        mend=_take(context, dropped),
    )


def _take(context: Context, dropped: list[str]) -> str:
    if any("fc_norm" in name or "aux_norm" in name for name in dropped):
        if not has_fc_norm(context):
            return f"Use SGLang {'0.5.12' if context.is_llama else '0.5.13'} or later."
        if not uses_fc_norm(context):
            return 'Set "fc_norm": true in config.json.'
        return "Rename the norms to fc_norm.0, fc_norm.1, fc_norm.2 in the checkpoint."
    if any("input_norm" in name for name in dropped):
        if not context.is_llama:
            return "No release has input_norm in this class: serve another drafter."
        if not context.loader.llama_norm_before_fc:
            return "Use SGLang 0.5.17 or later."
        return 'Set "norm_before_fc": true in config.json.'
    return _rename(context, [], dropped)


def _undeclared(context: Context, found: dict[str, str]) -> Iterator[Diagnostic]:
    drafter = context.drafter
    assert drafter is not None
    if context.quantisation is not None:
        return
    names = [name for name in found.values() if drafter.tensors[name].dtype not in _FLOATS]
    if names:
        header = drafter.tensors[names[0]]
        yield NOT_DECLARED.found(
            "Weights are quantised, and the config does not say so.",
            where=context.place(names[0]),
            seen=f"{header}; {len(names)} such tensors, no quantization_config",
            leads_to="SGLang reads them as plain weights: the drafter drafts from noise.",
            mend="Add the quantization_config of the tool that quantised it.",
        )


def _quantised_plain(context: Context, found: dict[str, str]) -> Iterator[Diagnostic]:
    drafter = context.drafter
    assert drafter is not None
    if context.quantisation is None:
        return
    names = [
        name
        for parameter, name in found.items()
        if drafter.tensors[name].dtype not in _FLOATS
        and (is_plain(parameter, context) or _is_unscaled_head(context, parameter, name))
    ]
    if names:
        yield QUANTISED_PLAIN.found(
            f"{context.architecture} of {context.running} takes no quantised {clip(names[0])}.",
            where=context.place(names[0]),
            seen=f"{drafter.tensors[names[0]]}; {len(names)} such tensors",
            leads_to="The numbers are read without their scale, or the launch fails after the "
            "target is loaded.",
            mend="Quantise the drafter again with these layers left out.",
        )


def _is_unscaled_head(context: Context, parameter: str, name: str) -> bool:
    """Tell whether it is a head of 8-bit numbers without a scale, which no method can use."""
    drafter = context.drafter
    assert drafter is not None
    scaled = any(other.startswith(f"{name}_scale") for other in drafter.tensors)
    return (
        parameter == "lm_head.weight"
        and drafter.tensors[name].dtype.startswith("F8")
        and not scaled
    )


def _is_packed(context: Context, header: TensorHeader, parameter: str) -> bool:
    """Tell whether several weights share an element, so that the shape says nothing."""
    return (
        header.dtype not in _FLOATS
        and context.quantisation is not None
        and not is_plain(parameter, context)
    )


def _fits(shape: Iterable[int], wanted: Shape) -> bool:
    shape = tuple(shape)
    return len(shape) == len(wanted) and all(
        size is None or size == actual for size, actual in zip(wanted, shape, strict=True)
    )


def _show(shape: Shape) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
