"""``sglang-kimi-eagle sweep``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sglang_kimi_eagle.cli import app
from sglang_kimi_eagle.releases import NEWEST
from sglang_kimi_eagle.sweeping import known_sweep
from wheels import unpacked


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(
        app, ["sweep", *(str(argument) for argument in arguments)], env={"COLUMNS": "200"}
    )
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def report(*arguments: object) -> tuple[int, dict[str, Any]]:
    status, output = run(*arguments, "--json")
    found, _ = json.JSONDecoder().raw_decode(output)
    return status, found


def models(folder: Path, text: str) -> Path:
    root = folder / "sglang" / "srt" / "models"
    root.mkdir(parents=True)
    (root / "own.py").write_text(text)
    (folder / "sglang" / "_version.py").write_text("__version__ = version = '9.9.9'\n")
    return folder


ABLE = (
    "class Able:\n"
    "    def set_eagle3_layers_to_capture(self, ids=None): ...\n"
    "    def get_embed_and_head(self): ...\n"
)
WRAPPER = (
    "class NewVL:\n    def __init__(self):\n        self.llm = Able()\nEntryClass = [NewVL, Able]\n"
)


def test_a_release_of_the_table_needs_no_sources() -> None:
    status, found = report("--sglang", "0.5.9")
    assert status == 0
    assert found["sglang"] == "0.5.9"
    names = {row["class"]: row for row in found["lacking"]}
    assert names["KimiK25ForConditionalGeneration"]["coverage"] == "adapter Kimi-K2.5"
    assert names["Qwen3VLForConditionalGeneration"]["coverage"] == "served"
    assert len(found["without"]) == len(known_sweep("0.5.9").without)


def test_the_table_is_for_people_too() -> None:
    status, output = run("--sglang", "0.5.9")
    assert status == 0
    assert "KimiK25ForConditionalGeneration" in output
    assert "have no capture loop" in output


def test_a_new_class_in_sources_shows_up(tmp_path: Path) -> None:
    status, found = report("--from", models(tmp_path, ABLE + WRAPPER))
    assert status == 1 and found["status"] == 1
    assert found["sglang"] == "9.9.9"
    (row,) = found["lacking"]
    assert (row["class"], row["attribute"], row["kind"]) == ("NewVL", "llm", "delegation")
    assert row["coverage"] == "SGLANG_KIMI_EAGLE_ADAPT=NewVL"
    assert [finding["code"] for finding in found["findings"]] == ["KE878"]


def test_sources_of_a_class_that_lacks_nothing(tmp_path: Path) -> None:
    status, found = report("--from", models(tmp_path, ABLE + "EntryClass = Able\n"))
    assert (status, found["complete"], found["lacking"]) == (0, 1, [])


def test_a_folder_without_sglang_is_refused(tmp_path: Path) -> None:
    status, output = run("--from", tmp_path)
    assert status == 3
    assert "error" in output and "Traceback" not in output


def test_an_unknown_release_is_a_usage_error() -> None:
    status, output = run("--sglang", "0.4.0")
    assert status == 2
    assert "--from" in output


@pytest.mark.wheels
def test_the_newest_release_has_nothing_new() -> None:
    status, found = report("--from", unpacked(NEWEST).parent)
    assert status == 0, found["findings"]
    assert found["sglang"] == NEWEST
