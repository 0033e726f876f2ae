"""What ``benchmarks/gpu`` does on a GPU, without graphs: its recorder, and its comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu.replayed_states import compare
from benchmarks.gpu.requests import continued, flush, generate
from engine_tools import Drafters, Engines
from tiny_models.paths import LLAMA

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("torch_layer")]


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_verified_states_are_those_of_the_prefill_unless_they_are_of_other_layers(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    tmp_path: Path,
) -> None:
    def serve(states: Sequence[int], *, prefill: bool) -> list[list[int]]:
        draft = drafters.pinned(LLAMA, states)
        environ = {"TARGET_FORWARDS": str(folder)}
        with engines.server(release, draft, probes="target_forwards", environ=environ) as server:
            answers = generate(server.base_url, prompts[:4], 24)
            whole = continued(prompts[:4], answers)
            if prefill:
                flush(server.base_url)
                generate(server.base_url, whole, 1)
        return whole

    folder = tmp_path / "same"
    folder.mkdir()
    whole = serve((3, 5, 7), prefill=True)
    same = compare(folder, whole, drafts=4)
    assert same.rows > 20 and same.replayed == 0
    assert same.worst_cosine > 0.999
    # As if a graph had been captured with other ids than the eager forward's.
    for path in folder.glob("*.safetensors"):
        if b"TARGET_VERIFY" in path.read_bytes()[:2000]:
            path.unlink()
    assert serve((2, 4, 6), prefill=False) == whole
    other = compare(folder, whole, drafts=4)
    assert other.rows > 20
    assert other.median_cosine < 0.99
