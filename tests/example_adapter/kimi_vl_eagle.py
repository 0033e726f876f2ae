"""Kimi-VL: a wrapper around DeepSeek's language model, without the methods of EAGLE-3."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from sglang_kimi_eagle.adapters import Adapter, Reading, read_deepseek
from sglang_kimi_eagle.capture import StateCapture, wrap_setter
from sglang_kimi_eagle.delegations import add_delegations
from sglang_kimi_eagle.extending import hookimpl
from sglang_kimi_eagle.releases import RELEASES, Release
from sglang_kimi_eagle.upstream import DEEPSEEK_RELIANCES, METHODS, Reliance, Sources

MODULE = "sglang.srt.models.kimi_vl"
CLASS = "KimiVLForConditionalGeneration"


class KimiVL(Adapter):
    """What the plugin has to know to serve drafters of Kimi-VL."""

    name = "Kimi-VL"
    architectures = (CLASS,)
    model_types = ("kimi_vl",)
    family = "kimi-vl"
    proved = ("0.5.23",)

    def module_of(self, architecture: str) -> str:
        return MODULE

    def reliances(self, architecture: str) -> tuple[Reliance, ...]:
        return (Reliance(MODULE, (CLASS,), "the class that is adapted"), *DEEPSEEK_RELIANCES)

    def missing(self, sources: Sources, architecture: str) -> tuple[str, ...]:
        return tuple(name for name in METHODS if sources.find(MODULE, f"{CLASS}.{name}") is None)

    def read(
        self, sources: Sources, architecture: str, config: Mapping[str, Any] | None
    ) -> Reading:
        return read_deepseek(sources)

    def readings(self, release: Release) -> Mapping[str, Release]:
        return RELEASES

    def install(self, architecture: str, capture: StateCapture) -> tuple[str, ...]:
        module = importlib.import_module(MODULE)
        wrap_setter(module.DeepseekV2ForCausalLM, capture)
        return add_delegations(module.KimiVLForConditionalGeneration)


@hookimpl
def kimi_eagle_adapters() -> Iterable[Adapter]:
    return [KimiVL()]
