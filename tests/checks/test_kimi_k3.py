"""Drafters of Kimi-K3: other trainers' layouts, quantisation, and how they are launched."""

from __future__ import annotations

import pytest

from drafter_files import Checkpoint, Tensor, mla, tiny_target
from judging import LAUNCH, changed, codes, judge
from sglang_kimi_eagle.diagnostics import Severity

TARGET = tiny_target() | {
    "architectures": ["KimiK3ForConditionalGeneration"],
    "model_type": "kimi_k3",
}


def drafter() -> Checkpoint:
    """A drafter in the published layout, with the target's sizes."""
    return changed(mla(own_embedding=True), mla_use_nope=True, hidden_act="silu")


def with_gate() -> Checkpoint:
    checkpoint = drafter()
    gate = checkpoint.tensors["layers.0.self_attn.o_proj.weight"].shape[::-1]
    checkpoint.tensors["layers.0.self_attn.g_proj.weight"] = Tensor(gate)
    return checkpoint


def prefixed() -> Checkpoint:
    checkpoint = drafter()
    for name in list(checkpoint.tensors):
        checkpoint.tensors[f"model.{name}"] = checkpoint.tensors.pop(name)
    return checkpoint


def found(checkpoint: Checkpoint, launch: str = LAUNCH) -> dict[str, Severity]:
    findings = judge(checkpoint, target=TARGET, launch=launch, notes=True)
    return {finding.code: finding.severity for finding in findings}


def test_the_published_layout_is_served_and_rotary_positions_are_noted() -> None:
    assert found(drafter()) == {"KE893": Severity.NOTE}
    assert found(changed(drafter(), mla_use_nope=...)) == {}


@pytest.mark.parametrize(
    ("checkpoint", "seen"),
    [
        (with_gate(), "layers.0.self_attn.g_proj.weight, an output gate"),
        (prefixed(), "names with the prefix model.:"),
        (changed(drafter(), hidden_act="situ"), '"hidden_act": "situ"'),
        (changed(drafter(), model_type="kimi_linear"), "the target's own"),
        (changed(drafter(), mla_use_output_gate=True), '"mla_use_output_gate": true'),
    ],
)
def test_a_copy_of_the_targets_layer_is_refused(checkpoint: Checkpoint, seen: str) -> None:
    (finding,) = [f for f in judge(checkpoint, target=TARGET) if f.code == "KE892"]
    assert finding.severity is Severity.ERROR
    assert seen in finding.seen


def test_only_drafters_of_kimi_k3_are_judged_so() -> None:
    assert not {code for code in codes(with_gate()) if code.startswith("KE89")}


def test_inherited_quantisation_is_said_to_be_switched_off() -> None:
    launch = f"{LAUNCH} --quantization compressed-tensors"
    (finding,) = [f for f in judge(drafter(), target=TARGET, launch=launch) if f.code == "KE611"]
    assert "--speculative-draft-model-quantization unquant" in finding.mend
    assert "KE611" not in found(
        drafter(), f"{launch} --speculative-draft-model-quantization unquant"
    )


@pytest.mark.parametrize(
    ("flag", "code"), [("--dcp-size 2", "KE891"), ("--pp-size 2", "KE520"), ("--dcp-size 1", None)]
)
def test_context_and_pipeline_parallelism_are_refused(flag: str, code: str | None) -> None:
    errors = {
        code
        for code, severity in found(drafter(), f"{LAUNCH} {flag}").items()
        if severity is Severity.ERROR
    }
    assert errors == ({code} if code else set())


def test_a_drafter_of_an_older_kimi_is_warned_about() -> None:
    assert "KE604" in found(changed(drafter(), base_model="moonshotai/Kimi-K2.5"))
    assert "KE604" not in found(changed(drafter(), base_model="moonshotai/Kimi-K3"))
