"""The patches give a release what the plugin gives it: the same states, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpu_engine.launch import KERNELS
from cpu_engine.records import captured_states
from cpu_engine.server import Server
from cpu_engine.warm import WarmEngine
from engine_tools import (
    MAIN_RELEASES,
    PROBES,
    RECORDS,
    TARGET_FOLDER,
    Drafters,
    Engines,
    records_of,
    tokens,
)
from sglang_kimi_eagle.patching.trees import patched_copy
from sglang_kimi_eagle.releases import RELEASES
from tiny_models.paths import LLAMA

OTHERS = [release for release in RELEASES if release not in MAIN_RELEASES]
Run = tuple[list[list[int]], list[list[bytes]]]


def run(engines: Engines, server: Server, folder: Path, prompts: list[list[int]]) -> Run:
    """Return the generated tokens, and every tensor that the target captured."""
    with server:
        completions = server.generate(prompts[:2], 12)
    records = [record for record in records_of(folder) if record.kind == "target"]
    assert {tuple(captured_states(record)) for record in records} == {LLAMA.trained_on}
    return tokens(completions), [record.captured for record in records]


def check(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    folder: Path,
    *,
    plugin_too: bool = False,
) -> None:
    """Serve with the plugin on stock and without it on patched sources, and compare."""
    draft = drafters.pinned(LLAMA)
    records = engines.records_folder()
    with_plugin = run(
        engines,
        engines.server(release, draft, environ={RECORDS: str(records)}),
        records,
        prompts,
    )
    for plugin in (False, True) if plugin_too else (False,):
        environment = engines.environment(release, plugin=plugin)
        copy = folder / f"patched-{plugin}" / "sglang"
        copy.parent.mkdir()
        patched_copy(environment.site_packages / "sglang", copy)
        warm = WarmEngine(
            environment,
            log=folder / f"warm-{plugin}.log",
            environ={
                "PYTHONPATH": f"{copy.parent}:{KERNELS}",
                PROBES: "",
                RECORDS: "",
            },
        )
        records = engines.records_folder()
        with warm:
            server = Server(
                environment,
                TARGET_FOLDER,
                draft,
                log=folder / f"patched-{plugin}.log",
                environ={
                    "PYTHONPATH": f"{copy.parent}:{KERNELS}",
                    RECORDS: str(records),
                },
                progress=engines.say,
                warm=warm,
            )
            patched = run(engines, server, records, prompts)
            assert patched == with_plugin
            log = server.log_text
        assert ("sglang-kimi-eagle 0." in log) is plugin
        if plugin:
            assert "all three methods already there" in log


@pytest.mark.engine
@pytest.mark.parametrize("release", MAIN_RELEASES)
def test_patched_sources_capture_what_the_plugin_does(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    tmp_path: Path,
) -> None:
    both = release in ("0.5.9", "0.5.23")
    check(engines, drafters, prompts, release, tmp_path, plugin_too=both)


@pytest.mark.matrix
@pytest.mark.parametrize("release", OTHERS)
def test_patched_sources_of_every_release_do(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    tmp_path: Path,
) -> None:
    check(engines, drafters, prompts, release, tmp_path)
