"""Lets a Kimi-K3 without speculation capture what it captures for a DSPARK drafter.

Where the plugin is installed its adapter is put in place first, as for an EAGLE-3 launch.
"""

import os
from functools import wraps
from typing import Any

from redirections.after_import import after_import

LAYERS_VARIABLE = "CPU_ENGINE_DSPARK_LAYERS"


def register() -> None:
    after_import("sglang.srt.models.kimi_k3", _capture)


def _capture(module: Any) -> None:
    language = module.KimiK3LinearForCausalLM
    original = language.load_weights

    @wraps(original)
    def load_weights(self: Any, weights: Any) -> Any:
        try:
            from sglang_kimi_eagle.adapters.kimi_k3 import KIMI_K3
            from sglang_kimi_eagle.capture import StateCapture
        except ImportError:
            pass
        else:
            KIMI_K3.install(KIMI_K3.architectures[0], StateCapture(point=KIMI_K3))
        result = original(self, weights)
        layers = [int(layer) for layer in os.environ[LAYERS_VARIABLE].split(",")]
        self.set_dspark_layers_to_capture(layers)
        return result

    language.load_weights = load_weights
