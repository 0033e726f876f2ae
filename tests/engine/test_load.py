"""Many requests at once, clients that go away, and a clean end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from cpu_engine.load import (
    bench_serving,
    impatient_clients,
    processes,
    resident_megabytes,
    write_requests,
)
from engine_tools import TARGET_FOLDER, Drafters, Engines
from tiny_models.paths import CHECKPOINTS, LLAMA
from tiny_models.prompt_file import load_prompts

pytestmark = pytest.mark.engine

CONCURRENCY = 16
ARGS = ("--max-running-requests", str(CONCURRENCY))


@pytest.mark.parametrize("release", ["0.5.23"])
def test_under_load_the_tokens_are_the_targets_and_nothing_leaks(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    tmp_path: Path,
) -> None:
    texts = [prompt.text for prompt in load_prompts(CHECKPOINTS)]
    requests = write_requests(tmp_path / "requests.jsonl", texts, 120)
    with engines.server(release, drafters.pinned(LLAMA), args=ARGS) as server:
        with impatient_clients(server, prompts) as gone:
            speculated = bench_serving(server, TARGET_FOLDER, requests, concurrency=CONCURRENCY)
        assert len(gone) >= 5
        after_one_round = resident_megabytes(server.pid)
        again = bench_serving(server, TARGET_FOLDER, requests, concurrency=CONCURRENCY)
        assert resident_megabytes(server.pid) < after_one_round * 1.05
        # SGLang counts its cache slots whenever it is idle, and says when some are lost.
        time.sleep(2)
        assert "leak" not in server.log_text
        assert "Scheduler hit an exception" not in server.log_text
        group = server.pid
        os.kill(group, signal.SIGTERM)
        end = time.monotonic() + 60
        while processes(group) and time.monotonic() < end:
            time.sleep(0.5)
        assert processes(group) == []
    with engines.server(release, plugin=False, args=ARGS) as plain:
        expected = bench_serving(plain, TARGET_FOLDER, requests, concurrency=CONCURRENCY)
    assert set(expected.errors) == set(speculated.errors) == {""}
    assert len(expected.texts) == 120 and len(set(expected.output_lengths)) > 10
    assert speculated.texts == expected.texts
    assert again.texts == expected.texts
