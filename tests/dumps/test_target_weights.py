"""What is read of the target's own weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dump_files import HIDDEN, LAYERS, normed, states_of, texts
from sglang_kimi_eagle.dumps.target_weights import read_weights
from tiny_models.paths import CHECKPOINTS, TARGET

pytestmark = [pytest.mark.measure, pytest.mark.usefixtures("torch_layer")]

SHIPPED = CHECKPOINTS / TARGET


def test_embedding_and_final_norm_are_the_targets() -> None:
    import torch

    weights = read_weights(str(SHIPPED), HIDDEN, LAYERS)
    assert weights is not None and weights.has_embedding and weights.norm is not None
    tokens, states = texts()[0], states_of(texts()[0])
    assert torch.equal(weights.embedding(tokens).float(), states[0])
    assert torch.allclose(weights.final_norm(states[LAYERS]), normed(tokens), atol=1e-5)


def test_tokens_beyond_the_vocabulary_have_no_embedding() -> None:
    weights = read_weights(str(SHIPPED), HIDDEN, LAYERS)
    assert weights is not None
    rows = weights.embedding([5, 1 << 40, -1, 5])
    assert not rows[1:3].any() and rows[0].equal(rows[3]) and rows[0].any()


def test_they_are_found_in_shards(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copy(SHIPPED / "config.json", tmp_path)
    weight_map = {}
    for name, tensor in load_file(SHIPPED / "model.safetensors").items():
        if "embed_tokens" in name or name.endswith("model.norm.weight"):
            file = f"{name}.safetensors"
            save_file({name: tensor}, tmp_path / file)
            weight_map[name] = file
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    weights = read_weights(str(tmp_path), HIDDEN, LAYERS)
    assert weights is not None and weights.has_embedding and weights.norm is not None


def test_a_target_that_is_not_the_traced_one_is_not_read(tmp_path: Path) -> None:
    assert read_weights(str(SHIPPED), HIDDEN, LAYERS + 1) is None
    assert read_weights(str(SHIPPED), HIDDEN * 2, LAYERS) is None
    assert read_weights("nobody/nothing", HIDDEN, LAYERS) is None
    shutil.copy(SHIPPED / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    assert read_weights(str(tmp_path), HIDDEN, LAYERS) is None
