"""The facts of `loaders` and of the checks, read again in the sources of every release."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sglang_kimi_eagle.checks.pairing import _ROPE_KINDS
from sglang_kimi_eagle.drafter.checkpoint import QUANTISED, QUANTISER
from sglang_kimi_eagle.loaders import LLAMA, MLA, NO_DRAFT_BACKENDS, draft_loader
from sglang_kimi_eagle.releases import RELEASES, Release
from sglang_kimi_eagle.server_arguments import _ATTRIBUTES
from wheels import unpacked

pytestmark = [
    pytest.mark.wheels,
    pytest.mark.parametrize("release", RELEASES.values(), ids=list(RELEASES)),
]


def source(release: Release, *names: str) -> str:
    package: Path = unpacked(release.version)
    files = [package / "srt" / name for name in names]
    return "\n".join(file.read_text() for file in files if file.is_file())


def test_llama_class(release: Release) -> None:
    loader, text = draft_loader(release), source(release, "models/llama_eagle3.py")
    assert f"class {LLAMA}(" in text
    for mark in (
        "self.layers = nn.ModuleList",
        '"midlayer": "layers.0"',
        '"aux_norm_low"',
        "use_fc_norm",
        "num_aux_hidden_states",
        "norm_output",
    ):
        assert (mark in text) == loader.layer_stack, mark
    assert ("currently only supports 1 layer" in text) != loader.layer_stack
    assert ("self.input_norm" in text) == loader.llama_norm_before_fc
    # A missing key is an AttributeError, a missing tensor nothing.
    assert "if config.draft_vocab_size is None" in text
    assert "self.hidden_size_in = config.target_hidden_size" in text
    assert "self.fc = torch.nn.Linear(" in text
    # Read whether the head is tied or not.
    assert re.search(r"config_\.vocab_size = \(?\s*config_\.draft_vocab_size", text)


def test_mla_class(release: Release) -> None:
    loader, text = draft_loader(release), source(release, "models/kimi_k25_eagle3.py")
    assert (f"class {MLA}(" in text) == release.mla_drafter
    assert ("use_fc_norm" in text) == ("self.norm_output" in text) == loader.mla_fc_norm
    assert "input_norm" not in text
    if text:
        assert 're.sub(r"^layers\\.0\\.", "midlayer.", name)' in text
        assert 'mapped_name = f"model.{mapped_name}"' in text
        assert "currently only supports 1 layer" in text
        assert 'get_name() == "modelopt_fp4"' in text
        assert ("self.fc = ColumnParallelLinear(" in text) == loader.mla_fc_quantised
        assert "only supports float dtypes" in text


def test_yarn_of_the_llama_class(release: Release) -> None:
    text = source(release, "layers/rotary_embedding.py", "layers/rotary_embedding/factory.py")
    (kwargs,) = re.findall(
        r'scaling_type == "yarn":.*?extra_kwargs = \{.*?in \((.*?)\)', text, re.DOTALL
    )
    assert ('"mscale"' in kwargs) == draft_loader(release).llama_yarn_mscale


def test_kinds_of_rope(release: Release) -> None:
    text = source(release, "layers/rotary_embedding.py", "layers/rotary_embedding/factory.py")
    body = text[text.index("\ndef get_rope(") :]
    kinds = set(re.findall(r'scaling_type == "(\w+)"', body))
    assert kinds - set(_ROPE_KINDS) == set()
    assert set(_ROPE_KINDS) - kinds <= {"proportional"}
    unguarded = 'rope_scaling["original_max_position_embeddings"]' in body
    assert unguarded == draft_loader(release).yarn_needs_original


def test_where_a_quantisation_is_declared(release: Release) -> None:
    text = source(release, "configs/model_config.py")
    places = [text.index(f'"{place}"') for place in (*QUANTISED, QUANTISER)]
    assert places == sorted(places)


def test_positions_of_a_chain(release: Release) -> None:
    """The worker counts positions up before the forward of a draft, or after it."""
    text = source(release, "speculative/eagle_worker.py") or source(
        release, "speculative/eagle_worker_v2.py"
    )
    drafting = text[text.index("def draft_forward") :]
    begins = drafting.index("for i in range(self.speculative_num_steps)")
    counted = drafting.index("positions.add_(1)", begins)
    forward = re.search(r"runner\.forward\(|_draft_step\(|\.replay\(", drafting[begins:])
    assert forward is not None
    assert (counted < begins + forward.start()) == draft_loader(release).chain_positions_ahead


def test_config_types(release: Release) -> None:
    text = source(release, "utils/hf_transformers/common.py", "utils/hf_transformers_utils.py")
    assert ('_CONFIG_REGISTRY["kimi_k2"]' in text) == draft_loader(release).kimi_k2_type
    keys = re.search(r"CONTEXT_LENGTH_KEYS = \[(.*?)\]", text, re.DOTALL)
    assert keys is not None
    assert re.findall(r'"(\w+)"', keys[1]) == [
        "max_sequence_length",
        "seq_length",
        "max_seq_len",
        "model_max_length",
        "max_position_embeddings",
    ]


def test_null_eagle_config(release: Release) -> None:
    text = source(release, "speculative/eagle_worker.py", "speculative/eagle_worker_v2.py")
    unguarded = re.search(
        r'"eagle_config", \{\}\s*\)\s*self\.eagle_use_aux_hidden_state = '
        r"eagle_config\.get",
        text,
    )
    assert (unguarded is None) == draft_loader(release).null_eagle_config


def test_tree_drafting_over_pages(release: Release) -> None:
    text = source(release, "server_args.py", "arg_groups/speculative_hook.py")
    backends = re.search(r"_PAGE_TREE_SPEC_BACKENDS = \(([^)]*)\)", text) or re.search(
        r"page_size > 1\s+and self\.attention_backend not in \[([^\]]*)\]", text
    )
    assert backends is not None
    assert tuple(re.findall(r'"(\w+)"', backends[1])) == draft_loader(release).tree_page_backends


def test_backends_for_one_kind_of_attention(release: Release) -> None:
    text = source(release, "layers/attention/attention_registry.py")
    assert "trtllm_mla backend can only be used with MLA models." in text
    assert "trtllm_mha backend can only be used with non-MLA models." in text


def test_dtype_of_a_config_without_one(release: Release) -> None:
    text = source(release, "configs/model_config.py")
    assert "if config_dtype is None:\n        config_dtype = torch.float32" in text
    assert "greater than the derived context_length" in text


def test_server_arguments(release: Release) -> None:
    package = unpacked(release.version) / "srt"
    files = [package / "server_args.py", *(package / "arg_groups" / "fields").glob("*.py")]
    text = "\n".join(file.read_text() for file in files if file.is_file())
    order = list(RELEASES)
    for attribute in _ATTRIBUTES.values():
        there = re.search(rf"^    {attribute}: ", text, re.MULTILINE) is not None
        # Where it is not there yet, its default is what there is.
        since = {"dcp_size": "0.5.15", "speculative_adaptive": "0.5.11"}.get(attribute, order[0])
        assert there == (order.index(release.version) >= order.index(since)), attribute


def test_backends_that_draft(release: Release) -> None:
    text = source(release, "speculative/draft_utils.py")
    maps = re.findall(r"backend_map = \{(.*?)\n        \}", text, re.DOTALL)
    assert len(maps) == 2
    for entries in maps:
        named = set(re.findall(r'^\s+"(\w+)":', entries, re.MULTILINE))
        assert {"flashinfer", "fa3", "triton"} <= named
        assert not NO_DRAFT_BACKENDS & named
    assert "if backend_type not in backend_map:" in text


def test_the_backend_chosen_on_sm100(release: Release) -> None:
    """Only when none of the three is given; a drafter's own is then left open."""
    text = source(
        release,
        "server_args.py",
        "arg_groups/overrides.py",
        "arg_groups/model_overrides/deepseek_v2.py",
    )
    chosen = re.search(
        r"is_sm100[\w()]*:\s+if \(\s+(?:self|server_args|cfg)\.attention_backend is None\s+and "
        r"\S+prefill_attention_backend is None\s+and \S+decode_attention_backend is None\s+\):"
        r'[^\n]*\n[^\n]*"?trtllm_mla"',
        text,
    )
    assert chosen is not None
    assert "KimiK25ForConditionalGeneration" in text


