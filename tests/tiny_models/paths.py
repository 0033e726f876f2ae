"""Where the shipped checkpoints are, and what their drafters were trained on."""

from dataclasses import dataclass
from pathlib import Path

CHECKPOINTS = Path(__file__).resolve().parent.parent / "checkpoints"
TARGET = "kimi-tiny"
K3_TARGET = "kimi-k3-tiny"
Layers = tuple[int, ...]


@dataclass(frozen=True)
class DrafterRecipe:
    """A drafter's folder, the ids of its config and the states it was trained on."""

    folder: str
    layer_ids: Layers
    trained_on: Layers
    """k of each h[k] that was concatenated in training."""


LLAMA = DrafterRecipe("kimi-tiny-eagle3", (2, 4, 6), (3, 5, 7))
MLA = DrafterRecipe("kimi-tiny-eagle3-mla", (2, 4, 6), (2, 4, 6))
K3 = DrafterRecipe("kimi-k3-tiny-eagle3-mla", (4, 6, 7), (4, 6, 7))
