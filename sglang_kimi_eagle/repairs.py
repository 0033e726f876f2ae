"""Mends for defects of old releases that leave a rightly wired drafter with wrong states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_kimi_eagle.states import States


def complete_partial_sums(layers: Sequence[Any], states: States) -> None:
    """Keep the layer before each captured state from deferring its all-reduce (defect B).

    Up to 0.5.13.post1 (``srt/models/deepseek_v2.py``) a captured state is
    ``hidden_states + residual`` before layer k.  With TP > 1 and FlashInfer's all-reduce fusion,
    layer k - 1 has left the all-reduce of its hidden_states to the norm of layer k, so that each
    rank captures a partial sum of its own.  ``LayerCommunicator`` never defers it for the last
    layer; the layers before a captured one are told that they are.

    ``is_last_layer`` has one other reader there, ``should_use_reduce_scatter`` when the attention
    input is scattered, which SGLang does not do under EAGLE3 (``AttnTpContext.init_context``).

    Raises:
        AttributeError: a layer has no ``layer_communicator.is_last_layer``.
    """
    for state in states:
        if state > 0:
            communicator = layers[state - 1].layer_communicator
            if not communicator.is_last_layer:
                communicator.is_last_layer = True
