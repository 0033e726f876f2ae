"""The reference draft model beside the trainers' twins, and what it refuses."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drafter_files
from sglang_kimi_eagle.drafter import read_drafter
from sglang_kimi_eagle.probing.findings import ProbeRefused
from sglang_kimi_eagle.probing.rope import UnknownRope, llama_rope, mla_rope
from tiny_models.paths import CHECKPOINTS, LLAMA, MLA, TARGET, DrafterRecipe

TARGET_FOLDER = str(CHECKPOINTS / TARGET)
STEPS = 3

pytestmark = [pytest.mark.measure, pytest.mark.usefixtures("torch_layer")]


def load(folder: Path | str, tokens: Any, target: str = TARGET_FOLDER, **options: Any) -> Any:
    from sglang_kimi_eagle.probing.loading import load as load_drafter

    return load_drafter(read_drafter(str(folder)), target, tokens, **options)


def unrolled(recipe: DrafterRecipe, tokens: list[int]) -> tuple[list[Any], list[Any], Any]:
    """Logits of the twin and of the reference, [tokens - 1, vocabulary] a step, and the twin."""
    import torch

    from tiny_models.export import load_drafter
    from twin_traces import states_of, target

    states = states_of(tuple(tokens))
    twin = load_drafter(CHECKPOINTS / recipe.folder)
    loaded = load(CHECKPOINTS / recipe.folder, tokens)
    with torch.no_grad():
        fed = [states[k][:-1] for k in recipe.trained_on]
        embeds = target().model.embed_tokens(torch.tensor(tokens[1:]))
        theirs = [step[0] for step in twin.unroll(embeds[None], torch.cat(fed, -1)[None], STEPS)]
        hidden = loaded.reference.enter(fed)
        entering = loaded.embedding.of(torch.tensor(tokens[1:]))
        steps = list(loaded.reference.unroll(entering, hidden, STEPS))
    return theirs, steps, twin


@pytest.mark.parametrize("recipe", [LLAMA, MLA], ids=["llama", "mla"])
@pytest.mark.parametrize("blocks", ["whole", "small"])
def test_logits_and_tokens_are_those_of_the_twin(
    recipe: DrafterRecipe, blocks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_kimi_eagle.probing import attention, reference
    from twin_traces import conversations

    if blocks == "small":
        monkeypatch.setattr(attention, "_SCORES", 4 * 97 * 5)
        monkeypatch.setattr(reference, "_BLOCK", 1000)
        monkeypatch.setattr(reference, "_ROWS", 7)
    tokens = list(conversations()[0].tokens)
    theirs, ours, twin = unrolled(recipe, tokens)
    for step, (logits, found) in enumerate(zip(theirs, ours, strict=True)):
        assert (found.logits - logits)[step:].abs().max() < 1e-4
        assert (found.tokens == twin.to_target(logits.argmax(-1)))[step:].all()


@pytest.mark.parametrize("recipe", [LLAMA, MLA], ids=["llama", "mla"])
def test_rows_that_are_not_asked_about_change_nothing(recipe: DrafterRecipe) -> None:
    import torch

    from twin_traces import conversations, states_of

    tokens = conversations()[0].tokens
    loaded = load(CHECKPOINTS / recipe.folder, tokens)
    with torch.no_grad():
        hidden = loaded.reference.enter([states_of(tokens)[k] for k in recipe.trained_on])
        embeds = loaded.embedding.of(torch.tensor([*tokens[1:], 5]))
        whole = list(loaded.reference.unroll(embeds, hidden, STEPS))
        late = list(loaded.reference.unroll(embeds, hidden, STEPS, first=40))
    for step, (every, some) in enumerate(zip(whole, late, strict=True)):
        assert len(some.normed) == len(tokens) - 40
        # The first rows of a step go on with chains that begin before.
        assert (every.normed[40:] - some.normed)[step:].abs().max() < 1e-4


class TestRopes:
    """Against formulas written out one channel at a time."""

    def test_plain(self) -> None:
        rope = llama_rope({"rope_theta": 100.0}, 4, yarn_mscale=True)
        assert rope.frequencies().tolist() == pytest.approx([1.0, 0.1])

    def test_linear(self) -> None:
        scaling = {"rope_type": "linear", "factor": 4.0}
        rope = llama_rope({"rope_theta": 100.0, "rope_scaling": scaling}, 4, yarn_mscale=True)
        assert rope.frequencies().tolist() == pytest.approx([0.25, 0.025])

    def test_parameters_may_be_named_as_in_newer_configs(self) -> None:
        parameters = {"rope_type": "default", "rope_theta": 100.0}
        rope = llama_rope({"rope_parameters": parameters}, 4, yarn_mscale=True)
        assert rope.frequencies().tolist() == pytest.approx([1.0, 0.1])

    def test_llama3_keeps_fast_channels_and_stretches_slow_ones(self) -> None:
        scaling = {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        found = llama_rope({"rope_theta": 5e5, "rope_scaling": scaling}, 128, yarn_mscale=True)
        for channel, value in enumerate(found.frequencies().tolist()):
            plain = 5e5 ** (-2 * channel / 128)
            wave = 2 * math.pi / plain
            if wave < 8192 / 4:
                expected = plain
            elif wave > 8192:
                expected = plain / 8
            else:
                smooth = (8192 / wave - 1) / 3
                expected = (1 - smooth) * plain / 8 + smooth * plain
            assert value == pytest.approx(expected, rel=1e-4)

    def test_yarn_of_the_published_drafters(self) -> None:
        config = {"rope_theta": 50000.0, "rope_scaling": dict(drafter_files.YARN)}
        new, old = (llama_rope(config, 128, yarn_mscale=flag) for flag in (True, False))
        latent = mla_rope(config, 64)
        assert new.magnitude == latent.magnitude == 1.0
        # Before 0.5.16 the class takes no notice of mscale.
        assert old.magnitude == pytest.approx(0.1 * math.log(64) + 1)
        assert latent.score_scale == pytest.approx((0.1 * math.log(64) + 1) ** 2)
        found = latent.frequencies().tolist()
        plain = [50000.0 ** (-2 * channel / 64) for channel in range(32)]
        # 32 turns over 4096 positions end at channel 8.9, one turn at channel 19.2.
        assert found[:9] == pytest.approx(plain[:9], rel=1e-4)
        assert found[20:] == pytest.approx([value / 64 for value in plain[20:]], rel=1e-4)
        middle = 1 - (14 - 8) / (20 - 8)
        assert found[14] == pytest.approx(plain[14] * (middle + (1 - middle) / 64), rel=1e-4)

    @pytest.mark.parametrize(
        "config",
        [
            {"rope_scaling": {"rope_type": "longrope"}},
            {"rope_scaling": {"rope_type": "yarn", "factor": "64"}},
            {"rope_scaling": {"mrope_section": [1, 2], "type": "default"}},
            {"rope_scaling": [1]},
            {"rope_theta": None},
            {"partial_rotary_factor": 0.5},
        ],
    )
    def test_what_is_not_known_is_refused(self, config: dict[str, Any]) -> None:
        with pytest.raises(UnknownRope):
            llama_rope(config, 64, yarn_mscale=True)

    def test_latent_attention_has_yarn_only(self) -> None:
        with pytest.raises(UnknownRope):
            mla_rope({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 64)


def refused(checkpoint: drafter_files.Checkpoint, folder: Path, target: str = "") -> list[str]:
    with pytest.raises(ProbeRefused) as refusal:
        load(checkpoint.write(folder / "drafter"), [1, 2, 3], target or TARGET_FOLDER)
    return [finding.code for finding in refusal.value.findings]


def quantised(checkpoint: drafter_files.Checkpoint) -> None:
    checkpoint.config["quantization_config"] = {"quant_method": "quark"}


def in_eight_bits(checkpoint: drafter_files.Checkpoint) -> None:
    name = "midlayer.mlp.up_proj.weight"
    checkpoint.tensors[name] = drafter_files.Tensor(checkpoint.tensors[name].shape, "F8_E4M3")


def of_two_layers(checkpoint: drafter_files.Checkpoint) -> None:
    checkpoint.config["num_hidden_layers"] = 2
    for name in [name for name in checkpoint.tensors if name.startswith("midlayer")]:
        shape = checkpoint.tensors[name].shape
        if "q_proj" in name or "k_proj" in name or "v_proj" in name:
            shape = (shape[0], shape[1] // 2)
        second = name.replace("midlayer", "layers.1")
        checkpoint.tensors[second] = drafter_files.Tensor(shape)


def of_another_activation(checkpoint: drafter_files.Checkpoint) -> None:
    checkpoint.config["hidden_act"] = "gelu"


def without_states(checkpoint: drafter_files.Checkpoint) -> None:
    checkpoint.config["eagle_config"]["use_aux_hidden_state"] = False


def with_a_strange_rope(checkpoint: drafter_files.Checkpoint) -> None:
    checkpoint.config["rope_scaling"] = {"rope_type": "longrope", "factor": 2.0}


class TestRefusals:
    @pytest.mark.parametrize(
        "change",
        [
            quantised,
            of_two_layers,
            of_another_activation,
            without_states,
            with_a_strange_rope,
        ],
        ids=lambda change: change.__name__,
    )
    def test_what_the_reference_does_not_know(
        self, tmp_path: Path, change: Callable[[drafter_files.Checkpoint], None]
    ) -> None:
        checkpoint = drafter_files.llama()
        change(checkpoint)
        assert refused(checkpoint, tmp_path) == ["KE831"]

    def test_undeclared_quantisation(self, tmp_path: Path) -> None:
        checkpoint = drafter_files.llama()
        in_eight_bits(checkpoint)
        assert refused(checkpoint, tmp_path) == ["KE317"]

    def test_a_missing_tensor(self, tmp_path: Path) -> None:
        checkpoint = drafter_files.mla()
        del checkpoint.tensors["layers.0.mlp.up_proj.weight"]
        assert refused(checkpoint, tmp_path) == ["KE312"]

    def test_no_embedding_anywhere(self, tmp_path: Path) -> None:
        assert refused(drafter_files.llama(), tmp_path, "no-such-target") == ["KE840"]

    def test_a_target_of_another_width(self, tmp_path: Path) -> None:
        checkpoint = drafter_files.llama(hidden=64, heads=2, groups=1)
        assert refused(checkpoint, tmp_path) == ["KE840"]


class TestWhatTheEngineGives:
    def test_the_targets_embedding_replaces_the_drafters_own(self, tmp_path: Path) -> None:
        folder = drafter_files.llama(own_embedding=True).write(tmp_path / "drafter")
        here, away = load(folder, [7, 9]), load(folder, [7, 9], "no-such-target")
        assert here.embedding_from == "target" and here.embedding.rows.abs().sum() > 0
        # The drafter's own is a hole in its file.
        assert away.embedding_from == "drafter" and away.embedding.rows.abs().sum() == 0

    def test_a_drafter_of_another_width_keeps_its_own(self, tmp_path: Path) -> None:
        checkpoint = drafter_files.llama(
            hidden=64, heads=2, groups=1, target_hidden=128, own_embedding=True
        )
        loaded = load(checkpoint.write(tmp_path / "drafter"), [7, 9])
        assert loaded.embedding_from == "drafter" and loaded.reference.width == 128

    def test_a_drafter_without_a_vocabulary_gets_the_targets_head(self, tmp_path: Path) -> None:
        checkpoint = drafter_files.llama(draft_vocab=None)
        loaded = load(checkpoint.write(tmp_path / "drafter"), [7, 9])
        assert loaded.reference.head.weight.abs().sum() > 0
        assert loaded.reference.head.weight.shape == (1024, 128)

    def test_tied_heads_are_the_embedding(self, tmp_path: Path) -> None:
        checkpoint = drafter_files.llama(
            draft_vocab=None, own_embedding=True, tie_word_embeddings=True
        )
        loaded = load(checkpoint.write(tmp_path / "drafter"), [7, 9])
        assert loaded.reference.head.weight.shape == (1024, 128)


_PEAK = """
import json, re, sys
sys.path.append(sys.argv[1])
import torch
torch.set_num_threads(1)
from sglang_kimi_eagle.drafter import read_drafter
from sglang_kimi_eagle.probing.loading import load
# Not ru_maxrss, which a child takes over from the process that started it.
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak()
loaded = load(read_drafter(sys.argv[2]), "none", range(64))
read = peak()
with torch.inference_mode():
    states = [torch.zeros(513, 512, dtype=torch.bfloat16)] * 3
    hidden = loaded.reference.enter(states)
    embeds = loaded.embedding.of(torch.arange(513) % 64)
    for step in loaded.reference.unroll(embeds, hidden, 3):
        step.tokens
after = peak()
print(json.dumps([1024 * (read - before), 1024 * (after - before)]))
"""


def test_memory_is_that_of_the_weights_and_a_bounded_rest(
    tmp_path: Path, torch_layer: Path
) -> None:
    """Kimi-K2.5's vocabulary with a narrow drafter: whole logits would take 335 MB a step."""
    checkpoint = drafter_files.mla(
        hidden=512,
        inner=2048,
        heads=8,
        vocab=163840,
        draft_vocab=163840,
        own_embedding=True,
    )
    folder = checkpoint.write(tmp_path / "drafter")
    embedding = checkpoint.tensors["embed_tokens.weight"].length
    weights = sum(tensor.length for tensor in checkpoint.tensors.values()) - embedding
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(torch_layer), str(folder)],
        check=True,
        capture_output=True,
        text=True,
    )
    read, all_of_it = json.loads(done.stdout)
    assert read < weights + (64 << 20)
    # A block of a matrix in float32, its product, and what the chains need.
    assert all_of_it < weights + (480 << 20)
