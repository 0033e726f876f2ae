"""Nothing of the plugin runs per token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine_tools import Drafters, Engines
from tiny_models.paths import LLAMA

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_no_frame_of_the_plugin_is_in_the_decode_loop(
    engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str, tmp_path: Path
) -> None:
    note = tmp_path / "profile.json"
    with engines.server(
        release,
        drafters.pinned(LLAMA),
        probes="decode_profile",
        environ={"CPU_ENGINE_PROFILE": str(note)},
    ) as server:
        server.generate(prompts, 64)
    calls = json.loads(note.read_text())
    assert any("eagle_worker" in file for file, _, _ in calls), "the profile missed the drafting"
    assert [row for row in calls if "kimi_eagle" in row[0] or "wrapt" in row[0]] == []
