"""Marks that trainers leave in the checkpoints they export, as far as they prove a convention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sglang_kimi_eagle.diagnostics import printable
from sglang_kimi_eagle.states import Convention
from sglang_kimi_eagle.wiring import Evidence

TORCHSPEC_MARK = "_torchspec_version"


def evidence_of(config: Mapping[str, Any], tensor_names: Iterable[str]) -> Evidence | None:
    """Return what the exporter's mark proves about the layer ids, if there is one.

    TorchSpec trains on outputs (id k is h[k+1]; TorchSpec#87, #89) and its exporter
    (``tools/convert_to_hf.py``) writes ``_torchspec_version``.  Of its two layouts the native one
    (``midlayer.*``) keeps the ids; the one for vLLM (``layers.0.*``) adds one to them for
    ``model_type`` kimi_k2, so that there they are h[k].

    Marks that prove nothing are left alone: the speculators converter copies foreign ids as they
    are, and Model-Optimizer exports the same config from dumps of two conventions
    (Model-Optimizer#2410).
    """
    version = config.get(TORCHSPEC_MARK)
    if not isinstance(version, str):
        return None
    names = list(tensor_names)
    native = any(name.startswith("midlayer.") for name in names)
    for_vllm = any(name.startswith("layers.0.") for name in names)
    if native == for_vllm:
        return None
    source = f"as TorchSpec {printable(version, 40)} exports them"
    if for_vllm and config.get("model_type") == "kimi_k2":
        return Evidence(Convention.LAYER_INPUT, f"{source} for vLLM (layers.0.*, kimi_k2)")
    return Evidence(Convention.LAYER_OUTPUT, source)
