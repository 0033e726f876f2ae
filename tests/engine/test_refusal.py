"""Launches that must not go on, and switches, on real releases."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cpu_engine.server import ServerFailed
from engine_tools import TARGET_FOLDER, Drafters, Engines
from tiny_models.paths import LLAMA

pytestmark = pytest.mark.engine


def refused(engines: Engines, release: str, draft: Path, **options: Any) -> ServerFailed:
    """Launch, and return how it failed."""
    with pytest.raises(ServerFailed) as failure, engines.server(release, draft, **options):
        pass
    return failure.value


def break_ids(config: dict[str, Any]) -> None:
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [-1, 2, 4]


def loads_weights(log: str) -> bool:
    """Whether SGLang came as far as reading weights."""
    return "Load weight begin" in log or "Loading safetensors" in log


@pytest.mark.parametrize("release", ["0.5.9", "0.5.13.post1", "0.5.23"])
def test_a_broken_drafter_stops_the_launch_before_the_target_is_opened(
    engines: Engines, drafters: Drafters, release: str, tmp_path: Path
) -> None:
    opened = tmp_path / "opened"
    failure = refused(
        engines,
        release,
        drafters.with_eagle_config(LLAMA, break_ids),
        cold=True,
        environ={"CPU_ENGINE_PROBES": "opened_files", "CPU_ENGINE_OPENED": str(opened)},
    )
    assert failure.returncode == 3
    assert "KE203 error" in failure.log and "launch refused" in failure.log
    assert "Traceback" not in failure.log
    of_the_target = {
        Path(line).name
        for line in opened.read_text().splitlines()
        if line.startswith(str(TARGET_FOLDER) + "/")
    }
    # The plugin reads the target's sizes; SGLang has opened nothing.
    assert of_the_target <= {"config.json"}


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_an_sglang_that_has_moved_is_refused_before_weights_are_read(
    engines: Engines, drafters: Drafters, release: str
) -> None:
    failure = refused(engines, release, drafters.pinned(LLAMA), probes="renamed_setter")
    assert re.search(r"KE006 error: .*wrap setter failed", failure.log)
    assert "sglang.srt.models.deepseek_v2" in failure.log
    assert "SGLANG_KIMI_EAGLE=0" in failure.log
    assert not loads_weights(failure.log)
    assert failure.returncode == 3 and "EOFError" not in failure.log


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_a_backend_that_sglang_chooses_itself_is_judged_before_weights_are_read(
    engines: Engines, drafters: Drafters, release: str
) -> None:
    probe = {"CPU_ENGINE_PROBES": "chosen_backend"}
    failure = refused(engines, release, drafters.pinned(LLAMA), environ=probe, cold=True)
    assert failure.returncode == 3
    assert "KE510 error: The drafter's attention does not work with trtllm_mla" in failure.log
    assert "Traceback" not in failure.log and not loads_weights(failure.log)


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_another_plugin_that_changes_the_states_is_refused(
    engines: Engines, drafters: Drafters, release: str
) -> None:
    failure = refused(engines, release, drafters.pinned(LLAMA), probes="foreign_plugin")
    assert "KE008 error: The target must capture h[3], h[5], h[7], and does not" in failure.log
    assert "layers_to_capture is [1, 2, 3]" in failure.log
    assert "launch refused; before anything was served" in failure.log
    assert failure.returncode == 3 and "EOFError" not in failure.log


def test_a_truncated_drafter_is_refused(
    engines: Engines, drafters: Drafters, tmp_path: Path
) -> None:
    draft = drafters.pinned(LLAMA)
    weights = draft / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    failure = refused(engines, "0.5.23", draft)
    assert failure.returncode == 3 and re.search(r"KE1\d\d error", failure.log)


class TestSwitches:
    def test_sglangs_allowlist_leaves_the_plugin_out(
        self, engines: Engines, drafters: Drafters
    ) -> None:
        others = {"SGLANG_PLUGINS": "somebody_elses"}
        draft = drafters.with_eagle_config(LLAMA, break_layer_type)
        failure = refused(engines, "0.5.23", draft, environ=others)
        assert "sglang-kimi-eagle" not in failure.log
        named = {"SGLANG_PLUGINS": "kimi_eagle"}
        assert "KE201" in refused(engines, "0.5.23", draft, environ=named).log

    def test_off_means_stock(self, engines: Engines, drafters: Drafters) -> None:
        off = {"SGLANG_KIMI_EAGLE": "0"}
        draft = drafters.pinned(LLAMA)
        with engines.server("0.5.23", draft, environ=off) as server:
            assert "sglang-kimi-eagle" not in server.log_text
        failure = refused(engines, "0.5.9", draft, environ=off, cold=True)
        assert "has no attribute 'set_eagle3_layers_to_capture'" in failure.log
        assert "sglang-kimi-eagle" not in failure.log

    def test_other_algorithms_are_left_alone(
        self, engines: Engines, drafters: Drafters, prompts: list[list[int]]
    ) -> None:
        with engines.server("0.5.23") as server:
            assert "sglang-kimi-eagle" not in server.log_text
            assert server.generate(prompts[:1], 4)


def break_layer_type(config: dict[str, Any]) -> None:
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = json.dumps([2, 4, 6])
