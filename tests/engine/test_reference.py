"""The reference draft model computes what the engine's draft model computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine_tools import TARGET_FOLDER, Drafters, Engines
from sglang_kimi_eagle.drafter import read_drafter
from sglang_kimi_eagle.loaders import draft_loader
from sglang_kimi_eagle.releases import RELEASES
from tiny_models.paths import LLAMA, MLA, DrafterRecipe

STEPS = 3
# The engine serves in float32; logits have a magnitude of ten.
TOLERANCE = 2e-3

pytestmark = pytest.mark.usefixtures("torch_layer")


@dataclass(frozen=True)
class Forward:
    """One forward of the engine's draft model."""

    mode: str
    ids: list[int]
    positions: list[int]
    hidden: Any
    logits: Any


def forwards(
    engines: Engines, release: str, draft: Path, prompt: list[int], **options: Any
) -> list[Forward]:
    """Serve one prompt and return the draft model's forwards: the prompt's, then its chain's."""
    from safetensors import safe_open

    folder = engines.records_folder()
    environ = {"CPU_ENGINE_DRAFT_LOGITS": str(folder)}
    with engines.server(
        release, draft, probes="draft_logits", environ=environ, **options
    ) as server:
        server.generate([prompt], 4)
    found = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["facts"])
            found.append(
                Forward(
                    facts["mode"],
                    facts["ids"],
                    facts["positions"],
                    file.get_tensor("hidden"),
                    file.get_tensor("logits"),
                )
            )
    return found


def reference_logits(draft: Path, release: str, first: Forward, chain: list[int]) -> list[Any]:
    """The reference's logits of each step of the chain behind the prompt."""
    import torch

    from sglang_kimi_eagle.probing.loading import load

    tokens = [*first.ids, *chain]
    loaded = load(read_drafter(str(draft)), str(TARGET_FOLDER), tokens, release=release)
    reference = loaded.reference
    with torch.inference_mode():
        hidden = reference.enter(first.hidden.chunk(reference.num_states, dim=-1))
        hidden = torch.nn.functional.pad(hidden, (0, 0, 0, len(chain)))
        steps = reference.unroll(loaded.embedding.of(torch.tensor(tokens)), hidden, len(chain) + 1)
        return [step.logits[len(first.ids) - 1 + s] for s, step in enumerate(steps)]


def yarn(config: dict[str, Any]) -> None:
    config["rope_scaling"] = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 48,
        "beta_fast": 16.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.6,
    }


def llama3(config: dict[str, Any]) -> None:
    config["rope_scaling"] = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 48,
    }


def fc_norm(config: dict[str, Any]) -> None:
    config["fc_norm"] = config["norm_output"] = True


def norm_before_fc(config: dict[str, Any]) -> None:
    config["norm_before_fc"] = True


def with_norms(draft: Path, folder: Path) -> Path:
    """A copy with the weights of the norms before ``fc`` that its config asks for."""
    import torch
    from safetensors.torch import load_file, save_file

    config = json.loads((draft / "config.json").read_text())
    random = torch.Generator().manual_seed(1)
    tensors = load_file(draft / "model.safetensors")
    if config.get("fc_norm"):
        for slot in range(3):
            tensors[f"fc_norm.{slot}.weight"] = torch.rand(128, generator=random) + 0.5
    if config.get("norm_before_fc"):
        tensors["input_norm.weight"] = torch.rand(3 * 128, generator=random) + 0.5
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def check(engines: Engines, release: str, draft: Path, prompt: list[int], **options: Any) -> None:
    first, *rest = forwards(engines, release, draft, prompt, **options)
    assert first.mode == "EXTEND" and len(first.ids) == len(prompt)
    chain = rest[: STEPS - 1]
    assert [forward.mode for forward in chain] == ["DECODE"] * (STEPS - 1)
    ahead = draft_loader(RELEASES[release]).chain_positions_ahead
    expected = [len(prompt) + ahead, len(prompt) + 1 + ahead]
    assert [forward.positions[0] for forward in chain] == expected
    engine = [first.logits[-1], *(forward.logits[0] for forward in chain)]
    own = reference_logits(draft, release, first, [forward.ids[0] for forward in chain])
    for ours, theirs in zip(own, engine, strict=True):
        assert (ours - theirs.float()).abs().max() < TOLERANCE
        assert int(ours.argmax()) == int(theirs.argmax())


@pytest.mark.engine
@pytest.mark.parametrize(
    ("release", "recipe"),
    [
        ("0.5.9", LLAMA),
        pytest.param("0.5.13.post1", LLAMA, marks=pytest.mark.matrix),
        pytest.param("0.5.13.post1", MLA, marks=pytest.mark.matrix),
        ("0.5.23", LLAMA),
        ("0.5.23", MLA),
    ],
    ids=lambda value: getattr(value, "folder", value),
)
def test_logits_of_a_chain_agree(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    recipe: DrafterRecipe,
) -> None:
    check(engines, release, drafters.pinned(recipe), prompts[0])


@pytest.mark.engine
@pytest.mark.parametrize(
    ("release", "recipe", "change"),
    [
        pytest.param("0.5.13.post1", LLAMA, yarn, marks=pytest.mark.matrix),
        ("0.5.23", LLAMA, yarn),
        ("0.5.23", LLAMA, llama3),
        ("0.5.23", LLAMA, fc_norm),
        ("0.5.23", LLAMA, norm_before_fc),
        ("0.5.23", MLA, yarn),
        ("0.5.23", MLA, fc_norm),
    ],
    ids=lambda value: getattr(value, "__name__", None) or getattr(value, "folder", value),
)
def test_logits_agree_for_what_other_drafters_use(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    tmp_path: Path,
    release: str,
    recipe: DrafterRecipe,
    change: Callable[[dict[str, Any]], None],
) -> None:
    draft = drafters.with_eagle_config(recipe, change)
    check(engines, release, with_norms(draft, tmp_path / "drafter"), prompts[0])
