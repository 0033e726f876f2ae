"""Layer ids of an EAGLE3 draft model whose config declares what they mean."""

import inspect
from typing import Any

# Added to an id k: the output of 0-based layer k is the input of layer k + 1.
LAYER_ID_SHIFTS = {"layer_output": 1, "layer_input": 0}


def resolve_layer_ids(hf_config: Any, layer_ids: Any) -> tuple[Any, str | None]:
    """Return the layer ids and their convention; None when it is not declared."""
    eagle_config: Any = getattr(hf_config, "eagle_config", None)
    declares = isinstance(eagle_config, dict)
    convention = eagle_config.get("layer_id_convention") if declares else None
    if convention is None:
        return layer_ids, None
    if convention not in list(LAYER_ID_SHIFTS):
        accepted = " or ".join(repr(name) for name in LAYER_ID_SHIFTS)
        raise ValueError(f"layer_id_convention must be {accepted}, got {convention!r}.")
    if layer_ids is None:
        layer_ids = getattr(hf_config, "eagle_aux_hidden_state_layer_ids", None)
    return layer_ids, convention


def get_layers_to_capture(ids: list[int], convention: str, within: range) -> list[int]:
    """Return the layers whose inputs are the hidden states that the ids name."""
    layers = [layer_id + LAYER_ID_SHIFTS[convention] for layer_id in ids]
    if not layers or min(ids) < 0 or layers != sorted({*layers} & {*within}):
        raise ValueError(
            f"EAGLE3 layer ids {ids} ({convention}) must ascend and name inputs of "
            f"layers {within.start} to {within.stop - 1}."
        )
    return layers


def set_layers_to_capture(model: Any, ids: Any, convention: str | None) -> None:
    """Call the model's setter, with the convention only if it is declared."""
    setter = model.set_eagle3_layers_to_capture
    if convention is None:
        setter(ids)
    elif "layer_id_convention" in inspect.signature(setter).parameters:
        setter(ids, layer_id_convention=convention)
    else:
        raise ValueError(f"{type(model).__name__} cannot take a layer_id_convention.")
