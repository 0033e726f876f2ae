"""Watching real servers: the wrong wiring is flagged, the right one is not, under one load."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cpu_engine.server import Server
from engine_tools import Drafters, Engines, acceptance_length
from sglang_kimi_eagle.cli import app
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.settings import Settings
from sglang_kimi_eagle.watching.address import parse_address
from sglang_kimi_eagle.watching.client import Client
from sglang_kimi_eagle.watching.evidence import examine
from sglang_kimi_eagle.watching.server import read_server
from sglang_kimi_eagle.watching.watcher import Watcher
from tiny_models.paths import CHECKPOINTS, LLAMA
from tiny_models.prompt_file import load_prompts

IDS, WRONG = (2, 4, 6), (2, 4, 6)
WATCHED = ("0.5.9", "0.5.23")
TOKENS = 96


def watch(server: Server, *arguments: object) -> list[dict[str, Any]]:
    """Run the command in this process; return what it printed as JSON."""
    words = ["watch", server.base_url, "--json", *(str(argument) for argument in arguments)]
    result = CliRunner().invoke(app, words)
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    decoder, text, found = json.JSONDecoder(), result.stdout.lstrip(), []
    while text:
        one, end = decoder.raw_decode(text)
        found.append(one)
        text = text[end:].lstrip()
    assert found[-1]["status"] == result.exit_code
    return found


def once(server: Server, *arguments: object) -> dict[str, Any]:
    (found,) = watch(server, "--once", *arguments)
    return found


def load(server: Server, times: int = 1) -> float:
    """Send all prompts; return the acceptance length that the completions tell."""
    prompts = [prompt.ids for prompt in load_prompts(CHECKPOINTS)]
    done = [one for _ in range(times) for one in server.generate(prompts, TOKENS)]
    return acceptance_length(done)


def under_load(server: Server, *arguments: object) -> list[str]:
    """Verdicts of the readings while all prompts are sent twice."""
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(load, server, 2)
        found = watch(server, "--for", 8, "--interval", 0.5, *arguments)
        sent.result()
    return [one["verdict"] for one in found]


def last_verdict_under_load(server: Server) -> str:
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(load, server, 2)
        watched = Watcher(lambda reading: examine(reading, None, Settings()))
        client = Client(parse_address(server.base_url))
        while not sent.done():
            watched.feed(read_server(client))
            time.sleep(0.1)
    return watched.feed(read_server(client)).judgement.verdict.value


def check(engines: Engines, drafters: Drafters, release: str, folder: Path, *args: str) -> None:
    baseline = folder / "baseline.json"
    with engines.server(release, drafters.pinned(LLAMA), args=args) as server:
        assert once(server)["verdict"] == "not_enough_data"
        measured = load(server)
        quiet = once(server, "--save-baseline", baseline)
        assert quiet["verdict"] == "ok"
        assert quiet["acceptance"]["length"] == pytest.approx(measured, abs=0.15)
        assert quiet["server"]["sglang"] == release
        assert once(server, "--baseline", baseline)["verdict"] == "ok"
        assert set(under_load(server, "--baseline", baseline)) == {"ok"}

    # Where the release's own reading is the right one, somebody has told the server otherwise.
    stock = RELEASES[release].stock_states(IDS, 8)
    environ = {} if stock == WRONG else {"SGLANG_KIMI_EAGLE_STATES": "2,4,6"}
    draft = drafters.shipped(LLAMA)
    with engines.server(release, draft, args=args, environ=environ) as server:
        measured = load(server)
        alone = once(server)
        assert alone["verdict"] == "wrong_wiring"
        assert alone["acceptance"]["length"] == pytest.approx(measured, abs=0.15)
        assert alone["findings"][0]["code"] == "KE851"
        compared = once(server, "--baseline", baseline)
        assert compared["verdict"] == "wrong_wiring"
        assert compared["likely"] is (stock == WRONG)
        assert compared["baseline"]["length_ratio"] < 0.75
        assert set(under_load(server)) == {"wrong_wiring"}


@pytest.mark.engine
@pytest.mark.parametrize("release", WATCHED)
def test_the_wrong_wiring_is_flagged_and_the_right_one_is_not(
    engines: Engines, drafters: Drafters, tmp_path: Path, release: str
) -> None:
    check(engines, drafters, release, tmp_path, "--enable-metrics")


@pytest.mark.matrix
@pytest.mark.parametrize("release", [r for r in RELEASES if r not in WATCHED])
def test_so_it_is_on_every_release(
    engines: Engines, drafters: Drafters, tmp_path: Path, release: str
) -> None:
    check(engines, drafters, release, tmp_path, "--enable-metrics")


def check_without_metrics(engines: Engines, drafters: Drafters, release: str) -> None:
    """Short log intervals stand in for a long service: many averages are seen."""
    args = ("--decode-log-interval", "7")
    with engines.server(release, drafters.pinned(LLAMA), args=args) as server:
        assert last_verdict_under_load(server) == "ok"
    wrong = {"SGLANG_KIMI_EAGLE_STATES": "2,4,6"}
    with engines.server(release, drafters.shipped(LLAMA), args=args, environ=wrong) as server:
        assert last_verdict_under_load(server) == "wrong_wiring"


@pytest.mark.matrix
def test_so_it_is_without_metrics(engines: Engines, drafters: Drafters) -> None:
    check_without_metrics(engines, drafters, "0.5.9")


@pytest.mark.matrix
@pytest.mark.parametrize("release", [r for r in RELEASES if r != "0.5.9"])
def test_so_it_is_on_every_release_without_metrics(
    engines: Engines, drafters: Drafters, release: str
) -> None:
    check_without_metrics(engines, drafters, release)
