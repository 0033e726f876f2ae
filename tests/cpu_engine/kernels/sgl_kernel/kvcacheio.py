"""Kernels of the hierarchical cache: importable, since SGLang imports them always, not callable.

For ``mem_cache/memory_pool_host.py``.
"""

from collections.abc import Callable


def __getattr__(name: str) -> Callable[..., None]:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise NotImplementedError(f"hierarchical caching: {name}")

    return refuse
