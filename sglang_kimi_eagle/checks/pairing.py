"""KE6xx: whether the drafter was made for this target, and for how the target is served."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.drafter.document import brief, clip
from sglang_kimi_eagle.drafter.values import number, token_ids, whole
from sglang_kimi_eagle.server_arguments import ALLOW_LONGER_CONTEXT, UNQUANT
from sglang_kimi_eagle.target import dtype_of

WIDTH = rule(
    "KE601",
    "target-width",
    Severity.ERROR,
    "The drafter was made for a target of another width.",
    example='{"hidden_size": 4096} with Kimi-K2.5, whose hidden_size is 7168',
)
VOCABULARY = rule(
    "KE602",
    "target-vocabulary",
    Severity.ERROR,
    "The drafter was made for a target of another vocabulary: the same token ids stand for other "
    "words.",
    example='{"vocab_size": 129280} with Kimi-K2.5, whose vocab_size is 163840',
)
SPECIAL = rule(
    "KE603",
    "special-tokens",
    Severity.WARNING,
    "Both the first and the last token of a text are other ones for the drafter than for the "
    "target: it was probably made for another model.",
    example='{"bos_token_id": 0, "eos_token_id": 1} with Kimi-K2.5',
)
BASE = rule(
    "KE604",
    "base-model",
    Severity.WARNING,
    "The drafter's config names the model it was made for, and that is not this target.",
    example='{"target_model_name_or_path": "Qwen/Qwen3-235B"} with Kimi-K2.5',
)
DTYPE = rule(
    "KE610",
    "dtype-differs",
    Severity.ERROR,
    "The drafter runs in another floating-point type than the target, whose states and embedding "
    "it is fed: the first request fails on it. A config without `dtype` or `torch_dtype` counts "
    "as float32, which SGLang turns into float16.",
    example='{"torch_dtype": "float16"} with a target of bfloat16',
)
INHERITED = rule(
    "KE611",
    "quantisation-inherited",
    Severity.WARNING,
    "The server's `--quantization` is taken for the drafter too, whose weights are not quantised.",
    example="--quantization w4afp8 with a drafter in bfloat16",
)
QUANT_SHAPE = rule(
    "KE612",
    "quantisation-malformed",
    Severity.ERROR,
    "`quantization_config` names no method, so SGLang cannot read the weights.",
    example='{"quantization_config": {}}',
)
ROPE = rule(
    "KE620",
    "rope-malformed",
    Severity.ERROR,
    "The rotary parameters of the drafter cannot be read. SGLang fails on them after the target is "
    "loaded.",
    example='{"rope_scaling": {"rope_type": "yarn"}}',
)
CONTEXT = rule(
    "KE621",
    "context-too-short",
    Severity.ERROR,
    "The drafter's config allows fewer positions than the server's context length. SGLang refuses "
    f"it after the target is loaded, unless {ALLOW_LONGER_CONTEXT}=1; without the key the default "
    "of the config class counts (2048 or 4096).",
    example='{"max_position_embeddings": 2048} with Kimi-K2.5 at 262144 positions',
)
CONTEXT_STRETCHED = rule(
    "KE622",
    "context-stretched",
    Severity.WARNING,
    f"The drafter is made for fewer positions than are served, and {ALLOW_LONGER_CONTEXT}=1 lets "
    "it run beyond them: acceptance falls in long requests (2.3 at 2k, 1.1 at 20k in one report).",
    example='{"max_position_embeddings": 2048}, context length 262144',
)

# SGLang, utils/hf_transformers: the first of these that is there counts.
_CONTEXT_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)
_BASE_KEYS = (
    "target_model_name_or_path",
    "target_model_path",
    "base_model_name_or_path",
    "base_model",
)
_NEEDS_FACTOR = ("yarn", "deepseek_yarn", "linear", "dynamic", "llama3", "longrope")
_NEEDS_ORIGINAL = ("yarn", "deepseek_yarn", "llama3", "longrope")
_ROPE_KINDS = ("default", "proportional", *_NEEDS_FACTOR)
"""Those of ``get_rope``; "mrope" of 0.5.9 is written as "default"."""


def check_target(context: Context) -> Iterator[Diagnostic]:
    """Check that the drafter was made for this target."""
    target, config = context.target, context.config
    if target is None or context.drafter is None or not context.served:
        return
    width = context.target_hidden_size
    if width is not None and width != target.hidden_size:
        key = "target_hidden_size" if "target_hidden_size" in config else "hidden_size"
        yield WIDTH.found(
            "The drafter was made for a target of another width.",
            where=f"{context.where}, {key}",
            seen=f"{width}; the target's hidden_size is {target.hidden_size}",
            leads_to="fc fails on the target's states, after it is loaded.",
            mend="Serve a drafter that was trained for this target"
            + (
                f"; if this one was, set target_hidden_size to {target.hidden_size}."
                if key == "hidden_size"
                else "."
            ),
        )
    vocab = whole(config, "vocab_size")
    if vocab is not None and vocab != target.vocab_size:
        yield VOCABULARY.found(
            "The drafter was made for a target of another vocabulary.",
            where=f"{context.where}, vocab_size",
            seen=f"{vocab}; the target's is {target.vocab_size}",
            leads_to="Token ids stand for other words: acceptance length 1, or an index error.",
            mend="Serve a drafter that was trained for this target; a reduced vocabulary belongs "
            "in draft_vocab_size.",
        )
    bos, eos = token_ids(config, "bos_token_id"), token_ids(config, "eos_token_id")
    if (
        bos
        and eos
        and target.bos_token_ids
        and target.eos_token_ids
        and not (bos & target.bos_token_ids or eos & target.eos_token_ids)
    ):
        yield SPECIAL.found(
            "The drafter's special tokens are not the target's.",
            where=f"{context.where}, bos_token_id, eos_token_id",
            seen=f"{sorted(bos)[:8]}, {sorted(eos)[:8]}; the target's "
            f"{sorted(target.bos_token_ids)[:8]}, {sorted(target.eos_token_ids)[:8]}",
            leads_to="If it was made for another model, acceptance length 1.",
            mend="See that the drafter was trained for this target; if so, copy its ids.",
        )
    yield from _base(context)


def _base(context: Context) -> Iterator[Diagnostic]:
    assert context.target is not None
    adapter = context.target.adapter
    if adapter is None or not adapter.family:
        return
    named: list[tuple[str, object]] = [(key, context.config.get(key)) for key in _BASE_KEYS]
    speculators = context.config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, Mapping) else None
    if isinstance(verifier, Mapping):
        named.append(("speculators_config.verifier.name_or_path", verifier.get("name_or_path")))
    for key, name in named:
        # A local path says nothing; a hub id has the family's name in it.
        if isinstance(name, str) and name.count("/") == 1 and name[0] not in "./~":
            if adapter.family not in name.lower():
                yield BASE.found(
                    "The drafter was made for another model.",
                    where=f"{context.where}, {key}",
                    seen=brief(name),
                    leads_to="Acceptance length 1 with this target.",
                    mend="Serve a drafter that was trained for this target.",
                )
            return


def check_dtype(context: Context) -> Iterator[Diagnostic]:
    """Check that drafter and target run in the same floating-point type."""
    target, arguments = context.target, context.arguments
    if target is None or context.drafter is None or not context.served:
        return
    if arguments is not None and arguments.dtype != "auto":
        return
    if target.dtype is None:
        return
    own = dtype_of(context.config)
    named = clip(own, 40) if own else "no such key"
    if _served_dtype(own) == _served_dtype(target.dtype):
        return
    yield DTYPE.found(
        "The drafter does not run in the target's floating-point type.",
        where=f"{context.where}, torch_dtype",
        seen=f"{named}, served as {_served_dtype(own)}; the target as "
        f"{_served_dtype(target.dtype)}",
        leads_to="The first request fails: mat1 and mat2 must have the same dtype.",
        mend=f'Set "torch_dtype": "{_served_dtype(target.dtype)}" in the drafter\'s config.',
    )


def _served_dtype(name: str | None) -> str:
    """Return what SGLang makes of a config's dtype (``_get_and_verify_dtype``, auto)."""
    short = {"half": "float16", "float": "float32"}
    name = short.get(name or "float32", name or "float32")
    return "float16" if name == "float32" else clip(name, 40)


