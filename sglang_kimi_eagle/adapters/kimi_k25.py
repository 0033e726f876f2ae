"""Kimi-K2.5, and K2.6 and K2.7, which the same class serves: a wrapper around DeepSeek-V3."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from sglang_kimi_eagle import upstream
from sglang_kimi_eagle.adapters.base import Adapter, Reading
from sglang_kimi_eagle.adapters.deepseek import read_deepseek
from sglang_kimi_eagle.capture import StateCapture, wrap_setter
from sglang_kimi_eagle.delegations import add_delegations
from sglang_kimi_eagle.releases import RELEASES, Release
from sglang_kimi_eagle.upstream import Reliance, Sources

KIMI_MODULE = "sglang.srt.models.kimi_k25"
KIMI_CLASS = "KimiK25ForConditionalGeneration"


class KimiK25(Adapter):
    """``KimiK25ForConditionalGeneration``; it has the three methods since 0.5.10."""

    name = "Kimi-K2.5"
    architectures = (KIMI_CLASS,)
    model_types = ("kimi_k25",)
    family = "kimi"
    proved = tuple(RELEASES)
    table = RELEASES

    def module_of(self, architecture: str) -> str:
        """Return its only module."""
        return KIMI_MODULE

    def reliances(self, architecture: str) -> tuple[Reliance, ...]:
        """Name the class, and what of DeepSeek's model captures states."""
        own = Reliance(KIMI_MODULE, (KIMI_CLASS,), "the class that gets the three methods")
        return (own, *upstream.DEEPSEEK_RELIANCES)

    def missing(self, sources: Sources, architecture: str) -> tuple[str, ...]:
        """Return the methods that are not in the class itself: it has no base with them."""
        return tuple(
            name
            for name in upstream.METHODS
            if sources.find(KIMI_MODULE, f"{KIMI_CLASS}.{name}") is None
        )

    def read(
        self, sources: Sources, architecture: str, config: Mapping[str, Any] | None
    ) -> Reading:
        """Read the setter and the loop of DeepSeek's model."""
        return read_deepseek(sources)

    def readings(self, release: Release) -> Mapping[str, Release]:
        """Return every release of the table: they read ids by two rules."""
        return RELEASES

    def install(self, architecture: str, capture: StateCapture) -> tuple[str, ...]:
        """Wrap the setter of DeepSeek's class, and add the methods that the wrapper lacks."""
        deepseek = importlib.import_module(upstream.DEEPSEEK_MODULE)
        wrap_setter(deepseek.DeepseekV2ForCausalLM, capture)
        return add_delegations(getattr(importlib.import_module(KIMI_MODULE), architecture))


KIMI_K25 = KimiK25()
