"""No false alarm: every template, every combination of its optional keys, every release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafter_files import (
    DEEPSEEK_V3,
    KIMI,
    TEMPLATES,
    VERBATIM,
    Checkpoint,
    Tensor,
    llama,
    mla,
    tiny_target,
)
from judging import LAUNCH, changed, codes
from sglang_kimi_eagle.releases import RELEASES

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_of_kimis_size(name: str, release: str, tmp_path: Path) -> None:
    folder = TEMPLATES[name]().write(tmp_path / "drafter", shards=4)
    expected = ["KE302"] if "mla" in name and not RELEASES[release].mla_drafter else []
    assert codes(folder, release=release, target=KIMI) == expected


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("name", "target", "launch", "mended", "expected"),
    [
        ("torchspec-mla", KIMI, LAUNCH, {}, ["KE621"]),
        ("torchspec-mla", KIMI, f"{LAUNCH} --context-length 4096", {}, []),
        ("torchspec-mla", KIMI, LAUNCH, {"max_position_embeddings": 262144}, []),
        ("torchspec-mha", KIMI, LAUNCH, {}, ["KE401"]),
        ("torchspec-mha", KIMI, LAUNCH, {"draft_vocab_size": 163840}, []),
        ("specforge", DEEPSEEK_V3, LAUNCH, {}, ["KE603", "KE610"]),
        (
            *("specforge", DEEPSEEK_V3, LAUNCH),
            {"torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1},
            [],
        ),
        ("specforge", KIMI, LAUNCH, {}, ["KE602", "KE603", "KE610", "KE621"]),
    ],
)
def test_templates_as_their_trainers_have_them(
    name: str,
    target: dict[str, Any],
    launch: str,
    mended: dict[str, Any],
    expected: list[str],
    release: str,
) -> None:
    unserved = "mla" in name and not RELEASES[release].mla_drafter
    checkpoint = changed(VERBATIM[name](), **mended)
    found = codes(checkpoint, release=release, target=target, launch=launch)
    assert found == (["KE302"] if unserved else expected)


@pytest.mark.parametrize("name", ["kimi-tiny-eagle3", "kimi-tiny-eagle3-mla"])
@pytest.mark.parametrize("release", RELEASES)
def test_shipped_drafters(name: str, release: str) -> None:
    target = json.loads((CHECKPOINTS / "kimi-tiny" / "config.json").read_text())
    unserved = "mla" in name and not RELEASES[release].mla_drafter
    found = codes(CHECKPOINTS / name, release=release, target=target)
    assert found == (["KE302"] if unserved else [])


OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "eagle_config": st.sampled_from(
        [
            ...,
            {},
            {"use_aux_hidden_state": True},
            {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
            {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "use_aux_hidden_state": True},
            {
                "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
                "use_aux_hidden_state": True,
                "use_input_layernorm_in_first_layer": True,
                "use_last_layernorm": True,
                "use_mtp_layernorm": False,
                "next_layer_regular": True,
                "parallel_draft_step": 1,
                "parallel_draft_heads_num_layers": 1,
                "layer_id_convention": "layer_output",
            },
        ]
    ),
    "eagle_aux_hidden_state_layer_ids": st.sampled_from([..., [2, 4, 5]]),
    "tie_word_embeddings": st.sampled_from([..., False]),
    "attention_bias": st.sampled_from([..., False]),
    "bias": st.sampled_from([..., False]),
    "fc_norm": st.sampled_from([..., None, False]),
    "norm_output": st.sampled_from([..., False]),
    "norm_before_fc": st.sampled_from([..., False]),
    "target_hidden_size": st.sampled_from([..., 128]),
    "head_dim": st.sampled_from([..., None]),
    "compression_config": st.sampled_from([..., None]),
    "rope_theta": st.sampled_from([..., 10000, 50000.0]),
    "rope_scaling": st.sampled_from(
        [
            ...,
            None,
            {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096},
            {"rope_type": "default"},
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        ]
    ),
    "bos_token_id": st.sampled_from([..., None, 0]),
    "eos_token_id": st.sampled_from([..., None, 1, [1, 2]]),
    "quantization_config": st.sampled_from([..., None]),
    "max_position_embeddings": st.sampled_from([2048, 262144]),
    "transformers_version": st.sampled_from([..., "4.57.0"]),
    "_torchspec_version": st.sampled_from([..., "0.2.0"]),
    "use_cache": st.sampled_from([..., True]),
    "mlp_bias": st.sampled_from([..., False]),
    "initializer_range": st.sampled_from([..., 0.02]),
    "pretraining_tp": st.sampled_from([..., 1]),
}


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_every_combination_of_optional_keys(data: st.DataObject) -> None:
    build = data.draw(st.sampled_from([llama, mla]))
    release = data.draw(st.sampled_from(list(RELEASES) if build is llama else list(RELEASES)[4:]))
    draft_vocab = data.draw(st.sampled_from([None, 384, 1024]))
    checkpoint: Checkpoint = build(draft_vocab=draft_vocab, own_embedding=data.draw(st.booleans()))
    config = data.draw(st.fixed_dictionaries(OPTIONAL))
    launch = data.draw(
        st.sampled_from(
            [
                None,
                LAUNCH,
                f"{LAUNCH} --speculative-num-steps 3 --speculative-eagle-topk 1 "
                "--speculative-num-draft-tokens 4 --tp 8 --trust-remote-code",
                f"{LAUNCH} --attention-backend fa3 --page-size 64 --mem-fraction-static 0.8",
            ]
        )
    )
    assert codes(changed(checkpoint, **config), release=release, launch=launch) == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_eagle_3_1_norms(data: st.DataObject) -> None:
    build = data.draw(st.sampled_from([llama, mla]))
    releases = list(RELEASES)
    since = "0.5.12" if build is llama else "0.5.13"
    release = data.draw(st.sampled_from(releases[releases.index(since) :]))
    count = data.draw(st.integers(1, 5))
    checkpoint = build(
        states=count, eagle_config={"eagle_aux_hidden_state_layer_ids": list(range(1, count + 1))}
    )
    flag = data.draw(st.sampled_from(["fc_norm", "use_aux_norm"]))
    for index in range(count):
        checkpoint.tensors[f"fc_norm.{index}.weight"] = Tensor((128,))
    checkpoint = changed(checkpoint, **{flag: True}, norm_output=data.draw(st.booleans()))
    assert codes(checkpoint, release=release, target=tiny_target()) == []
