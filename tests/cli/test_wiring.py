"""``sglang-kimi-eagle wiring``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli_drafters import write_drafter, write_target
from sglang_kimi_eagle.cli import app
from sglang_kimi_eagle.releases import RELEASES


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(
        app, ["wiring", *(str(argument) for argument in arguments)], env={"COLUMNS": "200"}
    )
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def rows(*arguments: object) -> dict[str, Any]:
    _, output = run(*arguments, "--json")
    # stderr follows the JSON in the mixed output.
    found, _ = json.JSONDecoder().raw_decode(output)
    return {row["sglang"]: row for row in found["releases"]}


def test_every_release_has_a_row(tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path, ids=[2, 30, 58])
    status, output = run(drafter)
    assert status == 1
    assert all(version in output for version in RELEASES)
    assert "KE210" in output


def test_the_rows_of_the_story(tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path, ids=[2, 30, 58], convention="layer_output")
    found = rows(drafter, "--sglang", "0.5.12.post1", "--sglang", "0.5.13")
    assert set(found) == {"0.5.12.post1", "0.5.13"}
    assert found["0.5.12.post1"]["stock"] == [3, 31, 59]
    assert found["0.5.13"]["stock"] == [2, 30, 58]
    assert [row["plugin"] for row in found.values()] == [[3, 31, 59]] * 2
    assert [row["same"] for row in found.values()] == [True, False]
    assert run(drafter)[0] == 0


def test_a_class_that_a_release_lacks_is_said(tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path, ids=[1, 29, 57], architecture="Eagle3DeepseekV2ForCausalLM")
    found = rows(drafter)
    assert found["0.5.11"]["reason"] == "not served"
    assert found["0.5.12"]["plugin"] == [2, 30, 58]


def test_a_state_that_is_never_captured_is_said(tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path, ids=[2, 30, 61])
    status, output = run(drafter, "--sglang", "0.5.23")
    assert status == 3
    assert "h[61] never captured" in output and "refused: KE206" in output


def test_the_targets_layers_count(tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path / "drafter", ids=None)
    target = write_target(tmp_path / "target", num_layers=8)
    assert rows(drafter, "--target", target)["0.5.23"]["plugin"] == [2, 4, 5]
    assert rows(drafter)["0.5.23"]["plugin"] == [2, 30, 58]


def test_the_override_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = write_drafter(tmp_path, ids=[2, 30, 58])
    monkeypatch.setenv("SGLANG_KIMI_EAGLE_STATES", "3,31,59")
    assert rows(drafter)["0.5.23"]["reason"] == "override"
    monkeypatch.setenv("SGLANG_KIMI_EAGLE_STATES", "three")
    status, output = run(drafter)
    assert status == 3 and "KE010" in output


def test_an_unknown_release_is_a_wrong_command_line(tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path, ids=[2, 30, 58])
    status, output = run(drafter, "--sglang", "0.4.0")
    assert status == 2 and "0.5.9 - 0.5.23" in output


def test_a_terminal_of_any_width_is_written_to(tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path, ids=[1, 29, 57])
    for columns in ("1", "20", "99999999"):
        result = CliRunner().invoke(app, ["wiring", str(drafter)], env={"COLUMNS": columns})
        assert result.exit_code == 0 and len(result.output) < 100_000