def check_quantisation(context: Context) -> Iterator[Diagnostic]:
    """Check the drafter's quantisation, and what it inherits."""
    if context.drafter is None or not context.served:
        return
    arguments = context.arguments
    if context.quantisation is not None:
        place, declared = context.quantisation
        method = declared.get("quant_method") if isinstance(declared, dict) else None
        algo = isinstance(declared, dict) and (
            "quant_algo" in declared or "quantization" in declared
        )
        if not isinstance(method, str) and not algo:
            yield QUANT_SHAPE.found(
                f"{place} names no method.",
                where=f"{context.where}, {place}",
                seen=brief(declared),
                leads_to=f"{context.running} fails, or reads packed numbers as weights.",
                mend=f"Restore the {place} of the quantiser, or remove an empty one.",
            )
        return
    if arguments is None or not arguments.quantization or not arguments.algorithm:
        return
    inherited = arguments.draft_quantization in (None, arguments.quantization)
    # The MLA class drops modelopt_fp4 by itself.
    if inherited and not (context.is_mla and arguments.quantization == "modelopt_fp4"):
        yield INHERITED.found(
            "The drafter takes the target's quantisation.",
            where="--speculative-draft-model-quantization",
            seen=f"not given; --quantization {arguments.quantization}",
            leads_to="Weights that are not quantised are loaded by a quantised method: a failure, "
            "or a worse drafter.",
            mend=f"Add --speculative-draft-model-quantization {UNQUANT}.",
        )


