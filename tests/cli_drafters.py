"""The smallest checkpoints that the commands about wiring look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drafter_files import KIMI, Checkpoint, Tensor


def write_drafter(
    folder: Path,
    *,
    ids: list[int] | None,
    convention: str | None = None,
    architecture: str = "LlamaForCausalLMEagle3",
) -> Path:
    """Write a drafter with these ids below eagle_config."""
    eagle_config: dict[str, Any] = {}
    if ids is not None:
        eagle_config["eagle_aux_hidden_state_layer_ids"] = ids
    if convention is not None:
        eagle_config["layer_id_convention"] = convention
    config = {"architectures": [architecture], "eagle_config": eagle_config}
    return Checkpoint(config, {"fc.weight": Tensor((8, 24))}).write(folder)


def write_target(folder: Path, *, num_layers: int) -> Path:
    """Write a Kimi-K2.5 config with this many layers."""
    folder.mkdir()
    text = KIMI["text_config"] | {"num_hidden_layers": num_layers}  # type: ignore[operator]
    (folder / "config.json").write_text(json.dumps(KIMI | {"text_config": text}))
    return folder
