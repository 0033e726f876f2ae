"""The methods that an EAGLE-3 target must have, as the two Kimi-K3 classes have to have them.

This is their only copy: the plugin adds these functions to the classes, and the patch for SGLang's
sources is generated from them.  No release up to 0.5.23 has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Tuple  # noqa: UP035 (upstream's spelling)

if TYPE_CHECKING:
    import torch


class LanguageMethods:
    """For ``KimiK3LinearForCausalLM``."""

    def set_eagle3_layers_to_capture(
        self: Any,
        layer_ids: Optional[List[int]] = None,  # noqa: UP006, UP045
    ) -> None:
        """Set the layers to capture for EAGLE3: id k is the prefix after k layers."""
        if self.pp_group.world_size > 1:
            raise NotImplementedError("EAGLE3 aux hidden capture requires PP=1.")
        num_layers = self.config.num_hidden_layers
        if layer_ids is None:
            layer_ids = [2, num_layers // 2, num_layers - 3]
        if not all(1 <= layer_id <= num_layers for layer_id in layer_ids):
            raise ValueError(f"EAGLE3 layer ids are 1 to {num_layers}: {layer_ids}")
        if list(layer_ids) != sorted(set(layer_ids)):
            # Captures are packed in layer order, whatever the order of the ids.
            raise ValueError(f"EAGLE3 layer ids must ascend: {layer_ids}")
        self.set_dspark_layers_to_capture([layer_id - 1 for layer_id in layer_ids])
        self.model.captures_prefix = True

    def get_embed_and_head(self: Any) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
        """Get embedding and LM head weights for speculative decoding."""
        return self.model.embed_tokens.weight, self.lm_head.weight

    def set_embed_and_head(self: Any, embed: torch.Tensor, head: torch.Tensor) -> None:
        """Set embedding and LM head weights for speculative decoding."""
        del self.model.embed_tokens.weight
        del self.lm_head.weight
        self.model.embed_tokens.weight = embed
        self.lm_head.weight = head


class WrapperMethods:
    """For ``KimiK3ForConditionalGeneration``, whose language model is None in an encoder."""

    def set_eagle3_layers_to_capture(
        self: Any,
        layer_ids: Optional[List[int]] = None,  # noqa: UP006, UP045
    ) -> None:
        """Set the layers to capture for EAGLE3 speculative decoding."""
        if self.language_model is None:
            raise AttributeError("EAGLE3 capture is not available in encoder-only mode")
        self.language_model.set_eagle3_layers_to_capture(layer_ids)

    def get_embed_and_head(self: Any) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
        """Get embedding and LM head weights for speculative decoding."""
        if self.language_model is None:
            raise AttributeError("lm_head is not available in encoder-only mode")
        return self.language_model.get_embed_and_head()  # type: ignore[no-any-return]

    def set_embed_and_head(self: Any, embed: torch.Tensor, head: torch.Tensor) -> None:
        """Set embedding and LM head weights for speculative decoding."""
        if self.language_model is None:
            raise AttributeError("lm_head is not available in encoder-only mode")
        self.language_model.set_embed_and_head(embed, head)


def prefix_of_stream(
    layer_idx: int, hidden_states: torch.Tensor, forward_batch: Any
) -> torch.Tensor:
    """Return the prefix after a layer, [tokens, hidden size] (0.5.22 and later).

    The first step of ``KimiK3LinearModel._dspark_capture_stream``, which then makes the mixture
    of it that the next layer reads.  The result is a copy.
    """
    from sglang.srt.layers.layer_boundary.residual import batch as residual_batch

    return residual_batch.snapshot(hidden_states, forward_batch)


def prefix_of_tensors(
    layer_idx: int,
    hidden_states: torch.Tensor,
    residual: torch.Tensor | None,
    attn_res: Any,
) -> torch.Tensor:
    """Return the prefix after a layer, [tokens, hidden size] (0.5.17 - 0.5.21).

    The first step of ``KimiK3LinearModel._dspark_capture_stream``.  The result is a copy: what a
    layer returns is the next one's to write to.
    """
    return hidden_states.clone() if residual is None else residual + hidden_states
