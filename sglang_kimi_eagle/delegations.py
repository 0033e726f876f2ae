"""The three methods that an EAGLE-3 target must have, as the Kimi-K2.5 wrapper has to have them.

This is their only copy: the plugin adds these functions to the class, and the patches for
SGLang's sources are generated from them.  Upstream has them since 0.5.10
(``srt/models/kimi_k25.py``, sglang#19689).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, List, Optional, Tuple  # noqa: UP035 (upstream's spelling)

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


def add_delegations(cls: type) -> tuple[str, ...]:
    """Add to ``cls`` those of the three methods that it lacks; return their names.

    The class keeps its identity, so that SGLang's model registry resolves to it as before.  A
    second call adds nothing.  An inner model without the method shows as an AttributeError that
    names it, when the method is called.
    """
    added = [method for method in DELEGATIONS if not hasattr(cls, method.__name__)]
    for method in added:
        assert isinstance(method, types.FunctionType)
        own = types.FunctionType(
            method.__code__, method.__globals__, method.__name__, method.__defaults__
        )
        own.__doc__ = method.__doc__
        own.__annotations__ = dict(method.__annotations__)
        own.__qualname__ = f"{cls.__qualname__}.{method.__name__}"
        setattr(cls, method.__name__, own)
    return tuple(method.__name__ for method in added)
