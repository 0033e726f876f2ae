"""The three methods, added to a class that lacks them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_kimi_eagle.delegations import DELEGATIONS, add_delegations, add_own_head
from sglang_kimi_eagle.upstream import METHODS


class LanguageModel:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def set_eagle3_layers_to_capture(self, layer_ids: Any = None) -> None:
        self.calls.append(layer_ids)

    def get_embed_and_head(self) -> tuple[str, str]:
        return "embed", "head"

    def set_embed_and_head(self, embed: Any, head: Any) -> None:
        self.calls.append((embed, head))


def wrapper_class() -> Any:
    class Wrapper:
        def __init__(self, language_model: Any) -> None:
            self.language_model = language_model

    return Wrapper


def test_the_methods_are_those_that_upstream_calls() -> None:
    assert tuple(method.__name__ for method in DELEGATIONS) == METHODS


def test_all_three_are_added_and_delegate() -> None:
    cls = wrapper_class()
    assert add_delegations(cls) == METHODS
    inner = LanguageModel()
    wrapper = cls(inner)
    wrapper.set_eagle3_layers_to_capture([2, 30, 58])
    wrapper.set_eagle3_layers_to_capture()
    assert wrapper.get_embed_and_head() == ("embed", "head")
    wrapper.set_embed_and_head(1, 2)
    assert inner.calls == [[2, 30, 58], None, (1, 2)]


def test_a_second_call_adds_nothing() -> None:
    cls = wrapper_class()
    add_delegations(cls)
    before = dict(vars(cls))
    assert add_delegations(cls) == ()
    assert dict(vars(cls)) == before


def test_methods_that_the_class_or_its_base_has_are_left_alone() -> None:
    cls = wrapper_class()
    cls.get_embed_and_head = lambda self: "own"
    derived = type("Derived", (cls,), {})
    assert add_delegations(derived) == (METHODS[0], METHODS[2])
    assert derived(None).get_embed_and_head() == "own"
    assert METHODS[0] not in vars(cls)


def test_two_classes_do_not_share_their_methods() -> None:
    first, second = wrapper_class(), wrapper_class()
    add_delegations(first)
    add_delegations(second)
    assert first.get_embed_and_head is not second.get_embed_and_head
    assert first.get_embed_and_head.__qualname__.endswith("Wrapper.get_embed_and_head")


@pytest.mark.parametrize("inner", [object(), None])
@pytest.mark.parametrize("name", METHODS)
def test_an_inner_model_without_the_method_is_an_attribute_error_that_names_it(
    inner: object, name: str
) -> None:
    cls = wrapper_class()
    add_delegations(cls)
    arguments = {METHODS[0]: ([2],), METHODS[1]: (), METHODS[2]: (1, 2)}[name]
    with pytest.raises(AttributeError, match=name):
        getattr(cls(inner), name)(*arguments)


def test_another_attribute_may_hold_the_language_model() -> None:
    class Wrapper:
        def __init__(self, llm: Any) -> None:
            self.llm = llm

    assert add_delegations(Wrapper, "llm") == METHODS
    inner = LanguageModel()
    wrapper: Any = Wrapper(inner)
    wrapper.set_eagle3_layers_to_capture([1, 2])
    assert wrapper.get_embed_and_head() == ("embed", "head")
    assert inner.calls == [[1, 2]]
    assert Wrapper.get_embed_and_head.__qualname__.endswith("Wrapper.get_embed_and_head")  # type: ignore[attr-defined]


class Processor:
    """As much of a ``torch.nn.Module`` as takes hooks before its forward."""

    def __init__(self) -> None:
        self.hooks: list[Any] = []

    def register_forward_pre_hook(self, hook: Any, *, with_kwargs: bool) -> None:
        assert with_kwargs
        self.hooks.append(hook)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for hook in self.hooks:
            args, kwargs = hook(self, args, kwargs) or (args, kwargs)
        return args, kwargs


class TestOwnHead:
    """A class that holds a bare model with the capture loop, and computes logits itself."""

    def build(self) -> Any:
        class Target:
            def __init__(self) -> None:
                weight = SimpleNamespace(weight="embedding")
                self.model = SimpleNamespace(
                    layers=[None] * 8, layers_to_capture=[], embed_tokens=weight
                )
                self.lm_head = SimpleNamespace(weight="head")
                self.logits_processor = Processor()

        assert add_own_head(Target, "model") == METHODS[:2]
        assert add_own_head(Target, "model") == ()
        return Target()

    def test_ids_are_outputs_as_everywhere_in_sglang(self) -> None:
        target = self.build()
        target.set_eagle3_layers_to_capture([2, 4, 6])
        assert target.model.layers_to_capture == [3, 5, 7]
        target.set_eagle3_layers_to_capture()
        assert target.model.layers_to_capture == [2, 4, 5]
        assert target.get_embed_and_head() == ("embedding", "head")

    def test_the_logits_processor_takes_captured_states(self) -> None:
        target = self.build()
        for _ in range(2):
            target.set_eagle3_layers_to_capture([2, 4, 6])
        assert len(target.logits_processor.hooks) == 1
        given = target.logits_processor("ids", ("hidden", ["a", "b"]), "head", "batch")
        assert given == (
            ("ids", "hidden", "head", "batch"),
            {"aux_hidden_states": ["a", "b"]},
        )
        plain = target.logits_processor("ids", "hidden", "head", "batch")
        assert plain == (("ids", "hidden", "head", "batch"), {})
