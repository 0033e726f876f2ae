"""Values of a decoded config, taken only when they are what they should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LARGEST = 1 << 31
"""No size of a model is larger; what is, is taken for no size at all."""


def whole(config: Mapping[str, Any], key: str) -> int | None:
    """Return a positive whole number of a config; None when it is missing or something else."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < LARGEST:
        return None
    return value


def number(value: object) -> float | None:
    """Return a positive number; None when ``value`` is something else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e15:
        return None
    return float(value)


def token_ids(config: Mapping[str, Any], key: str) -> frozenset[int]:
    """Return the token ids of a key that holds one or a list of them."""
    value = config.get(key)
    values = value if isinstance(value, list) else [value]
    return frozenset(
        item for item in values if isinstance(item, int) and not isinstance(item, bool)
    )
