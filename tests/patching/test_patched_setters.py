"""What patched sources do with layer ids, run without SGLang: the methods alone are compiled."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patching.sources import stock_copy
from sglang_kimi_eagle.adapters.kimi_k25 import KIMI_CLASS
from sglang_kimi_eagle.patching import eagle_layer_ids
from sglang_kimi_eagle.patching.trees import apply, read_tree
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.states import Convention, states_of

pytestmark = pytest.mark.wheels

every_release = pytest.mark.parametrize("version", RELEASES)

LAYERS = 61
LISTS = ([2, 30, 58], [1, 29, 57], [0, 5, 9], [3, 1, 7], [7], [2, 30, 60], [2, 30, 61], [], None)


def method(package: Path, path: str, owner: str, name: str) -> Callable[..., Any]:
    """Compile one method of a source file, with the names that it needs."""
    tree = ast.parse((package / path).read_bytes())
    (function,) = (
        node
        for cls in tree.body
        if isinstance(cls, ast.ClassDef) and cls.name == owner
        for node in cls.body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    names = {key: value for key, value in vars(eagle_layer_ids).items() if "layers" in key}
    # Annotations name types that are not there.
    text = f"from __future__ import annotations\n{ast.unparse(function)}"
    exec(compile(text, path, "exec"), names)
    return names[name]  # type: ignore[no-any-return]


class Target:
    """The attributes of DeepseekV2ForCausalLM that its setter touches."""

    def __init__(self, *, last_rank: bool = True) -> None:
        self.pp_group = SimpleNamespace(is_last_rank=last_rank)
        self.config = SimpleNamespace(num_hidden_layers=LAYERS)
        self.capture_aux_hidden_states = False
        communicators = [SimpleNamespace(is_last_layer=False) for _ in range(LAYERS)]
        communicators[-1].is_last_layer = True
        self.model = SimpleNamespace(
            layers_to_capture=[],
            layers=[SimpleNamespace(layer_communicator=each) for each in communicators],
            start_layer=0,
            end_layer=LAYERS,
        )

    @property
    def state(self) -> tuple[bool, list[int]]:
        return self.capture_aux_hidden_states, self.model.layers_to_capture

    @property
    def last_layers(self) -> list[int]:
        """The layers that do not defer their all-reduce."""
        return [
            number
            for number, layer in enumerate(self.model.layers)
            if layer.layer_communicator.is_last_layer
        ]


@pytest.fixture
def setters(version: str, tmp_path: Path) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The setter of the target as released, and patched."""
    where = ("srt/models/deepseek_v2.py", "DeepseekV2ForCausalLM", "set_eagle3_layers_to_capture")
    stock_copy(version, tmp_path)
    stock = method(tmp_path, *where)
    apply(read_tree(tmp_path))
    return stock, method(tmp_path, *where)


@every_release
def test_undeclared_ids_are_read_as_before(
    setters: tuple[Callable[..., Any], Callable[..., Any]],
) -> None:
    for last_rank in (True, False):
        for ids in LISTS:
            before, after = Target(last_rank=last_rank), Target(last_rank=last_rank)
            setters[0](before, ids)
            setters[1](after, ids)
            assert before.state == after.state


@every_release
def test_declared_ids_are_read_as_declared(
    setters: tuple[Callable[..., Any], Callable[..., Any]], version: str
) -> None:
    for convention in Convention:
        for ids in ([2, 30, 58], [1, 29, 57], [3, 31, 59], [1], [0, 30, 59]):
            target = Target()
            if states_of(ids, convention)[0] not in RELEASES[version].reachable(LAYERS):
                with pytest.raises(ValueError, match="must ascend and name inputs of layers 1"):
                    setters[1](target, ids, layer_id_convention=convention.value)
                continue
            setters[1](target, ids, layer_id_convention=convention.value)
            assert target.state == (True, list(states_of(ids, convention)))


@every_release
def test_the_layers_before_captured_ones_complete_their_sums_where_needed(
    setters: tuple[Callable[..., Any], Callable[..., Any]], version: str
) -> None:
    target = Target()
    setters[1](target, [2, 30, 58], layer_id_convention="layer_output")
    mended = [2, 30, 58, LAYERS - 1] if RELEASES[version].partial_sums else [LAYERS - 1]
    assert target.last_layers == mended


@every_release
def test_the_wrapper_hands_everything_on(version: str, tmp_path: Path) -> None:
    stock_copy(version, tmp_path)
    apply(read_tree(tmp_path))
    kimi = "srt/models/kimi_k25.py"
    setter = method(tmp_path, kimi, KIMI_CLASS, "set_eagle3_layers_to_capture")

    class Language:
        def set_eagle3_layers_to_capture(
            self, layer_ids: Any, layer_id_convention: Any = 0
        ) -> None:
            self.got = (layer_ids, layer_id_convention)

        def get_embed_and_head(self) -> str:
            return "embedding and head"

        def set_embed_and_head(self, embed: str, head: str) -> None:
            self.got = (embed, head)

    wrapper = SimpleNamespace(language_model=Language())
    setter(wrapper, [2, 30, 58])
    assert wrapper.language_model.got == ([2, 30, 58], 0)
    setter(wrapper, [2, 30, 58], layer_id_convention="layer_input")
    assert wrapper.language_model.got == ([2, 30, 58], "layer_input")
    assert method(tmp_path, kimi, KIMI_CLASS, "get_embed_and_head")(wrapper) == "embedding and head"
    method(tmp_path, kimi, KIMI_CLASS, "set_embed_and_head")(wrapper, "embedding", "head")
    assert wrapper.language_model.got == ("embedding", "head")
