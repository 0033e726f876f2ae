"""The facts of `loaders` and of the checks, read again in the sources of every release."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sglang_kimi_eagle.loaders import LLAMA, MLA, draft_loader
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
    for attribute in _ATTRIBUTES.values():
        assert re.search(rf"^    {attribute}: ", text, re.MULTILINE), attribute
