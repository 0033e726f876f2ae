"""Every public report that a check can know about: the drafter that shows it, and its healthy twin.

The numbers are those of the list in the project's facts; the names say what happened.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drafter_files import KIMI, Checkpoint, Tensor, d2t, llama, mla, t2d, tiny_target, torchspec_mha
from judging import LAUNCH, changed, codes, judge
from sglang_kimi_eagle.diagnostics import Severity
from sglang_kimi_eagle.drafter import read_drafter
from sglang_kimi_eagle.launch import wiring_of
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.settings import Settings
from sglang_kimi_eagle.wiring import Reason, Wiring

IDS = "eagle_aux_hidden_state_layer_ids"


def eagle(ids: Any, **more: Any) -> dict[str, Any]:
    return {IDS: ids, "use_aux_hidden_state": True, **more}


def test_the_healthy_twins_pass_clean() -> None:
    assert codes(llama()) == []
    assert codes(mla()) == []


class TestConfigShape:
    @pytest.mark.parametrize("release", ["0.5.9", "0.5.14"])
    def test_eagle_config_null_fails_in_the_worker(self, release: str) -> None:
        (finding,) = judge(changed(llama(), eagle_config=None), release=release)
        assert finding.code == "KE121"
        assert finding.severity == "error"
        assert release in finding.leads_to

    def test_eagle_config_null_is_taken_for_missing_later(self) -> None:
        (finding,) = judge(changed(llama(), eagle_config=None))
        assert (finding.code, finding.severity) == ("KE121", "warning")

    def test_no_eagle_config_is_healthy(self) -> None:
        assert codes(changed(llama(), eagle_config=...)) == []

    @pytest.mark.parametrize("value", [[1, 3, 4], "x", 3, True])
    def test_eagle_config_of_the_wrong_type(self, value: Any) -> None:
        assert codes(changed(llama(), eagle_config=value)) == ["KE122"]

    def test_eagle_config_at_the_wrong_level(self) -> None:
        broken = changed(llama(), eagle_config=..., text_config={"eagle_config": eagle([1, 3, 4])})
        assert codes(broken) == ["KE123"]

    def test_flag_at_the_wrong_level(self) -> None:
        broken = changed(llama(), eagle_config={IDS: [1, 3, 4]}, use_aux_hidden_state=False)
        assert codes(broken) == ["KE124"]

    def test_flag_of_the_wrong_type(self) -> None:
        broken = changed(llama(), eagle_config={IDS: [1, 3, 4], "use_aux_hidden_state": "false"})
        assert codes(broken) == ["KE125"]

    def test_two_numbers_of_states(self) -> None:
        assert "KE126" in codes(changed(llama(), num_aux_hidden_states=4))
        assert codes(changed(llama(), num_aux_hidden_states=3)) == []


class TestLayerIds:
    def test_5_fewer_states_than_fc_wants(self) -> None:
        assert codes(changed(llama(), eagle_config=eagle([1, 3]))) == ["KE310"]

    def test_5_norm_before_fc_ignored(self) -> None:
        drafter = changed(llama(), norm_before_fc=True)
        drafter.tensors["input_norm.weight"] = Tensor((384,))
        assert codes(drafter, release="0.5.17") == []
        assert codes(drafter, release="0.5.16") == ["KE313", "KE314"]
        nested = changed(
            drafter, norm_before_fc=..., eagle_config=eagle([1, 3, 4], norm_before_fc=True)
        )
        assert codes(nested) == []

    def test_5_norm_before_fc_never_in_the_mla_class(self) -> None:
        assert codes(changed(mla(), norm_before_fc=True)) == ["KE314"]

    def test_16_four_states(self) -> None:
        drafter = changed(llama(states=4), eagle_config=eagle([1, 3, 4, 5]))
        assert codes(drafter, release="0.5.12") == []
        assert codes(drafter, release="0.5.11") == ["KE310"]

    def test_17_all_layers_concatenated(self) -> None:
        assert codes(llama(states=8)) == ["KE310"]

    def wiring(self, release: str = "0.5.23", **eagle_config: Any) -> Wiring:
        """The wiring of the tiny drafter for a target of 61 layers."""
        checkpoint = changed(llama(), eagle_config=eagle_config)
        with tempfile.TemporaryDirectory() as folder:
            read = read_drafter(str(checkpoint.write(Path(folder))))
            return wiring_of(read, 61, RELEASES[release], Settings())

    def found(self, wiring: Wiring) -> list[str]:
        return [finding.code for finding in wiring.findings]

    @pytest.mark.parametrize("release", ["0.5.12.post1", "0.5.23"])
    def test_4_7_ids_of_two_conventions(self, release: str) -> None:
        assert self.found(self.wiring(release, **{IDS: [2, 30, 58]})) == ["KE210"]
        for convention in ("layer_output", "layer_input"):
            declared = {IDS: [2, 30, 58], "layer_id_convention": convention}
            assert self.found(self.wiring(release, **declared)) == []

    def test_6_an_empty_list_is_no_default(self) -> None:
        assert self.found(self.wiring(**{IDS: []})) == ["KE202"]
        assert self.wiring(use_aux_hidden_state=True).states == (2, 30, 58)

    def test_8_10_an_id_that_is_never_captured(self) -> None:
        assert "KE206" in self.found(self.wiring(**eagle([1, 30, 60])))
        assert self.wiring(**eagle([1, 30, 59])).states == (2, 31, 60)

    def test_9_ids_at_the_other_level(self) -> None:
        checkpoint = changed(llama(), eagle_config={}, **{IDS: [1, 3, 4]})
        with tempfile.TemporaryDirectory() as folder:
            read = read_drafter(str(checkpoint.write(Path(folder))))
            wiring = wiring_of(read, 8, RELEASES["0.5.23"], Settings())
        assert self.found(wiring) == ["KE211"]
        assert self.found(self.wiring(**eagle([1, 29, 57]))) == ["KE215"]

    def test_11_no_eagle_config_is_said_to_mean_the_default(self) -> None:
        wiring = self.wiring()
        assert (wiring.states, wiring.reason) == ((2, 30, 58), Reason.DEFAULT)


class TestLaunch:
    def test_12_eagle_in_place_of_eagle3(self) -> None:
        assert codes(llama(), launch=LAUNCH.replace("EAGLE3", "EAGLE")) == ["KE501"]
        assert codes(llama(), launch=LAUNCH.replace("EAGLE3", "NEXTN")) == ["KE501"]
        assert codes(llama(), launch=LAUNCH.replace("EAGLE3", "eagle3")) == []

    @pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN", "NGRAM", "STANDALONE", "DFLASH"])
    def test_other_algorithms_are_left_alone(self, algorithm: str) -> None:
        other = changed(llama(), architectures=["LlamaForCausalLMEagle"], torch_dtype="float16")
        launch = LAUNCH.replace("EAGLE3", algorithm)
        assert codes(other, launch=f"{launch} --pp-size 2 --speculative-num-steps 3") == []
        assert codes(None, launch=launch.replace("drafter", "kimi")) == []

    def test_no_drafter(self) -> None:
        assert codes(None, launch="--model-path kimi --speculative-algorithm EAGLE3") == ["KE502"]

    def test_drafter_is_the_target(self) -> None:
        launch = LAUNCH.replace("drafter", "kimi")
        assert codes(llama(), launch=launch) == ["KE503"]
        assert codes(llama(), launch=f"{launch} --speculative-draft-model-revision eagle3") == []

    def test_23_trtllm_mla_inherited_by_a_llama_drafter(self) -> None:
        inherited = f"{LAUNCH} --attention-backend trtllm_mla"
        assert codes(llama(), launch=inherited) == ["KE510"]
        assert codes(mla(), launch=inherited) == []
        own = f"{inherited} --speculative-draft-attention-backend flashinfer"
        assert codes(llama(), launch=own) == []

    def test_24_flashmla_inherited_by_a_llama_drafter(self) -> None:
        assert codes(llama(), launch=f"{LAUNCH} --decode-attention-backend flashmla") == ["KE510"]
        assert codes(llama(), launch=f"{LAUNCH} --decode-attention-backend fa3") == []

    def test_23_each_phase_has_the_backend_given_for_it(self) -> None:
        both = "--prefill-attention-backend fa3 --decode-attention-backend fa3"
        assert codes(llama(), launch=f"{LAUNCH} --attention-backend trtllm_mla {both}") == []
        one = "--attention-backend trtllm_mla --decode-attention-backend fa3"
        assert codes(llama(), launch=f"{LAUNCH} {one}") == ["KE510"]

    @pytest.mark.parametrize("drafter", [llama(), mla()])
    def test_a_backend_that_drafts_nothing(self, drafter: Checkpoint) -> None:
        assert codes(drafter, launch=f"{LAUNCH} --attention-backend torch_native") == ["KE510"]
        own = "--attention-backend cutlass_mla --speculative-draft-attention-backend triton"
        assert codes(drafter, launch=f"{LAUNCH} {own}") == []

    def test_an_mla_drafter_on_a_backend_of_plain_attention(self) -> None:
        launch = f"{LAUNCH} --speculative-draft-attention-backend trtllm_mha"
        assert codes(mla(), launch=launch) == ["KE510"]
        assert codes(llama(), launch=launch) == []

    def test_31_pipeline_parallelism(self) -> None:
        assert codes(llama(), launch=f"{LAUNCH} --pp-size 2") == ["KE520"]
        assert codes(llama(), launch=f"{LAUNCH} --pp-size 1") == []

    def test_two_batch_overlap(self) -> None:
        assert codes(llama(), launch=f"{LAUNCH} --enable-two-batch-overlap") == ["KE521"]

    def test_30_dp_attention_on_the_release_without_it(self) -> None:
        launch = f"{LAUNCH} --enable-dp-attention"
        assert codes(llama(), launch=launch, release="0.5.9") == ["KE522"]
        assert codes(llama(), launch=launch, release="0.5.10") == []

    def test_33_numbers_of_speculation(self) -> None:
        def found(numbers: str, more: str = "", release: str = "0.5.23") -> list[str]:
            flags = ("num-steps", "eagle-topk", "num-draft-tokens")
            words = [
                f"--speculative-{flag} {value}"
                for flag, value in zip(flags, numbers.split(), strict=True)
                if value != "-"
            ]
            return codes(llama(), launch=" ".join([LAUNCH, *words, more]), release=release)

        assert found("3 1 4") == []
        assert found("3 1 8") == ["KE512"]
        assert found("3 - -") == found("- 1 -") == found("3 4 -") == ["KE513"]
        assert found("3 1 -") == []
        assert found("- 1 -", "--speculative-adaptive") == []
        assert found("0 1 1") == ["KE514"]
        assert found(
            "3 4 8",
            "--page-size 64 --attention-backend flashmla --speculative-draft-attention-backend fa3",
        ) == ["KE511"]
        assert found("3 4 8", "--page-size 64 --attention-backend triton") == []
        assert found("3 4 8", "--page-size 64 --attention-backend triton", "0.5.12") == ["KE511"]
        assert found("3 4 8", "--page-size 1 --attention-backend triton", "0.5.12") == []

    def test_33_a_tree_of_fewer_nodes_than_draft_tokens(self) -> None:
        def found(steps: int, topk: int, tokens: int) -> list[str]:
            numbers = f"--speculative-num-steps {steps} --speculative-eagle-topk {topk}"
            tokens_flag = f"--speculative-num-draft-tokens {tokens}"
            return codes(llama(), launch=f"{LAUNCH} {numbers} {tokens_flag}")

        assert found(1, 2, 4) == ["KE515"]
        assert found(1, 2, 3) == []
        assert found(3, 4, 38) == ["KE515"]
        assert found(3, 4, 37) == []

    @pytest.mark.parametrize(
        ("release", "found"),
        [
            ("0.5.9", ["KE525"]),
            ("0.5.10", []),
            ("0.5.18", []),
            ("0.5.19", ["KE525"]),
            ("0.5.21", ["KE525"]),
            ("0.5.22", []),
        ],
    )
    def test_34_place_holders_of_images(self, release: str, found: list[str]) -> None:
        notes = judge(llama(), release=release, notes=True)
        assert [finding.code for finding in notes] == found
        assert codes(llama(), release=release) == []
        text_only = tiny_target() | {"architectures": ["DeepseekV3ForCausalLM"]}
        assert judge(llama(), release=release, target=text_only, notes=True) == []

    def test_34_images_for_a_drafter_of_another_width(self) -> None:
        narrow = llama(hidden=96, target_hidden=128, own_embedding=True)
        (finding,) = judge(narrow, notes=True)
        assert finding.code == "KE525" and "96" in finding.seen and "128" in finding.seen

    def test_35_hidden_states(self) -> None:
        assert codes(llama(), launch=f"{LAUNCH} --enable-return-hidden-states") == ["KE523"]

    def test_a_token_map(self) -> None:
        assert codes(llama(), launch=f"{LAUNCH} --speculative-token-map x.pt") == ["KE524"]

    def test_13_kimi_k2_type_and_eagle(self) -> None:
        drafter = changed(llama(), model_type="kimi_k2")
        launch = LAUNCH.replace("EAGLE3", "EAGLE")
        assert codes(drafter, release="0.5.11", launch=launch) == ["KE303", "KE501"]
        assert codes(drafter, release="0.5.12") == []

    def test_no_model_type(self) -> None:
        assert codes(changed(llama(), model_type=...)) == ["KE303"]


class TestTensors:
    def test_16_fc_norm_dropped_by_older_releases(self) -> None:
        for build, since, before in ((llama, "0.5.12", "0.5.11"), (mla, "0.5.13", "0.5.12")):
            drafter = changed(build(), fc_norm=True, norm_output=True)
            for index in range(3):
                drafter.tensors[f"fc_norm.{index}.weight"] = Tensor((128,))
            assert codes(drafter, release=since) == []
            assert codes(drafter, release=before) == ["KE313", "KE314"]

    def test_16_older_names_of_the_norms(self) -> None:
        drafter = changed(llama(), use_aux_norm=True)
        for part in ("low", "mid", "high"):
            drafter.tensors[f"aux_norm_{part}.weight"] = Tensor((128,))
        assert codes(drafter) == []
        assert codes(drafter, release="0.5.11") == ["KE313", "KE314"]
        assert codes(changed(drafter, use_aux_norm=False)) == ["KE313"]
        in_mla = changed(mla(), use_aux_norm=True)
        in_mla.tensors |= {f"aux_norm_{p}.weight": Tensor((128,)) for p in ("low", "mid", "high")}
        assert codes(in_mla) == ["KE312", "KE313"]

    def test_16_norm_output_alone(self) -> None:
        assert codes(changed(mla(), norm_output=True), release="0.5.12.post1") == ["KE314"]
        assert codes(changed(mla(), norm_output=True), release="0.5.13") == []

    def test_norms_declared_and_not_there(self) -> None:
        assert codes(changed(llama(), fc_norm=True)) == ["KE312"]

    def test_layers_0_on_releases_that_know_midlayer_only(self) -> None:
        drafter = llama(layer="layers.0")
        assert codes(drafter, release="0.5.12") == []
        findings = judge(drafter, release="0.5.11")
        assert [finding.code for finding in findings] == ["KE312", "KE313"]
        assert "midlayer" in findings[0].mend

    def test_names_that_begin_with_model(self) -> None:
        assert codes(llama(layer="model.midlayer")) == []
        assert codes(mla(layer="midlayer")) == []
        assert codes(mla(layer="model.layers.0")) == ["KE312", "KE313"]

    def test_18_no_embedding(self) -> None:
        assert codes(llama(own_embedding=False)) == []
        assert codes(llama(own_embedding=True)) == []

    def test_an_embedding_of_another_vocabulary(self) -> None:
        drafter = llama(own_embedding=True)
        drafter.tensors["embed_tokens.weight"] = Tensor((512, 128))
        assert codes(drafter) == ["KE311"]

    def test_18_another_width_without_embedding(self) -> None:
        drafter = {"hidden": 96, "target_hidden": 128}
        assert codes(llama(**drafter)) == ["KE315"]
        assert codes(llama(**drafter, own_embedding=True)) == []
        assert codes(mla(**drafter)) == ["KE315"]
        assert codes(mla(**drafter, own_embedding=True)) == []

    def test_18_another_width_undeclared(self) -> None:
        assert "KE601" in codes(llama(hidden=96))

    def test_19_a_drafter_declared_as_plain_llama(self) -> None:
        (finding,) = judge(changed(llama(), architectures=["LlamaForCausalLM"]))
        assert finding.code == "KE301"
        assert "LlamaForCausalLMEagle3" in finding.mend

    def test_mla_class_on_releases_without_it(self) -> None:
        assert codes(mla(), release="0.5.11") == ["KE302"]

    @pytest.mark.parametrize("value", [..., None, [], "LlamaForCausalLMEagle3", [7], [[]]])
    def test_odd_architectures(self, value: Any) -> None:
        assert codes(changed(llama(), architectures=value)) == ["KE301"]

    def test_a_tensor_of_another_shape(self) -> None:
        drafter = llama()
        drafter.tensors["midlayer.mlp.up_proj.weight"] = Tensor((128, 128))
        assert codes(drafter) == ["KE311"]
        assert codes(changed(llama(), intermediate_size=512)) == ["KE311"]
        assert codes(changed(llama(), head_dim=64)) == ["KE311"]
        assert codes(changed(mla(), kv_lora_rank=32)) == ["KE311"]
        assert codes(changed(mla(), v_head_dim=16)) == ["KE311"]

    def test_a_missing_tensor(self) -> None:
        for build in (llama, mla):
            for name in build().tensors:
                drafter = build()
                del drafter.tensors[name]
                expected = {"d2t": ["KE404"], "t2d": []}.get(name, ["KE312"])
                assert codes(drafter) == expected, name

    def test_a_tensor_that_no_class_takes(self) -> None:
        for build in (llama, mla):
            drafter = build()
            drafter.tensors["midlayer.self_attn.g_proj.weight"] = Tensor((4, 128))
            assert codes(drafter) == ["KE313"]

    def test_what_old_exports_carry_along(self) -> None:
        drafter = llama()
        drafter.tensors["midlayer.self_attn.rotary_emb.inv_freq"] = Tensor((16,), "F32")
        assert codes(drafter) == []

    def test_scales_of_a_quantised_cache(self) -> None:
        for name in ("midlayer.self_attn.k_scale", "midlayer.self_attn.k_proj.k_scale"):
            drafter = llama()
            drafter.tensors[name] = Tensor((1,), "F32")
            assert codes(drafter) == []

    @pytest.mark.parametrize(
        ("model_type", "severity"),
        [("mistral", None), ("kimi_k25_foo", Severity.WARNING), ("", Severity.ERROR)],
    )
    def test_a_model_type_of_no_known_drafter(
        self, model_type: str, severity: Severity | None
    ) -> None:
        found = judge(changed(llama(), model_type=model_type))
        assert [(one.code, one.severity) for one in found] == (
            [("KE303", severity)] if severity else []
        )

    def test_what_config_classes_fill_in(self) -> None:
        assert codes(changed(llama(groups=4), num_key_value_heads=None, head_dim=None)) == []
        assert codes(changed(mla(), num_key_value_heads=None, head_dim=None)) == []

    def test_number_of_layers(self) -> None:
        assert codes(changed(mla(), num_hidden_layers=2)) == ["KE305"]
        assert codes(changed(llama(), num_hidden_layers=2), release="0.5.11") == ["KE305"]
        assert codes(changed(llama(), num_hidden_layers=2)) == ["KE312"]
        assert codes(changed(llama(), num_hidden_layers=...)) == ["KE305"]

    def test_two_layers(self) -> None:
        drafter = changed(llama(layer="layers.0"), num_hidden_layers=2)
        for name, tensor in llama(layer="layers.1").tensors.items():
            if name.startswith("layers.1."):
                entering = "self_attn" in name and "o_proj" not in name
                shape = (tensor.shape[0], 128) if entering else tensor.shape
                drafter.tensors[name] = Tensor(shape)
        assert codes(drafter) == []
        del drafter.tensors["layers.1.input_layernorm.weight"]
        assert codes(drafter) == []

    @pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "num_attention_heads"])
    @pytest.mark.parametrize("value", [..., None, 0, -1, "128", 1.5, True, 10**30])
    def test_a_size_that_is_none(self, key: str, value: Any) -> None:
        assert "KE304" in codes(changed(llama(), **{key: value}))

    def test_heads_that_do_not_divide(self) -> None:
        assert "KE306" in codes(llama(heads=4, groups=3))

    def test_target_hidden_size_null(self) -> None:
        assert codes(changed(llama(), target_hidden_size=None)) == ["KE304"]
        assert codes(changed(mla(), target_hidden_size=None)) == []


class TestVocabulary:
    def test_19_a_reduced_head_undeclared(self) -> None:
        assert codes(changed(llama(), draft_vocab_size=1024)) == ["KE403", "KE406"]

    def test_key_missing(self) -> None:
        (finding,) = judge(changed(llama(), draft_vocab_size=...))
        assert finding.code == "KE401"
        assert "384" in finding.mend
        assert codes(changed(mla(draft_vocab=1024), draft_vocab_size=...)) == ["KE316"]
        tied = changed(llama(), tie_word_embeddings=True, draft_vocab_size=...)
        assert codes(tied) == ["KE401"]

    def test_null_takes_the_head_of_the_target(self) -> None:
        assert codes(llama(draft_vocab=None)) == []
        assert codes(mla(draft_vocab=None)) == []
        assert codes(changed(llama(draft_vocab=1024), draft_vocab_size=None)) == ["KE316"]

    def test_a_map_beside_the_head_of_the_target(self) -> None:
        assert codes(changed(llama(), draft_vocab_size=None)) == ["KE316", "KE412"]

    def test_tied_embeddings(self) -> None:
        drafter = changed(llama(draft_vocab=1024, own_embedding=True), tie_word_embeddings=True)
        assert codes(drafter) == ["KE316"]
        del drafter.tensors["lm_head.weight"]
        assert codes(drafter) == []

    @pytest.mark.parametrize("build", [llama, mla])
    def test_a_tied_head_of_a_reduced_vocabulary(self, build: Callable[..., Checkpoint]) -> None:
        assert codes(changed(build(), tie_word_embeddings=True)) == ["KE413"]

    @pytest.mark.parametrize("value", [0, -5, "384", 2048, 1.5])
    def test_a_size_that_is_none(self, value: Any) -> None:
        assert "KE402" in codes(changed(llama(), draft_vocab_size=value))

    def test_20_reduced_vocabulary_without_d2t(self) -> None:
        drafter = llama()
        del drafter.tensors["d2t"], drafter.tensors["t2d"]
        assert codes(drafter) == ["KE404"]

    def test_21_d2t_of_another_length(self) -> None:
        drafter = llama()
        drafter.tensors["d2t"] = d2t(range(100))
        assert codes(drafter) == ["KE406"]

    @pytest.mark.parametrize("tensor", [Tensor((384,), "F32"), Tensor((1, 384), "I64")])
    def test_d2t_of_another_type(self, tensor: Tensor) -> None:
        drafter = llama()
        drafter.tensors["d2t"] = tensor
        assert codes(drafter) == ["KE405"]

    def test_d2t_out_of_range(self) -> None:
        drafter = llama()
        drafter.tensors["d2t"] = d2t([*range(383), 1024])
        assert codes(drafter) == ["KE407"]
        drafter.tensors["d2t"] = d2t([-1, *range(1, 384)])
        assert codes(drafter) == ["KE407"]

    def test_d2t_holds_target_ids(self) -> None:
        drafter = llama()
        targets = range(640, 1024)
        drafter.tensors["d2t"] = d2t([index + target for index, target in enumerate(targets)])
        (finding,) = judge(drafter)
        assert finding.code == "KE407"
        assert "differences" in finding.mend

    def test_d2t_leads_twice_to_one_token(self) -> None:
        drafter = llama()
        drafter.tensors["d2t"] = d2t([0, 0, *range(2, 384)])
        assert codes(drafter) == ["KE408"]

    def test_d2t_does_not_ascend(self) -> None:
        drafter = llama()
        targets = [9, 5, *range(10, 392)]
        drafter.tensors |= {"d2t": d2t(targets), "t2d": t2d(targets, 1024)}
        assert codes(drafter) == ["KE409"]

    def test_22_d2t_all_zero(self) -> None:
        drafter = llama()
        drafter.tensors["d2t"] = d2t(range(384))
        assert codes(drafter) == ["KE410", "KE411"]
        drafter.tensors["t2d"] = t2d(range(384), 1024)
        assert codes(drafter) == ["KE410"]
        del drafter.tensors["t2d"]
        assert codes(drafter) == ["KE410"]
        whole = llama(draft_vocab=1024)
        whole.tensors["d2t"] = d2t(range(1024))
        assert codes(whole) == []

    def test_22_t2d_marks_another_number(self) -> None:
        drafter = llama()
        drafter.tensors["t2d"] = t2d(range(0, 383 * 2, 2), 1024)
        assert codes(drafter) == ["KE411"]

    def test_t2d_of_another_length(self) -> None:
        drafter = llama()
        drafter.tensors["t2d"] = t2d(range(384), 512)
        assert codes(drafter) == ["KE411"]

    @pytest.mark.parametrize(
        ("tensor", "found"),
        [
            (Tensor((1024,), "F32"), ["KE411"]),
            (Tensor((1, 1024), "BOOL"), ["KE411"]),
            (Tensor((1, 1024), "I64"), ["KE411"]),
            (Tensor((1024,), "I64"), []),
            (Tensor((1024,), "U8"), ["KE411"]),
        ],
    )
    def test_t2d_of_another_type(self, tensor: Tensor, found: list[str]) -> None:
        drafter = llama()
        drafter.tensors["t2d"] = tensor
        assert codes(drafter) == found

    def test_a_mask_of_another_type_passes(self) -> None:
        drafter = llama()
        mask = drafter.tensors["t2d"]
        drafter.tensors["t2d"] = Tensor(mask.shape, "U8", mask.data)
        assert codes(drafter) == []

    def test_d2t_moves_ids_of_a_whole_vocabulary(self) -> None:
        drafter = llama(draft_vocab=1024)
        drafter.tensors["d2t"] = d2t(list(reversed(range(1024))))
        assert codes(drafter) == ["KE412"]


class TestPairing:
    def test_a_drafter_of_another_model(self) -> None:
        assert codes(llama(vocab=2048)) == ["KE602"]
        assert codes(llama(), target=tiny_target(hidden_size=256)) == ["KE601"]

    def test_special_tokens(self) -> None:
        assert codes(changed(llama(), bos_token_id=7, eos_token_id=8)) == ["KE603"]
        assert codes(changed(llama(), bos_token_id=7, eos_token_id=1)) == []
        assert codes(changed(llama(), bos_token_id=0, eos_token_id=[1, 5])) == []

    def test_declared_base_model(self) -> None:
        key = "target_model_name_or_path"
        assert codes(changed(llama(), **{key: "Qwen/Qwen3-32B"})) == ["KE604"]
        assert codes(changed(llama(), **{key: "moonshotai/Kimi-K2.5"})) == []
        assert codes(changed(llama(), **{key: "/data/models/base"})) == []
        verifier = {"verifier": {"name_or_path": "Qwen/Qwen3-32B"}}
        assert codes(changed(llama(), speculators_config=verifier)) == ["KE604"]

    def test_26_dtype(self) -> None:
        assert codes(changed(llama(), torch_dtype="float16")) == ["KE610"]
        assert (
            codes(changed(llama(), torch_dtype="float16"), launch=f"{LAUNCH} --dtype bfloat16")
            == []
        )
        assert codes(changed(llama(), torch_dtype=...)) == ["KE610"]
        assert codes(changed(llama(), torch_dtype=..., dtype="bfloat16")) == []
        assert codes(changed(llama(), torch_dtype="torch.bfloat16")) == []

    def test_25_quantisation_inherited(self) -> None:
        inherited = f"{LAUNCH} --quantization w4afp8"
        assert codes(llama(), launch=inherited) == ["KE611"]
        own = f"{inherited} --speculative-draft-model-quantization unquant"
        assert codes(llama(), launch=own) == []

    def test_25_the_mla_class_drops_modelopt_fp4(self) -> None:
        launch = f"{LAUNCH} --quantization modelopt_fp4"
        assert codes(mla(), launch=launch) == []
        assert codes(llama(), launch=launch) == ["KE611"]

    def test_quantised_and_undeclared(self) -> None:
        drafter = llama()
        drafter.tensors["midlayer.mlp.up_proj.weight"] = Tensor((256, 128), "F8_E4M3")
        assert codes(drafter) == ["KE317"]
        assert codes(changed(drafter, quantization_config={})) == ["KE612"]

    def test_a_quantised_drafter_passes(self) -> None:
        drafter = changed(llama(), quantization_config={"quant_method": "quark"})
        for name in list(drafter.tensors):
            if name.endswith("_proj.weight"):
                shape = drafter.tensors[name].shape
                drafter.tensors[name] = Tensor(shape, "F8_E4M3")
                drafter.tensors[f"{name}_scale"] = Tensor((shape[0],), "F32")
        assert codes(drafter) == []

    @pytest.mark.parametrize("place", ["compression_config", "hf_quant_config.json"])
    def test_a_quantisation_that_is_declared_elsewhere(self, place: str, tmp_path: Path) -> None:
        drafter, said = llama(), {"quantization": {"quant_algo": "FP8"}}
        drafter.tensors["midlayer.mlp.up_proj.weight"] = Tensor((256, 128), "F8_E4M3")
        drafter.tensors["midlayer.mlp.up_proj.weight_scale"] = Tensor((1,), "F32")
        assert codes(drafter) == ["KE313", "KE317"]
        if place == "compression_config":
            assert codes(changed(drafter, compression_config=said)) == []
            return
        folder = drafter.write(tmp_path / "drafter")
        (folder / place).write_text(json.dumps(said))
        assert codes(folder) == []
        (folder / place).write_text("{")
        assert codes(folder) == ["KE103"]

    def test_a_tensor_that_the_class_never_takes_quantised(self) -> None:
        def found(
            build: Callable[..., Checkpoint], name: str, release: str = "0.5.23"
        ) -> list[str]:
            drafter = changed(build(), quantization_config={"quant_method": "quark"})
            shape = drafter.tensors[name].shape
            drafter.tensors[name] = Tensor(shape, "F8_E4M3")
            if name != "lm_head.weight":
                drafter.tensors[f"{name}_scale"] = Tensor((1,), "F32")
            return codes(drafter, release=release)

        assert found(llama, "fc.weight") == ["KE313", "KE318"]
        assert found(mla, "fc.weight", "0.5.14") == ["KE313", "KE318"]
        assert found(mla, "fc.weight", "0.5.15") == []
        assert found(mla, "layers.0.self_attn.kv_b_proj.weight") == ["KE313", "KE318"]
        assert found(mla, "layers.0.self_attn.q_b_proj.weight") == []
        assert found(llama, "norm.weight") == ["KE313", "KE318"]
        assert found(llama, "lm_head.weight") == ["KE318"]

    def test_a_bias_that_quantisation_does_not_explain(self) -> None:
        for method, expected in (("gptq", []), ("quark", ["KE313"])):
            drafter = changed(llama(), quantization_config={"quant_method": method})
            drafter.tensors["midlayer.self_attn.q_proj.bias"] = Tensor((128,))
            assert codes(drafter) == expected

    def test_a_packed_drafter_passes(self) -> None:
        drafter = changed(llama(), quantization_config={"quant_method": "compressed-tensors"})
        for name in [name for name in drafter.tensors if name.endswith("_proj.weight")]:
            out, into = drafter.tensors.pop(name).shape
            drafter.tensors |= {
                f"{name}_packed": Tensor((out, into // 8), "I32"),
                f"{name}_scale": Tensor((out, into // 32)),
                f"{name}_shape": Tensor((2,), "I64"),
            }
        assert codes(drafter) == []

    def test_27_28_sized_for_2048_positions(self) -> None:
        target = tiny_target(max_position_embeddings=262144)
        assert codes(llama(), target=target) == ["KE621"]
        assert codes(llama(), target=target, launch=f"{LAUNCH} --context-length 2048") == []
        allowed = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
        assert codes(llama(), target=target, environ=allowed) == ["KE622"]

    def test_28_no_max_position_embeddings(self) -> None:
        drafter = changed(mla(), max_position_embeddings=...)
        target = tiny_target(max_position_embeddings=262144)
        (finding,) = judge(drafter, target=target)
        assert finding.code == "KE621"
        assert "4096" in finding.seen
        allowed = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
        assert codes(drafter, target=target, environ=allowed) == []
        assert codes(drafter) == []

    def test_29_long_requests_are_accepted_worse(self) -> None:
        target = tiny_target(max_position_embeddings=20000)
        allowed = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
        assert codes(llama(), target=target, environ=allowed) == ["KE622"]
        long = llama(max_position_embeddings=20000)
        assert codes(long, target=target, environ=allowed) == []

    def test_scaled_positions(self) -> None:
        target = tiny_target(max_position_embeddings=8192)
        scaling = {"rope_type": "linear", "factor": 4.0}
        assert codes(changed(llama(), rope_scaling=scaling), target=target) == []

    @pytest.mark.parametrize(
        "values",
        [
            {"rope_scaling": "yarn"},
            {"rope_scaling": {"rope_type": "yarn"}},
            {"rope_scaling": {"type": "yarn", "factor": "64"}},
            {"rope_theta": None},
            {"rope_scaling": {"rope_type": "foo"}},
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            {"rope_parameters": {"rope_type": "default", "rope_theta": "x"}},
            {"max_position_embeddings": "2048"},
            {"max_position_embeddings": -1},
            {"rope_theta": "10000"},
        ],
    )
    def test_rope(self, values: dict[str, Any]) -> None:
        assert codes(changed(llama(), **values)) == ["KE620"]


def test_yarn_without_the_original_length() -> None:
    drafter = changed(llama(), rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert codes(drafter, release="0.5.9") == ["KE620"]
    assert codes(drafter, release="0.5.10") == []


def test_null_positions_are_those_of_sglang() -> None:
    drafter = changed(mla(), max_position_embeddings=None)
    (finding,) = judge(drafter, target=tiny_target(max_position_embeddings=4096))
    assert finding.code == "KE621" and "2048" in finding.seen


def test_15_heads_without_captured_states() -> None:
    drafter = changed(llama(), eagle_config={"use_aux_hidden_state": False})
    del drafter.tensors["fc.weight"]
    assert codes(drafter) == []


def test_a_drafter_of_kimis_size_with_the_whole_head() -> None:
    assert codes(torchspec_mha(), target=KIMI) == []
