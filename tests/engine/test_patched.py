"""The patches give a release what the plugin gives it: the same states, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpu_engine.environments import Environment
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
from patching.pull_request import copy_with_patches
from sglang_kimi_eagle.patching.trees import patched_copy
from sglang_kimi_eagle.releases import NEWEST, OLDEST, RELEASES
from sglang_kimi_eagle.wiring import DECLARATION_KEY
from tiny_models.paths import LLAMA

BOTH = (OLDEST, NEWEST)
"""On these, `make test` also runs patched sources together with the plugin."""
OTHERS = [release for release in RELEASES if release not in BOTH]
Run = tuple[list[list[int]], list[list[bytes]]]


def run(
    server: Server,
    folder: Path,
    prompts: list[list[int]],
    states: tuple[int, ...] = LLAMA.trained_on,
) -> Run:
    """Return the generated tokens, and every tensor that the target captured."""
    with server:
        completions = server.generate(prompts[:2], 12)
    records = [record for record in records_of(folder) if record.kind == "target"]
    assert {tuple(captured_states(record)) for record in records} == {states}
    return tokens(completions), [record.captured for record in records]


def warm_copy(environment: Environment, parent: Path, folder: Path) -> WarmEngine:
    """Return a warm process that imports the SGLang in ``parent`` instead of the installed one."""
    return WarmEngine(
        environment,
        log=folder / "warm.log",
        environ={"PYTHONPATH": f"{parent}:{KERNELS}", PROBES: "", RECORDS: ""},
    )


def serve_copy(
    engines: Engines, warm: WarmEngine, parent: Path, draft: Path, folder: Path, records: Path
) -> Server:
    return Server(
        warm.environment,
        TARGET_FOLDER,
        draft,
        log=folder / f"{records.name}.log",
        environ={"PYTHONPATH": f"{parent}:{KERNELS}", RECORDS: str(records)},
        progress=engines.say,
        warm=warm,
    )


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
        engines.server(release, draft, environ={RECORDS: str(records)}),
        records,
        prompts,
    )
    for plugin in (False, True) if plugin_too else (False,):
        environment = engines.environment(release, plugin=plugin)
        copy = folder / f"patched-{plugin}" / "sglang"
        copy.parent.mkdir()
        patched_copy(environment.site_packages / "sglang", copy)
        records = engines.records_folder()
        with warm_copy(environment, copy.parent, folder) as warm:
            server = serve_copy(engines, warm, copy.parent, draft, folder, records)
            patched = run(server, records, prompts)
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
    check(engines, drafters, prompts, release, tmp_path, plugin_too=release in BOTH)


@pytest.mark.matrix
@pytest.mark.parametrize("release", OTHERS)
def test_patched_sources_of_every_release_do(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    tmp_path: Path,
) -> None:
    check(engines, drafters, prompts, release, tmp_path, plugin_too=True)


@pytest.mark.engine
def test_the_pull_request_captures_what_is_declared(
    engines: Engines, drafters: Drafters, prompts: list[list[int]], tmp_path: Path
) -> None:
    environment = engines.environment(NEWEST, plugin=False)
    package = environment.site_packages / "sglang"
    parent = copy_with_patches(package, tmp_path / "checkout")
    generated = []
    with warm_copy(environment, parent, tmp_path) as warm:
        for convention, states in (
            (None, (2, 4, 6)),
            ("layer_output", (3, 5, 7)),
            ("layer_input", (2, 4, 6)),
        ):

            def declare(config: Any, convention: str | None = convention) -> None:
                config["eagle_config"][DECLARATION_KEY] = convention

            draft = drafters.with_eagle_config(LLAMA, declare)
            records = engines.records_folder()
            server = serve_copy(engines, warm, parent, draft, tmp_path, records)
            generated.append(run(server, records, prompts, states)[0])
    assert generated == [engines.plain_tokens(NEWEST, prompts[:2], 12)] * 3
