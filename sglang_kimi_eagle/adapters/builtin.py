"""The adapters of this package, brought by the same hook as those of others."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_kimi_eagle.adapters.base import Adapter
from sglang_kimi_eagle.adapters.kimi_k3 import KIMI_K3
from sglang_kimi_eagle.adapters.kimi_k25 import KIMI_K25
from sglang_kimi_eagle.extending import hookimpl


@hookimpl
def kimi_eagle_adapters() -> Iterable[Adapter]:
    """Return the built-in adapters."""
    return (KIMI_K25, KIMI_K3)
