"""Kimi-K3: what its sources say, what is added to its classes, and what is refused."""

from __future__ import annotations

import shutil
import types
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_kimi_eagle import catalogue, upstream
from sglang_kimi_eagle.adapters import kimi_k3
from sglang_kimi_eagle.adapters.kimi_k3 import KIMI_K3, LANGUAGE, WRAPPER, KimiK3
from sglang_kimi_eagle.adapters.kimi_k3_methods import LanguageMethods, WrapperMethods
from sglang_kimi_eagle.capture import StateCapture, wrap_setter
from sglang_kimi_eagle.releases import SetterRule
from sglang_kimi_eagle.upstream import Inspection, Installation, inspect
from sglang_kimi_eagle.wiring import Wiring, resolve
from wheels import unpacked

LAYERS = 93
PUBLISHED = {
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
}
"""The fields of published drafters that the catalogue looks at."""


def published(ids: Sequence[int]) -> dict[str, Any]:
    return PUBLISHED | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}}


def wired(config: dict[str, Any], *, known: bool = True) -> Wiring:
    """Resolve a drafter's ids on Kimi-K3 and the newest release."""
    release = KIMI_K3.table["0.5.23"]
    return resolve(
        config,
        num_layers=LAYERS,
        release=release,
        known=catalogue.lookup(config, None) if known else None,
        readings=KIMI_K3.readings(release),
    )


class TestIds:
    def test_both_spellings_of_the_published_drafter_are_known(self) -> None:
        assert wired(published([2, 46, 90])).states == (2, 46, 90)
        assert wired(published([1, 45, 89])).states == (2, 46, 90)

    def test_others_must_say_what_their_ids_mean(self) -> None:
        assert [f.code for f in wired(published([5, 46, 90])).findings] == ["KE210"]

    @pytest.mark.parametrize(
        ("convention", "states"), [("layer_input", (5, 46, 90)), ("layer_output", (6, 47, 91))]
    )
    def test_a_declaration_decides(self, convention: str, states: tuple[int, ...]) -> None:
        config = published([5, 46, 90])
        config["eagle_config"]["layer_id_convention"] = convention
        assert wired(config).states == states

    @pytest.mark.parametrize(
        ("ids", "code"),
        [([46, 2, 90], "KE205"), ([2, 2, 90], "KE204"), ([0, 46, 90], "KE206")],
    )
    def test_lists_that_cannot_be_captured_are_refused(self, ids: list[int], code: str) -> None:
        config = published(ids)
        config["eagle_config"]["layer_id_convention"] = "layer_input"
        assert code in [finding.code for finding in wired(config).findings]

    def test_the_last_layers_output_can_be_captured_and_nothing_after_it(self) -> None:
        config = published([2, 46, 93])
        config["eagle_config"]["layer_id_convention"] = "layer_input"
        assert wired(config).states == (2, 46, 93)
        config["eagle_config"]["layer_id_convention"] = "layer_output"
        assert "KE206" in [finding.code for finding in wired(config).findings]


class Language:
    """As much of the language model as its setter needs."""

    def __init__(self, num_layers: int = LAYERS, pipeline: int = 1) -> None:
        self.config = SimpleNamespace(num_hidden_layers=num_layers)
        self.pp_group = SimpleNamespace(world_size=pipeline, is_last_rank=True)
        self.model = SimpleNamespace(dspark_layers_to_capture=None)
        self.capture_aux_hidden_states = False

    def set_dspark_layers_to_capture(self, layers: list[int]) -> None:
        self.capture_aux_hidden_states = True
        self.model.dspark_layers_to_capture = list(layers)

    set_eagle3_layers_to_capture = LanguageMethods.set_eagle3_layers_to_capture


class TestSetter:
    def test_ids_are_states_and_the_default_is_the_engines(self) -> None:
        target = Language()
        target.set_eagle3_layers_to_capture([2, 46, 93])
        assert target.model.dspark_layers_to_capture == [1, 45, 92]
        target.set_eagle3_layers_to_capture(None)
        assert target.model.dspark_layers_to_capture == [1, 45, 89]
        assert target.model.captures_prefix

    @pytest.mark.parametrize("ids", [[0, 46], [46, 94], [-1], [46, 2], [2, 2]])
    def test_ids_that_cannot_be_captured_raise(self, ids: list[int]) -> None:
        with pytest.raises(ValueError, match="EAGLE3 layer ids"):
            Language().set_eagle3_layers_to_capture(ids)

    def test_pipeline_parallelism_raises(self) -> None:
        with pytest.raises(NotImplementedError, match="PP=1"):
            Language(pipeline=2).set_eagle3_layers_to_capture([2])

    def test_an_encoder_says_that_it_has_no_language_model(self) -> None:
        encoder: Any = SimpleNamespace(language_model=None)
        for call in (
            lambda: WrapperMethods.set_eagle3_layers_to_capture(encoder),
            lambda: WrapperMethods.get_embed_and_head(encoder),
            lambda: WrapperMethods.set_embed_and_head(encoder, None, None),  # type: ignore[arg-type]
        ):
            with pytest.raises(AttributeError, match="encoder-only"):
                call()


class Trunk:
    def _dspark_capture_stream(self, layer_idx: int, hidden: Any, forward_batch: Any) -> str:
        return "mixture"


