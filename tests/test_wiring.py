"""Which states a drafter gets, and why."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_kimi_eagle.catalogue import KNOWN, digest_of, lookup
from sglang_kimi_eagle.diagnostics import Severity
from sglang_kimi_eagle.provenance import evidence_of
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.states import Convention
from sglang_kimi_eagle.wiring import Evidence, Reason, Wiring, resolve

OLD, NEW = RELEASES["0.5.12.post1"], RELEASES["0.5.13"]


def drafter(ids: Any = ..., **eagle: Any) -> dict[str, Any]:
    """A draft config with these ids below eagle_config."""
    if ids is not ...:
        eagle["eagle_aux_hidden_state_layer_ids"] = ids
    return {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": eagle}


def wired(config: dict[str, Any], release: Any = NEW, **options: Any) -> Wiring:
    return resolve(config, num_layers=61, release=release, **options)


def codes(wiring: Wiring) -> set[str]:
    return {finding.code for finding in wiring.findings}


def test_the_drafter_of_the_story_is_ambiguous_and_keeps_each_releases_reading() -> None:
    old, new = wired(drafter([2, 30, 58]), OLD), wired(drafter([2, 30, 58]), NEW)
    assert (old.states, new.states) == ((3, 31, 59), (2, 30, 58))
    assert old.reason is new.reason is Reason.AMBIGUOUS
    (finding,) = new.findings
    assert finding.severity is Severity.WARNING
    assert "h[2], h[30], h[58]" in finding.message and "h[3], h[31], h[59]" in finding.message
    assert "0.5.9 - 0.5.12.post1" in finding.seen and "0.5.13 - 0.5.23" in finding.seen
    assert "sglang-kimi-eagle pin" in finding.mend


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
@pytest.mark.parametrize(
    ("convention", "states"), [("layer_output", (3, 31, 59)), ("layer_input", (2, 30, 58))]
)
def test_a_declaration_holds_on_every_release(
    release: Any, convention: str, states: tuple[int, ...]
) -> None:
    wiring = wired(drafter([2, 30, 58], layer_id_convention=convention), release)
    assert (wiring.states, wiring.reason) == (states, Reason.DECLARATION)
    assert wiring.findings == ()


def test_a_list_that_every_release_reads_alike_is_noted_and_not_warned_about() -> None:
    wiring = wired(drafter([1, 29, 57]))
    assert (wiring.states, wiring.reason) == ((2, 30, 58), Reason.AGREED)
    assert [finding.severity for finding in wiring.findings] == [Severity.NOTE]


@pytest.mark.parametrize(
    "config", [{}, {"eagle_config": None}, drafter(), drafter(None), {"eagle_config": {}}]
)
def test_no_ids_are_the_engines_default_triple(config: dict[str, Any]) -> None:
    wiring = wired(config)
    assert (wiring.states, wiring.stock, wiring.reason) == (
        (2, 30, 58),
        (2, 30, 58),
        Reason.DEFAULT,
    )
    assert wiring.findings == ()


def test_top_level_ids_are_ignored_by_sglang_and_warned_about() -> None:
    wiring = wired({"eagle_aux_hidden_state_layer_ids": [3, 31, 59]})
    assert (wiring.states, wiring.reason) == ((2, 30, 58), Reason.AMBIGUOUS)
    assert codes(wiring) == {"KE211"}


def test_a_declaration_speaks_of_top_level_ids_when_there_are_no_others() -> None:
    config = drafter(layer_id_convention="layer_input")
    config["eagle_aux_hidden_state_layer_ids"] = [3, 31, 59]
    assert wired(config).states == (3, 31, 59)
    assert wired(config).stock == (2, 30, 58)


def test_two_lists_that_differ_are_warned_about() -> None:
    config = drafter([2, 30, 58])
    config["eagle_aux_hidden_state_layer_ids"] = [3, 31, 59]
    assert codes(wired(config)) == {"KE210", "KE212"}
    config["eagle_config"]["layer_id_convention"] = "layer_output"
    assert wired(config).states == (3, 31, 59)
    assert codes(wired(config)) == set()


def test_the_override_wins_over_everything() -> None:
    config = drafter([2, 30, 58], layer_id_convention="layer_input")
    wiring = wired(config, override=(3, 31, 59))
    assert (wiring.states, wiring.reason) == ((3, 31, 59), Reason.OVERRIDE)
    assert codes(wiring) == {"KE214"}
    assert wired(drafter([-1, 2, 30]), override=(3, 31, 59)).states == (3, 31, 59)


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ("2,30,58", "KE201"),
        ({"a": 1}, "KE201"),
        ([2, 30.0, 58], "KE201"),
        ([2, True, 58], "KE201"),
        ([2, "30", 58], "KE201"),
        (7, "KE201"),
        ([], "KE202"),
        ([-1, 2, 30], "KE203"),
        ([2, 30, 30], "KE204"),
        ([58, 30, 2], "KE205"),
        ([2, 30, 61], "KE206"),
        ([2, 30, 10**30], "KE201"),
        ([2, 30, 10**5000], "KE201"),
        (list(range(65)), "KE216"),
    ],
)
def test_broken_ids_are_refused_by_code(ids: Any, code: str) -> None:
    wiring = wired(drafter(ids, layer_id_convention="layer_input"))
    assert wiring.states is None and wiring.reason is Reason.REFUSED
    assert code in codes(wiring)


def test_the_refusal_of_minus_one_tells_its_story() -> None:
    (finding,) = wired(drafter([-1, 2, 30])).findings
    assert "never been captured" in finding.rule.summary
    assert "h[3]" in finding.mend


def test_the_last_layers_output_is_refused_with_the_reason() -> None:
    wiring = wired(drafter([2, 30, 60], layer_id_convention="layer_output"))
    (finding,) = wiring.findings
    assert finding.code == "KE206" and "never captured" in finding.leads_to


def test_the_embedding_is_captured_where_the_release_can() -> None:
    config = drafter([0, 30, 58], layer_id_convention="layer_input")
    assert wired(config, RELEASES["0.5.14"]).states == (0, 30, 58)
    refused = wired(config, RELEASES["0.5.13.post1"])
    assert refused.states is None and codes(refused) == {"KE206"}


def test_the_first_layers_output_is_wired_where_stock_cannot_express_it() -> None:
    wiring = wired(drafter([1, 29, 57], layer_id_convention="layer_input"))
    assert (wiring.states, wiring.stock) == ((1, 29, 57), (2, 30, 58))


def test_an_unknown_declaration_is_refused() -> None:
    assert codes(wired(drafter([2, 30, 58], layer_id_convention="output"))) == {"KE213"}
    assert codes(wired(drafter([2, 30, 58], layer_id_convention=["layer_output"]))) == {"KE213"}


def test_states_that_are_not_used_are_not_captured() -> None:
    wiring = wired(drafter([2, 30, 58], use_aux_hidden_state=False))
    assert (wiring.states, wiring.stock, wiring.reason) == (None, None, Reason.NOT_CAPTURED)
    assert codes(wiring) == {"KE208"}
    assert wired(drafter(use_aux_hidden_state=False)).findings == ()
    refused = wired(drafter(use_aux_hidden_state=False), override=(3, 31, 59))
    assert codes(refused) == {"KE209"}


def test_an_override_of_another_count_is_refused() -> None:
    assert codes(wired(drafter([2, 30, 58]), override=(3, 31))) == {"KE207"}
    assert codes(wired({}, override=(3, 31, 40, 59))) == {"KE207"}


def test_the_catalogue_knows_a_drafter_by_content_only() -> None:
    published = {
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
        "rope_theta": 50000,
    }
    known = lookup(published, None)
    assert known is not None and known.convention is Convention.LAYER_INPUT
    assert wired(published, OLD, known=known).states == (2, 30, 58)
    assert lookup(published, b"a d2t") is None
    assert lookup(published | {"hidden_size": 4096}, None) is None
    assert lookup(published | drafter([3, 31, 59]), None) is None
    assert len({entry.digest for entry in KNOWN}) == len(KNOWN)
    assert digest_of(published, b"x") != digest_of(published, b"y")


@pytest.mark.parametrize(
    ("model_type", "tensor", "expected"),
    [
        ("kimi_k2", "layers.0.mlp.up_proj.weight", Convention.LAYER_INPUT),
        ("kimi_k2", "midlayer.mlp.up_proj.weight", Convention.LAYER_OUTPUT),
        ("llama", "layers.0.mlp.up_proj.weight", Convention.LAYER_OUTPUT),
        ("kimi_k2", "fc.weight", None),
    ],
)
def test_torchspecs_exports_say_which_they_are(
    model_type: str, tensor: str, expected: Convention | None
) -> None:
    config = {"_torchspec_version": "0.1.0", "model_type": model_type}
    evidence = evidence_of(config, [tensor])
    assert (evidence.convention if evidence else None) is expected
    assert evidence_of({"model_type": model_type}, [tensor]) is None


def test_stronger_evidence_wins() -> None:
    output, inputs = (
        Evidence(c, "a test") for c in (Convention.LAYER_OUTPUT, Convention.LAYER_INPUT)
    )
    wiring = wired(drafter([2, 30, 58]), known=output, provenance=inputs)
    assert (wiring.states, wiring.reason) == ((3, 31, 59), Reason.KNOWN)
    wiring = wired(drafter([2, 30, 58]), provenance=inputs)
    assert (wiring.states, wiring.reason) == ((2, 30, 58), Reason.PROVENANCE)
