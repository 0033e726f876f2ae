"""``sglang-kimi-eagle pin``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli_drafters import write_drafter, write_target
from sglang_kimi_eagle.cli import app


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return write_drafter(tmp_path / "drafter", ids=[2, 30, 58])


def eagle_config(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / "config.json").read_text())["eagle_config"]
    return content


def test_states_are_declared_in_a_copy(drafter: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    status, output = run("pin", drafter, "--states", "3,31,59", "-o", copy)
    assert status == 0, output
    assert "[2, 30, 58], layer_output, h[3], h[31], h[59]" in output
    assert eagle_config(copy)["layer_id_convention"] == "layer_output"
    assert "layer_id_convention" not in eagle_config(drafter)


def test_the_path_of_the_copy_forges_no_line(drafter: Path, tmp_path: Path) -> None:
    status, output = run("pin", drafter, "--states", "3,31,59", "-o", tmp_path / "a\nb\x1b[2J")
    assert status == 0
    assert output.count("\n") == 1 and "\x1b" not in output and "a\\nb" in output


def test_a_convention_is_declared_in_place(drafter: Path) -> None:
    assert run("pin", drafter, "--convention", "layer_input", "--in-place")[0] == 0
    assert eagle_config(drafter)["layer_id_convention"] == "layer_input"
    assert (drafter / "config.json.bak").is_file()


@pytest.mark.parametrize(
    ("specifier", "ids"), [(">=0.5.13", [3, 31, 59]), ("<0.5.13", [2, 30, 58])]
)
def test_ids_are_rewritten_for_stock(drafter: Path, specifier: str, ids: list[int]) -> None:
    status, output = run(
        "pin", drafter, "--states", "3,31,59", "--for-stock", specifier, "--in-place"
    )
    assert status == 0, output
    assert eagle_config(drafter)["eagle_aux_hidden_state_layer_ids"] == ids


def test_a_declared_drafter_is_rewritten_for_stock_without_naming_states(drafter: Path) -> None:
    assert run("pin", drafter, "--convention", "layer_output", "--in-place")[0] == 0
    assert run("pin", drafter, "--for-stock", ">=0.5.13", "--in-place")[0] == 0
    assert eagle_config(drafter)["eagle_aux_hidden_state_layer_ids"] == [3, 31, 59]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--states", "3,31,59"], 2, "--output"),
        (["--in-place"], 2, "--states"),
        (["--states", "3;31", "--in-place"], 2, "no states"),
        (["--states", "3,31,59", "--convention", "layer_input", "--in-place"], 2, "not both"),
        (["--states", "3,31,59", "--for-stock", "latest", "--in-place"], 2, "specifier"),
        (["--states", "3,31,59", "--for-stock", ">=9", "--in-place"], 2, "No release"),
        (["--convention", "sideways", "--in-place"], 2, "layer_input"),
        (["--states", "3,31,61", "--in-place"], 3, "KE206"),
        (["--states", "59,31,3", "--in-place"], 3, "KE205"),
        (["--states", "3,31", "--in-place"], 3, "KE207"),
        (["--states", "3,31,59", "--for-stock", ">=0.5.9", "--in-place"], 3, "KE221"),
        (["--for-stock", ">=0.5.13", "--in-place"], 3, "KE210"),
    ],
)
def test_what_cannot_be_done_is_said(
    drafter: Path, arguments: list[str], status: int, said: str
) -> None:
    before = (drafter / "config.json").read_bytes()
    result = run("pin", drafter, *arguments)
    assert result[0] == status, result[1]
    assert said in result[1]
    assert (drafter / "config.json").read_bytes() == before


def test_a_convention_needs_ids(tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path / "drafter", ids=None)
    status, output = run("pin", drafter, "--convention", "layer_input", "--in-place")
    assert status == 3 and "KE220" in output


def test_the_targets_layers_bound_the_states(drafter: Path, tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", num_layers=8)
    status, output = run("pin", drafter, "--states", "3,5,7", "--in-place", "--target", target)
    assert status == 0, output
    status, output = run("pin", drafter, "--states", "3,5,8", "--in-place", "--target", target)
    assert status == 3 and "h[8] cannot be captured" in output


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_a_drafter_that_cannot_be_read_is_diagnosed(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    status, output = run("pin", tmp_path / folder, "--states", "3,31,59", "--in-place")
    assert status == 3 and "KE1" in output and "Traceback" not in output


def test_a_model_that_is_no_drafter_is_not_copied(drafter: Path, tmp_path: Path) -> None:
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps({**config, "architectures": "x"}))
    status, output = run("pin", drafter, "--states", "3,5,7", "-o", tmp_path / "copy")
    assert status == 3 and "KE301" in output
    assert not (tmp_path / "copy").exists()
