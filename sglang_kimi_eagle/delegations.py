"""The three methods that an EAGLE-3 target must have, as the Kimi-K2.5 wrapper has to have them.

This is their only copy: the plugin adds these functions to the class, and the patches for
SGLang's sources are generated from them.  Upstream has them since 0.5.10
(``srt/models/kimi_k25.py``, sglang#19689).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, List, Optional, Tuple  # noqa: UP035 (upstream's spelling)

from sglang_kimi_eagle.states import Convention, default_states, states_of

if TYPE_CHECKING:
    import torch


def set_eagle3_layers_to_capture(
    self: Any,
    layer_ids: Optional[List[int]] = None,  # noqa: UP006, UP045
) -> None:
    """Set the layers to capture for EAGLE3 speculative decoding."""
    self.language_model.set_eagle3_layers_to_capture(layer_ids)


def get_embed_and_head(self: Any) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
    """Get embedding and LM head weights for speculative decoding."""
    return self.language_model.get_embed_and_head()  # type: ignore[no-any-return]


def set_embed_and_head(self: Any, embed: torch.Tensor, head: torch.Tensor) -> None:
    """Set embedding and LM head weights for speculative decoding."""
    self.language_model.set_embed_and_head(embed, head)


DELEGATIONS: tuple[Callable[..., Any], ...] = (
    set_eagle3_layers_to_capture,
    get_embed_and_head,
    set_embed_and_head,
)


def add_delegations(cls: type, attribute: str = "language_model") -> tuple[str, ...]:
    """Add to ``cls`` those of the three methods that it lacks; return their names.

    The class keeps its identity, so that SGLang's model registry resolves to it as before.  A
    second call adds nothing.  An inner model without the method shows as an AttributeError that
    names it, when the method is called.

    Args:
        cls: a wrapper class of SGLang.
        attribute: what holds its language model, which has the methods.
    """
    if attribute == "language_model":
        return _add(cls, [_copy(method) for method in DELEGATIONS])
    return _add(cls, [_delegation(method.__name__, attribute) for method in DELEGATIONS])


def _copy(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of its own for each class."""
    assert isinstance(method, types.FunctionType)
    own = types.FunctionType(
        method.__code__, method.__globals__, method.__name__, method.__defaults__
    )
    own.__doc__ = method.__doc__
    own.__annotations__ = dict(method.__annotations__)
    return own


def _delegation(name: str, attribute: str) -> Callable[..., Any]:
    def delegated(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(getattr(self, attribute), name)(*args, **kwargs)

    delegated.__name__ = name
    return delegated


def add_own_head(cls: type, attribute: str) -> tuple[str, ...]:
    """Add setter and getter to a class that has the head itself and holds a bare model.

    Such a class gives what the model returns to its logits processor.  With captured states that
    is a pair, which the processor is taught to take apart, as ``Qwen2ForCausalLM.forward`` does
    (``srt/models/qwen2.py``).

    Args:
        cls: a class with ``lm_head`` and ``logits_processor``.
        attribute: what holds the bare model, with ``embed_tokens``, ``layers`` and a loop over
            ``layers_to_capture``.
    """

    def set_eagle3_layers_to_capture(self: Any, layer_ids: list[int] | None = None) -> None:
        """Set the layers to capture for EAGLE3 speculative decoding."""
        tower = getattr(self, attribute)
        given = layer_ids is not None
        states = (
            states_of(layer_ids or (), Convention.LAYER_OUTPUT)
            if given
            else default_states(len(tower.layers))
        )
        tower.layers_to_capture = list(states)
        self.capture_aux_hidden_states = True
        if not getattr(self.logits_processor, _TAKES_PAIRS, False):
            self.logits_processor.register_forward_pre_hook(_take_apart, with_kwargs=True)
            setattr(self.logits_processor, _TAKES_PAIRS, True)

    def get_embed_and_head(self: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Get embedding and LM head weights for speculative decoding."""
        return getattr(self, attribute).embed_tokens.weight, self.lm_head.weight

    return _add(cls, [set_eagle3_layers_to_capture, get_embed_and_head])


_TAKES_PAIRS = "_sglang_kimi_eagle_takes_pairs"


def _take_apart(
    _processor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Give the second part of (hidden states, captured states) to the processor by its name."""
    if len(args) < 2 or not isinstance(args[1], tuple):
        return None
    hidden_states, captured = args[1]
    return (args[0], hidden_states, *args[2:]), {**kwargs, "aux_hidden_states": captured}


def _add(cls: type, methods: Iterable[Callable[..., Any]]) -> tuple[str, ...]:
    added = [method for method in methods if not hasattr(cls, method.__name__)]
    for method in added:
        method.__qualname__ = f"{cls.__qualname__}.{method.__name__}"
        setattr(cls, method.__name__, method)
    return tuple(method.__name__ for method in added)
