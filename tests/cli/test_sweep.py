"""``sglang-kimi-eagle sweep``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sglang_kimi_eagle.cli import app
from sglang_kimi_eagle.ordinary_files import MAX_SOURCE
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
    says(folder, "9.9.9")
    return folder


def says(folder: Path, version: str) -> None:
    text = f"__version__ = version = '{version}'\n"
    (folder / "sglang" / "_version.py").write_text(text)


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
    assert "KE701 error" in output and "changed" not in output


def test_an_unknown_release_is_a_usage_error() -> None:
    status, output = run("--sglang", "0.4.0")
    assert status == 2
    assert "--from" in output


BROKEN: dict[str, bytes | None] = {
    "syntax.py": b"def broken(:\n",
    "latin.py": b"name = '\xe9'\n",
    "nul.py": b"\0",
    "deep.py": b"(" * 100_000,
    "huge.py": b"#" * (MAX_SOURCE + 1),
    "pipe.py": None,
}


def spoil(path: Path, content: bytes | None) -> None:
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    folder = models(tmp_path, ABLE + "EntryClass = Able\n")
    spoil(folder / "sglang" / "srt" / "models" / name, BROKEN[name])
    status, found = report("--from", folder)
    assert (status, found["complete"]) == (1, 1)
    (finding,) = found["findings"]
    assert finding["code"] == "KE881" and name.removesuffix(".py") in finding["seen"]


@pytest.mark.parametrize("name", BROKEN)
def test_sources_of_which_nothing_can_be_read_are_refused(tmp_path: Path, name: str) -> None:
    folder = models(tmp_path, "")
    own = folder / "sglang" / "srt" / "models" / "own.py"
    own.unlink()
    spoil(own, BROKEN[name])
    for arguments in ((), ("--json",)):
        status, output = run("--from", folder, *arguments)
        assert status == 3
        assert "KE880 error" in output and "own: " in output


def test_sources_without_a_class_are_refused(tmp_path: Path) -> None:
    status, output = run("--from", models(tmp_path, ""))
    assert status == 3 and "KE880 error" in output and "EntryClass" in output


def test_many_skipped_files_are_counted(tmp_path: Path) -> None:
    folder = models(tmp_path, ABLE + "EntryClass = Able\n")
    for number in range(9):
        (folder / "sglang" / "srt" / "models" / f"broken{number}.py").write_text("(")
    _, found = report("--from", folder)
    (finding,) = found["findings"]
    assert "9 files" in finding["message"]
    assert "broken4" in finding["seen"] and finding["seen"].endswith("and 4 more")


def test_a_version_file_that_is_a_pipe_tells_nothing(tmp_path: Path) -> None:
    folder = models(tmp_path, ABLE + "EntryClass = Able\n")
    (folder / "sglang" / "_version.py").unlink()
    os.mkfifo(folder / "sglang" / "_version.py")
    status, found = report("--from", folder)
    assert (status, found["sglang"]) == (0, "unknown")


@pytest.mark.parametrize("named", ["banana", "0.4.0", "", "[/red]"])
def test_sources_are_not_called_an_unknown_version(tmp_path: Path, named: str) -> None:
    status, output = run("--from", models(tmp_path, ABLE + WRAPPER), "--sglang", named)
    assert status == 2 and "No such release" in output


@pytest.mark.parametrize(
    ("own", "named", "status"),
    [
        ("0.5.23", "0.5.23", 0),
        ("0.5.23+cpu", "0.5.23", 0),
        ("9.9.9", "9.9.9", 0),
        ("0.0.0.dev0", "0.5.23", 0),
        ("0.5.x[/red]", "0.5.23", 0),
        ("0.5.23", "0.5.9", 3),
        ("0.5.24.dev3+gabc", "0.5.23", 3),
    ],
)
def test_a_named_version_is_that_of_the_sources(
    tmp_path: Path, own: str, named: str, status: int
) -> None:
    folder = models(tmp_path, ABLE + "EntryClass = Able\n")
    says(folder, own)
    got, output = run("--from", folder, "--sglang", named)
    assert got == status
    assert ("KE882 error" in output) is (status == 3)
    assert run("--from", folder)[0] == 0


@pytest.mark.wheels
def test_the_newest_release_has_nothing_new() -> None:
    status, found = report("--from", unpacked(NEWEST).parent)
    assert status == 0, found["findings"]
    assert found["sglang"] == NEWEST
