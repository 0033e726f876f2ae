"""The SGLang releases the engine runs, oldest first, and what each needs."""

RELEASES = (
    "0.5.9",
    "0.5.10",
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "0.5.12.post1",
    "0.5.13",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)

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
