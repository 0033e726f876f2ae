"""The SGLang releases the engine runs, oldest first, and what each needs."""

from sglang_kimi_eagle.releases import RELEASES as TABLE

RELEASES = tuple(TABLE)

_GENERATIONS = {
    "0.5.9": "transformers-4.57",
    "0.5.10": "transformers-5.3",
    "0.5.11": "transformers-5.6",
    "0.5.13": "transformers-5.8",
    "0.5.15": "transformers-5.12-cutlass",
    "0.5.16": "transformers-5.12",
    "0.5.22": "transformers-5.19",
}


def since(release: str, first: str) -> bool:
    """Whether ``release`` is ``first`` or later."""
    return RELEASES.index(release) >= RELEASES.index(first)


def generation(release: str) -> str:
    """The requirements file (without suffix) that fits ``release``."""
    return next(name for first, name in reversed(_GENERATIONS.items()) if since(release, first))
