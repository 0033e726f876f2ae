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

SCHEMA_KEYS = ("schema", "drafter", "num_layers", "releases", "findings", "status")


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(
        app, ["wiring", *(str(argument) for argument in arguments)], env={"COLUMNS": "200"}
    )
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def rows(*arguments: object) -> dict[str, Any]:
    return {row["sglang"]: row for row in document(*arguments)["releases"]}


def document(*arguments: object) -> dict[str, Any]:
    """The JSON output, with nothing beside it."""
    status, output = run(*arguments, "--json")
    found: dict[str, Any] = json.loads(output)
    assert (found["schema"], found["status"]) == (1, status)
    assert set(found) == set(SCHEMA_KEYS)
    return found


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
    for columns in ("0", "1", "20", "-5", "abc", "99999999"):
        result = CliRunner().invoke(app, ["wiring", str(drafter)], env={"COLUMNS": columns})
        assert result.exit_code == 0 and 1000 < len(result.output) < 100_000


def test_what_cannot_be_read_is_said_in_json_too(tmp_path: Path) -> None:
    found = document(tmp_path / "none")
    assert [finding["code"] for finding in found["findings"]] == ["KE101"]
    assert found["drafter"] == str(tmp_path / "none")
    assert (found["num_layers"], found["releases"], found["status"]) == (None, [], 3)
    drafter = write_drafter(tmp_path / "drafter", ids=[1, 29, 57])
    found = document(drafter, "--target", tmp_path)
    assert [finding["code"] for finding in found["findings"]] == ["KE102"]


def test_settings_that_are_wrong_are_said_in_json_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = write_drafter(tmp_path, ids=[1, 29, 57])
    monkeypatch.setenv("SGLANG_KIMI_EAGLE_IGNORE", "KE21O")
    assert [finding["code"] for finding in document(drafter)["findings"]] == ["KE215", "KE013"]
    monkeypatch.setenv("SGLANG_KIMI_EAGLE_STATES", "three")
    assert [finding["code"] for finding in document(drafter)["findings"]] == ["KE010"]


def test_a_release_that_is_fine_has_its_row_in_json(tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path, ids=[1, 29, 57])
    found = document(drafter, "--sglang", "0.5.23")
    assert found["num_layers"] == 61
    (row,) = found["releases"]
    assert list(row) == ["sglang", "stock", "plugin", "reason", "explanation", "same", "findings"]


def test_a_model_that_is_no_drafter_is_said_to_be_none(tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path / "drafter", ids=[2, 4, 6])
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(
        json.dumps({**config, "architectures": ["KimiK25ForConditionalGeneration"]})
    )
    found = document(drafter)
    assert [finding["code"] for finding in found["findings"]] == ["KE301"]
    assert found["releases"] == [] and found["status"] == 3