def check_rope(context: Context) -> Iterator[Diagnostic]:
    """Check that the rotary parameters can be read."""
    if context.drafter is None or not context.served:
        return
    config = context.config
    positions = config.get("max_position_embeddings")
    if positions is not None and number(positions) is None:
        yield _rope(context, "max_position_embeddings", positions, "a positive number")
    if "rope_theta" in config and number(config["rope_theta"]) is None:
        yield _rope(context, "rope_theta", config["rope_theta"], "a positive number")
    for key in ("rope_scaling", "rope_parameters"):
        scaling = config.get(key)
        if scaling is None:
            continue
        if not isinstance(scaling, dict):
            yield _rope(context, key, scaling, "an object or null")
            continue
        kind = scaling.get("rope_type", scaling.get("type"))
        theta = scaling.get("rope_theta")
        if theta is not None and number(theta) is None:
            yield _rope(context, f"{key}.rope_theta", theta, "a positive number")
        # The MLA class makes every kind deepseek_yarn.
        if context.is_llama and kind is not None and kind not in _ROPE_KINDS:
            yield _rope(context, f"{key}.rope_type", kind, f"one of {', '.join(_ROPE_KINDS)}")
        if kind in _NEEDS_FACTOR and kind != "longrope" and number(scaling.get("factor")) is None:
            yield _rope(context, f"{key}.factor", scaling.get("factor"), "a positive number")
        for name in ("low_freq_factor", "high_freq_factor") if kind == "llama3" else ():
            if number(scaling.get(name)) is None:
                yield _rope(context, f"{key}.{name}", scaling.get(name), "a positive number")
        original = scaling.get("original_max_position_embeddings")
        needed = context.loader.yarn_needs_original and kind in _NEEDS_ORIGINAL
        if (needed or original is not None) and number(original) is None:
            name = f"{key}.original_max_position_embeddings"
            yield _rope(context, name, original, "a positive number")


def _rope(context: Context, key: str, value: object, wanted: str) -> Diagnostic:
    return ROPE.found(
        f"{key} must be {wanted}.",
        where=f"{context.where}, {key}",
        seen=brief(value),
        leads_to=f"{context.running} fails while it builds the drafter, after the target.",
        mend="Copy the rotary parameters that the drafter was trained with.",
    )


def check_context_length(context: Context) -> Iterator[Diagnostic]:
    """Check the drafter's positions against the server's context length."""
    target, arguments = context.target, context.arguments
    if target is None or context.drafter is None or not context.served:
        return
    asked = arguments.context_length if arguments is not None else None
    served = asked or target.context_length
    key, positions = _positions(context)
    if served is None or positions is None or positions >= served:
        return
    if arguments is not None and arguments.allow_longer_context:
        if key is not None:
            yield CONTEXT_STRETCHED.found(
                "The drafter is made for fewer positions than are served.",
                where=f"{context.where}, {key}",
                seen=f"{positions}; served {served}",
                leads_to="Acceptance falls in requests longer than that.",
                mend=f"Serve with --context-length {positions}, or use a drafter trained longer.",
            )
        return
    yield CONTEXT.found(
        "The drafter's config allows fewer positions than are served.",
        where=f"{context.where}, {key or 'max_position_embeddings'}",
        seen=f"{positions}{'' if key else ' (default, no such key)'}; served {served}",
        leads_to="SGLang fails after the target is loaded: context_length is greater than the "
        "derived context_length.",
        mend=f"If the drafter was trained for it, set max_position_embeddings to {served}; if "
        f"not, serve with --context-length {positions}.",
    )


def _positions(context: Context) -> tuple[str | None, int | None]:
    """Return the key and value that SGLang derives the drafter's context length from."""
    config = context.config
    scaling = config.get("rope_scaling")
    factor = 1.0
    if (
        isinstance(scaling, dict)
        and scaling
        and scaling.get("rope_type") != "llama3"
        and ("original_max_position_embeddings" not in scaling)
    ):
        factor = number(scaling.get("factor", 1)) or 1.0
    for key in _CONTEXT_KEYS:
        if config.get(key) is not None:
            value = whole(config, key)
            return key, int(factor * value) if value is not None else None
    # null is no value to SGLang either; a key that is not there is filled in by the config class.
    null = "max_position_embeddings" in config
    default = 2048 if null or config.get("model_type") == "llama" else 4096
    return None, int(factor * default)
