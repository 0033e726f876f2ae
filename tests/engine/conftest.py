"""Real engines: one warm process for each environment, servers forked from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine_tools import Drafters, Engines
from tiny_models.paths import CHECKPOINTS
from tiny_models.prompt_file import load_prompts


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[Engines]:
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"  {line}", flush=True)

    pool = Engines(tmp_path_factory.mktemp("engines"), say)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> Drafters:
    return Drafters(tmp_path_factory.mktemp("drafters"))


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Six held-out prompts: documents and chats."""
    loaded = load_prompts(CHECKPOINTS)
    return [prompt.ids for prompt in loaded[:3] + loaded[-3:]]
