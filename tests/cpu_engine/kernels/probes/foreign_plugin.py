"""Somebody else's plugin: it replaces the Kimi wrapper's setter with a wiring of its own."""

from typing import Any

from redirections.after_import import after_import


def register() -> None:
    after_import("sglang.srt.models.kimi_k25", _replace)


def _replace(module: Any) -> None:
    def set_eagle3_layers_to_capture(wrapper: Any, layer_ids: Any = None) -> None:
        wrapper.language_model.capture_aux_hidden_states = True
        wrapper.language_model.model.layers_to_capture = [1, 2, 3]

    cls = module.KimiK25ForConditionalGeneration
    cls.set_eagle3_layers_to_capture = set_eagle3_layers_to_capture