def test_images_of_a_request(release: Release) -> None:
    told = draft_loader(release).draft_images
    drafts = source(release, "models/llama_eagle3.py")
    takes_them = "embeds = forward_batch.mm_input_embeds" in drafts
    assert takes_them == ("sglang#21358" not in told)
    graphs = source(release, "model_executor/runner/prefill_cuda_graph_runner.py")
    looked_up = "is_breakable_eagle_draft" in graphs and "_use_draft_input_embeds" not in graphs
    assert looked_up == ("sglang#38330" in told)


def test_nodes_of_a_tree(release: Release) -> None:
    text = source(release, "speculative/eagle_utils.py")
    assert "torch.topk(score_list, num_draft_token - 1, dim=-1)" in text


def test_disaggregation_buffers_are_of_the_drafters_width(release: Release) -> None:
    """sglang#9976, #10059 and #13590 are in every release, so that no check is needed."""
    folder = unpacked(release.version) / "srt" / "managers"
    text = "\n".join(path.read_text() for path in folder.rglob("scheduler*.py"))
    text += source(release, "mem_cache/kv_cache_builder.py", "managers/kv_cache_builder.py")
    assert "MetadataBuffers(" in text
    assert re.search(
        r"model_config = (draft_runner|self\.draft_worker)\.model_config"
        r"|get_draft_recurrent_hidden_state_spec"
        r"|_get_draft_kv_pool\(\)"
        r"|kv_cache_builder\.get_draft_kv_pool",
        text,
    )


def test_launch_config_files(release: Release) -> None:
    text = source(release, "server_args_config_parser.py", "utils/server_args_config_parser.py")
    assert 'if arg == "--config"' in text
    assert "return config_args + before_config + after_config" in text
    assert 'args.extend([f"--{key}", str(value)])' in text
    assert 'path.suffix.lower() not in [".yaml", ".yml"]' in text