class TestInstalled:
    @pytest.fixture
    def adapter(self) -> KimiK3:
        return KimiK3()

    def test_only_a_marked_model_captures_the_prefix(self) -> None:
        trunk = type("Trunk", (Trunk,), dict(vars(Trunk)))
        kimi_k3.capture_prefix(trunk, lambda *args: "prefix")
        model = trunk()
        assert model._dspark_capture_stream(1, None, None) == "mixture"
        model.captures_prefix = True
        assert model._dspark_capture_stream(1, None, None) == "prefix"

    def test_the_resolved_states_are_captured_whatever_the_ids_are(self, adapter: KimiK3) -> None:
        cls = type("Language", (Language,), dict(vars(Language)))
        capture = StateCapture((4, 6), point=adapter)
        wrap_setter(cls, capture)
        kimi_k3._hand_resolved_states(cls, capture)
        target = cls()
        # Ids that the setter itself would refuse: an output of layer 0 is a state all the same.
        target.set_eagle3_layers_to_capture([9, 0])
        assert target.model.dspark_layers_to_capture == [3, 5]
        assert adapter.seen(target) == [4, 6]
        assert capture.differs(target) is None

    def test_a_lost_mark_or_another_list_shows(self, adapter: KimiK3) -> None:
        target, capture = Language(), StateCapture((4, 6), point=adapter)
        target.set_eagle3_layers_to_capture([4, 6])
        target.model.dspark_layers_to_capture = [4, 6]
        assert capture.differs(target) is not None
        target.model.dspark_layers_to_capture = [3, 5]
        assert capture.differs(target) is None
        target.model.captures_prefix = False
        assert capture.differs(target) is not None


UPSTREAMS = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if layer_ids is None:
            layer_ids = [2, self.config.num_hidden_layers // 2, self.config.num_hidden_layers - 3]
        self.capture_aux_hidden_states = True
        self.model.eagle3_layers_to_capture = tuple(layer_ids)
"""
OURS = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.set_dspark_layers_to_capture([layer_id - 1 for layer_id in layer_ids])
        self.model.captures_prefix = True
"""
MIXED = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.set_dspark_layers_to_capture([layer_id - 1 for layer_id in layer_ids])
"""
UNKNOWN = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.capture_aux_hidden_states = True
        self.model.something = [layer_id + 1 for layer_id in layer_ids]
"""
MODULES = (
    *(reliance.module for reliance in upstream.RELIANCES),
    kimi_k3.K3_MODULE,
    "sglang.srt.models.kimi_k25_eagle3",
    "sglang.srt.plugins.__init__",
)


@pytest.mark.wheels
class TestSources:
    def inspected(
        self, folder: Path, version: str, setter: str = "", rename: str = ""
    ) -> Inspection:
        """Inspect the files of a release, with a setter of its own or a renamed method."""
        package = folder / "sglang"
        for module in MODULES:
            path = Path(*module.split(".")[1:]).with_suffix(".py")
            (package / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(unpacked(version) / path, package / path)
        source = package / "srt" / "models" / "kimi_k3.py"
        text = source.read_text()
        anchor = "    def get_input_embeddings(self):\n        return self.model.embed_tokens\n"
        assert text.count(anchor) == 1
        text = text.replace(anchor, setter + anchor)
        if rename:
            text = text.replace(rename, f"{rename}_moved")
        source.write_text(text)
        return inspect(Installation(package, version), KIMI_K3, WRAPPER)

    @pytest.mark.parametrize("version", KIMI_K3.proved)
    @pytest.mark.parametrize("architecture", [WRAPPER, LANGUAGE])
    def test_no_release_has_the_methods(self, version: str, architecture: str) -> None:
        found = inspect(Installation(unpacked(version), version), KIMI_K3, architecture)
        assert found.release == KIMI_K3.table[version]
        assert found.findings == ()
        assert found.missing_methods == upstream.METHODS

    @pytest.mark.parametrize(
        ("setter", "store"),
        [
            (UPSTREAMS, kimi_k3.Store("eagle3_layers_to_capture", 0)),
            (OURS, kimi_k3.Store("dspark_layers_to_capture", -1)),
        ],
    )
    def test_a_setter_of_the_release_is_understood(
        self, tmp_path: Path, setter: str, store: kimi_k3.Store
    ) -> None:
        found = self.inspected(tmp_path, "0.5.23", setter)
        assert found.release is not None
        assert found.release.setter_rule is SetterRule.ALWAYS_INPUT
        sources = upstream.Sources(tmp_path / "sglang")
        assert kimi_k3.store_of(sources) == store
        trunk = types.SimpleNamespace(**{store.attribute: ()})
        store.write(trunk, (4, 6))
        assert store.read(trunk) == [4, 6]

    def test_one_that_captures_the_mixture_is_refused(self, tmp_path: Path) -> None:
        assert [f.code for f in self.inspected(tmp_path, "0.5.23", MIXED).findings] == ["KE894"]

    def test_one_that_is_not_understood_is_refused(self, tmp_path: Path) -> None:
        assert [f.code for f in self.inspected(tmp_path, "0.5.23", UNKNOWN).findings] == ["KE003"]

    @pytest.mark.parametrize("version", ["0.5.17", "0.5.23"])
    def test_moved_methods_are_named(self, tmp_path: Path, version: str) -> None:
        found = self.inspected(tmp_path, version, rename="def _dspark_capture_stream")
        assert [finding.code for finding in found.findings] == ["KE001"]

    def test_an_unknown_way_to_capture_is_refused(self, tmp_path: Path) -> None:
        found = self.inspected(tmp_path, "0.5.17")
        assert found.release is not None
        source = tmp_path / "sglang" / "srt" / "models" / "kimi_k3.py"
        source.write_text(
            source.read_text().replace(
                "attn_res: Optional[AttnResidual],\n    ) -> torch.Tensor:",
                "bank: Optional[AttnResidual],\n    ) -> torch.Tensor:",
            )
        )
        found = inspect(Installation(tmp_path / "sglang", "0.5.17"), KIMI_K3, WRAPPER)
        assert [finding.code for finding in found.findings] == ["KE003"]
