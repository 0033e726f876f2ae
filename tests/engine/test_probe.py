"""From one launch to the states that a drafter was trained on, with the real engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cpu_engine.launch import launch_args, launch_environ
from cpu_engine.server import free_port
from engine_tools import TARGET_FOLDER, Drafters, Engines, acceptance_length
from sglang_kimi_eagle.drafter import read_drafter
from tiny_models.paths import LLAMA, MLA, DrafterRecipe

STEPS = 3
# The bar of the project: what a probe expects is what the engine then does.
WITHIN = 0.1
SEEDS = 20
ROWS = 400

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("torch_layer")]


@dataclass(frozen=True)
class Probed:
    """A finished ``probe --launch``."""

    status: int
    report: dict[str, Any]
    trace: Path
    errors: str
    port: int

    def length_of(self, states: tuple[int, ...]) -> float:
        (found,) = (one for one in self.report["candidates"] if one["states"] == list(states))
        length: float = found["acceptance_length"]["value"]
        return length

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The recorded sequences of ``prompts.json``."""
        document = json.loads((self.trace / "prompts.json").read_text())
        return list(document["sequences"])


def probe(
    engines: Engines, release: str, draft: Path, folder: Path, *options: str, tp_size: int = 1
) -> Probed:
    """Run the command in the environment of the engine."""
    environment, port = engines.environment(release), free_port()
    command = [str(environment.python), "-m", "sglang_kimi_eagle", "probe", str(draft)]
    command += ["--launch", "--json", "--trace", str(folder), "--timeout", "600", *options, "--"]
    command += launch_args(release, TARGET_FOLDER, draft, port=port, tp_size=tp_size)
    done = subprocess.run(
        command,
        env=launch_environ(environment, tp_size=tp_size),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode in (0, 1), done.stderr
    return Probed(done.returncode, json.loads(done.stdout), folder, done.stderr, port)


def served(engines: Engines, release: str, draft: Path, probed: Probed) -> float:
    """Serve the same prompts; return the acceptance length."""
    with engines.server(release, draft) as server:
        completions = [
            server.generate(
                [one["tokens"][: one["prompt"]]],
                len(one["tokens"]) - one["prompt"],
            )[0]
            for one in probed.asked
        ]
    return acceptance_length(completions)


@pytest.mark.parametrize("recipe", [LLAMA, MLA], ids=["llama", "mla"])
def test_one_launch_finds_the_states_and_expects_what_the_engine_then_does(
    engines: Engines, drafters: Drafters, tmp_path: Path, recipe: DrafterRecipe
) -> None:
    from sglang_kimi_eagle.probing.probe import Options, run_probe

    shipped = drafters.shipped(recipe)
    probed = probe(engines, "0.5.23", shipped, tmp_path / "trace")
    verdict = probed.report["verdict"]
    assert verdict["clear"] and verdict["states"] == list(recipe.trained_on)
    # Undeclared, this release reads the ids as layer inputs.
    running = (2, 4, 6)
    assert probed.report["running"] == list(running)
    assert probed.status == (0 if recipe.trained_on == running else 1)
    measured = probed.report["sample"]["measured_acceptance_length"]
    assert measured == pytest.approx(probed.length_of(running), abs=WITHIN)

    pinned = drafters.pinned(recipe)
    length = served(engines, "0.5.23", pinned, probed)
    assert length == pytest.approx(probed.length_of(recipe.trained_on), abs=WITHIN)

    for seed in range(SEEDS):
        options = Options(target=str(TARGET_FOLDER), limit=ROWS, seed=seed)
        report = run_probe(read_drafter(str(shipped)), probed.trace, options)
        assert report.best.states == recipe.trained_on, seed


def test_a_release_that_tells_no_tokens_is_probed_too(
    engines: Engines, drafters: Drafters, tmp_path: Path
) -> None:
    """0.5.9 templates conversations for itself only: their tokens are read from the trace."""
    probed = probe(engines, "0.5.9", drafters.shipped(LLAMA), tmp_path / "trace")
    assert probed.status == 0 and probed.report["verdict"]["states"] == list(LLAMA.trained_on)
    measured = probed.report["sample"]["measured_acceptance_length"]
    assert measured == pytest.approx(probed.length_of(LLAMA.trained_on), abs=WITHIN)


@pytest.mark.matrix
def test_two_ranks_are_probed_as_one_is(
    engines: Engines, drafters: Drafters, tmp_path: Path
) -> None:
    draft = drafters.shipped(LLAMA)
    probed = probe(engines, "0.5.13.post1", draft, tmp_path / "trace", tp_size=2)
    assert probed.status == 1 and probed.report["verdict"]["states"] == list(LLAMA.trained_on)


def test_a_kept_server_goes_on_serving(
    engines: Engines, drafters: Drafters, tmp_path: Path
) -> None:
    folder = tmp_path / "trace"
    probed = probe(
        engines, "0.5.23", drafters.pinned(LLAMA), folder, "--keep", "--states", "2,3,4,5,6,7"
    )
    try:
        assert probed.status == 0 and "KE834" in probed.errors
        with urllib.request.urlopen(f"http://127.0.0.1:{probed.port}/model_info") as answer:
            assert answer.status == 200
    finally:
        for pid in _listening(probed.port):
            with suppress(ProcessLookupError):
                os.killpg(os.getpgid(pid), signal.SIGKILL)
    for _ in range(100):
        if not _listening(probed.port):
            return
        time.sleep(0.1)
    raise AssertionError("the server outlived its end")


def _listening(port: int) -> list[int]:
    """The processes whose command line names the port."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"sglang.launch_server" in words and str(port).encode() in words:
                found.append(int(path.parent.name))
    return found
