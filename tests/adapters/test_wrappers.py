"""Adapting any class with a capture loop: what is read, what is refused, what is put in place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_kimi_eagle.adapters import CannotServe, wrappers
from sglang_kimi_eagle.adapters.wrappers import Wrapper
from sglang_kimi_eagle.releases import NEWEST, RELEASES, Release, SetterRule
from sglang_kimi_eagle.settings import Settings
from sglang_kimi_eagle.upstream import Installation, Sources, inspect
from wheels import unpacked

wheels_only = pytest.mark.wheels


def release_for(version: str, name: str, config: dict[str, Any] | None = None) -> Release:
    installation = Installation(unpacked(version), version)
    found = inspect(installation, Wrapper(name), name, config)
    assert found.release is not None, found.findings
    return found.release


def refused(version: str, name: str, config: dict[str, Any] | None = None) -> str:
    found = inspect(Installation(unpacked(version), version), Wrapper(name), name, config)
    assert found.release is None
    (finding,) = found.findings
    assert finding.mend and finding.leads_to
    return finding.code


@wheels_only
class TestReading:
    @pytest.mark.parametrize(
        ("version", "name", "rule", "embedding"),
        [
            ("0.5.23", "Qwen2AudioForConditionalGeneration", SetterRule.ALWAYS_OUTPUT, True),
            ("0.5.9", "Qwen2AudioForConditionalGeneration", SetterRule.ALWAYS_OUTPUT, True),
            ("0.5.9", "LlavaVidForCausalLM", SetterRule.ALWAYS_OUTPUT, False),
            ("0.5.9", "Qwen3VLForConditionalGeneration", SetterRule.ALWAYS_OUTPUT, True),
            ("0.5.9", "KimiVLForConditionalGeneration", SetterRule.ALWAYS_OUTPUT, False),
            ("0.5.23", "KimiVLForConditionalGeneration", SetterRule.OUTPUT_IF_FIRST_IS_ONE, True),
        ],
    )
    def test_rule_and_embedding(
        self, version: str, name: str, rule: SetterRule, embedding: bool
    ) -> None:
        release = release_for(version, name)
        assert (release.setter_rule, release.captures_embedding) == (rule, embedding)
        assert not release.captures_last

    @pytest.mark.parametrize("version", ["0.5.9", "0.5.12.post1", "0.5.13.post1", NEWEST])
    def test_deepseek_inside_is_read_as_kimi_k25_is(self, version: str) -> None:
        release, row = release_for(version, "KimiVLForConditionalGeneration"), RELEASES[version]
        assert release.setter_rule is row.setter_rule
        assert release.captures_embedding is row.captures_embedding
        assert release.partial_sums is row.partial_sums

    def test_the_language_model_of_the_config_counts(self) -> None:
        name = "InternVLChatModel"
        for inner in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"):
            config = {"llm_config": {"architectures": [inner]}}
            assert release_for("0.5.23", name, config).setter_rule is SetterRule.ALWAYS_OUTPUT
        config = {"llm_config": {"architectures": ["InternLM2ForCausalLM"]}}
        assert refused("0.5.23", name, config) == "KE875"

    def test_what_cannot_be_served_is_refused(self) -> None:
        assert refused("0.5.9", "Gemma3ForConditionalGeneration") == "KE873"
        assert refused("0.5.23", "HunYuanMoEV1ForCausalLM") == "KE873"
        assert refused("0.5.23", "NoSuchClass") == "KE874"

    def test_undeclared_ids_are_ambiguous_where_releases_differ(self) -> None:
        def readings(name: str) -> set[tuple[int, ...]]:
            adapter = Wrapper(name)
            release = inspect(Installation(unpacked("0.5.23"), "0.5.23"), adapter, name).release
            assert release is not None
            readers = adapter.readings(release).values()
            return {reader.stock_states([2, 4, 6], 8) for reader in readers}

        assert readings("Qwen2AudioForConditionalGeneration") == {(3, 5, 7)}
        assert readings("KimiVLForConditionalGeneration") == {(2, 4, 6), (3, 5, 7)}
        assert readings("InternVLChatModel") == {(2, 4, 6), (3, 5, 7)}


class TestChoice:
    def test_only_what_was_asked_for_or_proved_is_adapted(self) -> None:
        nothing = Settings()
        asked = Settings(adapt=frozenset({"KimiVLForConditionalGeneration"}))
        assert wrappers.adapter_for("KimiVLForConditionalGeneration", nothing, "0.5.23") is None
        assert wrappers.adapter_for("KimiVLForConditionalGeneration", asked, "0.5.23")
        assert wrappers.adapter_for("LlamaForCausalLM", asked, "0.5.23") is None
        for name, versions in wrappers.PROVED.items():
            assert wrappers.adapter_for(name, nothing, versions[0])
            assert wrappers.adapter_for(name, nothing, "0.0.0") is None

    @wheels_only
    def test_a_target_that_could_be_adapted_is_named(self) -> None:
        installation = Installation(unpacked("0.5.23"), "0.5.23")
        (finding,) = wrappers.hint("KimiVLForConditionalGeneration", installation)
        assert finding.code == "KE876"
        assert "SGLANG_KIMI_EAGLE_ADAPT=KimiVLForConditionalGeneration" in finding.mend
        for name in ("LlamaForCausalLM", "HunYuanMoEV1ForCausalLM", "NoSuchClass", ""):
            assert wrappers.hint(name, installation) == []


class Layer:
    _is_layer_to_capture = False


def marking_model(layers: int = 8) -> Any:
    """A language model that marks layers, as Qwen2-MoE does: earlier marks stay."""
    tower = SimpleNamespace(layers=[Layer() for _ in range(layers)], layers_to_capture=[])

    def set_eagle3_layers_to_capture(ids: list[int]) -> None:
        tower.layers_to_capture = ids
        for index in ids:
            tower.layers[index]._is_layer_to_capture = True

    tower.set_eagle3_layers_to_capture = set_eagle3_layers_to_capture
    return SimpleNamespace(model=tower, capture_aux_hidden_states=True)


class TestStates:
    def test_marks_of_an_earlier_call_are_taken_back(self) -> None:
        model, adapter = marking_model(), Wrapper("Anything")
        model.model.set_eagle3_layers_to_capture([2, 4, 5])
        adapter.put(model, (3, 5, 7))
        assert adapter.seen(model) == [3, 5, 7]
        model.model.layers[1]._is_layer_to_capture = True
        assert adapter.seen(model) == [1, 3, 5, 7]

    def test_without_marks_the_names_count(self) -> None:
        tower = SimpleNamespace(layers_to_capture=[])
        model = SimpleNamespace(model=tower, capture_aux_hidden_states=False)
        adapter = Wrapper("Anything")
        assert adapter.seen(model) is None
        model.capture_aux_hidden_states = True
        adapter.put(model, (3, 5, 7))
        assert tower.layers_to_capture == adapter.seen(model) == [3, 5, 7]


def test_a_wrapper_built_around_another_language_model_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "sglang" / "srt" / "models"
    root.mkdir(parents=True)
    (root / "vl.py").write_text(
        "class Able:\n"
        "    def set_eagle3_layers_to_capture(self, ids=None): ...\n"
        "    def get_embed_and_head(self): ...\n"
        "class Unable: ...\n"
        "class Wrapper:\n"
        "    def __init__(self, able):\n"
        "        if able:\n"
        "            self.language_model = Able()\n"
        "        else:\n"
        "            self.language_model = Unable()\n"
        "EntryClass = Wrapper\n"
    )
    adapter = Wrapper("Wrapper")
    assert len(adapter.missing(Sources(tmp_path / "sglang"), "Wrapper")) == 3
    route = adapter._find(Sources(tmp_path / "sglang"))
    assert route is not None
    namespace: dict[str, Any] = {"__name__": "vl"}
    exec((root / "vl.py").read_text(), namespace)
    cls = namespace["Wrapper"]
    wrappers._see_what_is_built(cls, route)
    cls(True)
    with pytest.raises(CannotServe, match="KE877 error: Wrapper was built around Unable"):
        cls(False)
