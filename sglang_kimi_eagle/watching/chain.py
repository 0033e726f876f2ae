"""Acceptance of a chain of drafts: from lengths to the chance of each draft, and back."""

from __future__ import annotations


def length_of(chance: float, num_steps: int) -> float:
    """Return the mean tokens per verify step if every draft is accepted with ``chance``.

    The target's own token is included; a draft counts only if all before it were accepted.
    """
    return sum(chance**step for step in range(num_steps + 1))


def chance_of(length: float, num_steps: int) -> float:
    """Return the chance per draft that leads to this acceptance length; inverse of `length_of`."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if length_of(middle, num_steps) < length else (low, middle)
    return (low + high) / 2
