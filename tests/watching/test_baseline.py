"""Baselines: saved, probed, bare, and broken."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sglang_kimi_eagle.watching.baseline import MAX_FILE, Baseline, load_baseline, save_baseline
from sglang_kimi_eagle.watching.chain import chance_of, length_of
from sglang_kimi_eagle.watching.findings import WatchFailed
from sglang_kimi_eagle.watching.server import Draft

CHAIN = Draft(3, 1, 4)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text("old")
    content = {
        "acceptance_length": 3.1,
        "tokens_per_second": 88.0,
        "running_requests": 4,
        "sglang": "0.5.23",
        "draft": {"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4},
        "states": [3, 31, 59],
    }
    save_baseline(path, content)
    assert load_baseline(path) == Baseline(3.1, str(path), CHAIN, (3, 31, 59), "0.5.23", 88.0, 4.0)
    assert list(tmp_path.iterdir()) == [path]


def test_a_probes_best_candidate_is_a_baseline(tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    report: dict[str, Any] = {
        "sglang": "0.5.23",
        "steps": 3,
        "running": [2, 4, 6],
        "candidates": [
            {"states": [3, 5, 7], "acceptance_length": {"value": 3.5, "low": 3.4, "high": 3.6}},
            {"states": [2, 4, 6], "acceptance_length": {"value": 2.3, "low": 2.2, "high": 2.4}},
        ],
        "verdict": {"clear": True, "states": [3, 5, 7]},
    }
    path.write_text(json.dumps(report))
    found = load_baseline(path)
    assert (found.length, found.draft, found.states) == (3.5, CHAIN, (3, 5, 7))
    report["verdict"]["clear"] = False
    path.write_text(json.dumps(report))
    assert load_baseline(path).states is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "no json",
        "[]",
        "3.1",
        "{}",
        '{"acceptance_length": "3.1"}',
        '{"acceptance_length": true}',
        '{"acceptance_length": 0.5}',
        '{"acceptance_length": NaN}',
        '{"acceptance_length": 1e999}',
        '{"candidates": []}',
        '{"candidates": [5]}',
        '{"candidates": [{"acceptance_length": 3}]}',
        "[" * 100_000,
        " " * (MAX_FILE + 1),
    ],
)
def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(content)
    with pytest.raises(WatchFailed) as failure:
        load_baseline(path)
    assert failure.value.finding.code == "KE867"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (".", "not an ordinary file"),
        ("pipe", "not an ordinary file"),
        ("/dev/zero", "not an ordinary file"),
        ("none", "no such file"),
        ("a\0b", "null"),
        ("x" * 5000, "too long"),
    ],
)
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, why: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WatchFailed) as failure:
        load_baseline(tmp_path / name)
    assert failure.value.finding.code == "KE867"
    assert why in failure.value.finding.seen


@pytest.mark.parametrize("odd", [5, "x", [], {}, {"num_steps": 0}, {"num_steps": 1e12}, None])
def test_odd_draft_settings_are_not_known(tmp_path: Path, odd: Any) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({"acceptance_length": 2, "draft": odd, "states": odd}))
    found = load_baseline(path)
    assert found.draft is None and found.states is None


def test_a_chain_is_converted_and_a_tree_is_not() -> None:
    chain = Baseline(length_of(0.8, 3), "", CHAIN)
    assert chain.length_for(CHAIN) == chain.length
    assert chain.length_for(Draft(5, 1, 6)) == pytest.approx(length_of(0.8, 5))
    assert chain.length_for(Draft(3, 4, 16)) is None
    assert Baseline(3.0, "").length_for(Draft(3, 4, 16)) == 3.0


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.95, 1.0])
def test_lengths_and_chances_are_inverse(chance: float) -> None:
    assert chance_of(length_of(chance, 4), 4) == pytest.approx(chance, abs=1e-6)
