"""KE891-899: drafters of Kimi-K3, and how Kimi-K3 is launched with one."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.drafter.document import brief, clip

CONTEXT_PARALLEL = rule(
    "KE891",
    "k3-context-parallel",
    Severity.ERROR,
    "An EAGLE-3 drafter of Kimi-K3 under decode context parallelism: no release was seen to "
    "verify its drafts there, and SGLang's own checks are those of DSPARK drafters only.",
    example="--dcp-size 2 --speculative-algorithm EAGLE3",
)
OTHER_TRAINER = rule(
    "KE892",
    "k3-other-layout",
    Severity.ERROR,
    "A drafter of Kimi-K3 in the layout of a trainer that copies one of the target's own layers: "
    "an output gate (`g_proj`), SiTU, no rotary positions, names that begin with `model.`. "
    "SGLang's draft class has none of these. It skips tensors that it does not know with a "
    "warning, and drafts from weights that were never set.",
    example='{"architectures": ["Eagle3DeepseekV2ForCausalLM"], "hidden_act": "situ"}',
)
NOPE = rule(
    "KE893",
    "k3-nope-ignored",
    Severity.NOTE,
    "The drafter's config says `mla_use_nope: true`, which is copied from the target. Published "
    "drafters with it were trained with rotary positions; SGLang's draft class rotates too, so "
    "nothing has to be done.",
    example='{"mla_use_nope": true, "rope_theta": 50000.0}',
)
MIXTURE = rule(
    "KE894",
    "k3-mixture",
    Severity.ERROR,
    "This SGLang would feed the drafter the mixture that the next layer reads, which is what "
    "DSPARK drafters are trained on. EAGLE-3 drafters of Kimi-K3 are trained on the prefix: shape "
    "and type are the same, the values are not.",
    example="A patched SGLang whose set_eagle3_layers_to_capture calls "
    "set_dspark_layers_to_capture and does nothing else.",
)

_LISTED = 3
_TARGETS_OWN = ("kimi_k3", "kimi_linear")


def check_context_parallel(context: Context) -> Iterator[Diagnostic]:
    """Refuse decode context parallelism."""
    arguments = context.arguments
    if arguments is None or arguments.algorithm != "EAGLE3" or arguments.dcp_size <= 1:
        return
    yield CONTEXT_PARALLEL.found(
        "Decode context parallelism with an EAGLE-3 drafter of Kimi-K3.",
        where="--dcp-size",
        seen=str(arguments.dcp_size),
        leads_to="Whether drafts are verified rightly there is not known.",
        mend="Remove --dcp-size.",
    )


def check_layout(context: Context) -> Iterator[Diagnostic]:
    """Refuse drafters whose layer is a copy of the target's."""
    if context.drafter is None or not context.is_mla:
        return
    config, names = context.config, sorted(context.drafter.tensors)
    gates = [name for name in names if name.endswith("self_attn.g_proj.weight")]
    prefixed = [name for name in names if name.startswith("model.")]
    marks: list[str] = []
    if gates:
        marks.append(f"{clip(gates[0])}, an output gate")
    if prefixed:
        more = f" and {len(prefixed) - _LISTED} more" if len(prefixed) > _LISTED else ""
        listed = ", ".join(clip(name) for name in prefixed[:_LISTED])
        marks.append(f"names with the prefix model.: {listed}{more}")
    if config.get("hidden_act") == "situ":
        marks.append('"hidden_act": "situ"')
    if config.get("model_type") in _TARGETS_OWN:
        marks.append(f'"model_type": {brief(config.get("model_type"))}, the target\'s own')
    if config.get("mla_use_output_gate"):
        marks.append('"mla_use_output_gate": true')
    if not marks:
        return
    yield OTHER_TRAINER.found(
        "The drafter's layer is a copy of the target's, which SGLang's draft class is not.",
        where=str(context.drafter.folder),
        seen="; ".join(marks),
        leads_to=f"{context.running} skips what it does not know with a warning and drafts from "
        "weights that were never set: acceptance length 1.",
        mend="Serve a drafter in the published layout (layers.0.*, rotary positions, SiLU).",
    )


def check_nope(context: Context) -> Iterator[Diagnostic]:
    """Say that ``mla_use_nope`` means nothing here."""
    if context.drafter is None or not context.is_mla or not context.config.get("mla_use_nope"):
        return
    yield NOPE.found(
        "mla_use_nope is not honoured, and must not be.",
        where=f"{context.where}, mla_use_nope",
        seen="true",
        leads_to="The drafter's attention has rotary positions, as in its training.",
    )


CHECKS = (check_context_parallel, check_layout, check_nope)
