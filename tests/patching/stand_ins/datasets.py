"""SGLang's test helpers import this library for their benchmarks; the CPU engine leaves it out."""

from __future__ import annotations


def load_dataset(*arguments: object, **keywords: object) -> object:
    """Fail: no unit test loads a data set."""
    raise NotImplementedError
