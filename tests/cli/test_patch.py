"""``sglang-kimi-eagle patch``: what it does to folders, and its exit status."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from patching.sources import stock_copy
from sglang_kimi_eagle.cli.patch import patch
from sglang_kimi_eagle.patching.generate import HELPERS, helpers_text
from sglang_kimi_eagle.patching.shipped import patch_of

app = typer.Typer()
app.command()(patch)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_the_patch_of_a_release_is_printed() -> None:
    done = run("--sglang", "0.5.9")
    assert done.exit_code == 0
    assert done.stdout == patch_of("0.5.9").render()


def test_it_is_written_to_a_file(tmp_path: Path) -> None:
    done = run("--sglang", "0.5.23", "-o", str(tmp_path / "kimi.patch"))
    assert done.exit_code == 0
    assert (tmp_path / "kimi.patch").read_text() == patch_of("0.5.23").render()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["-o", "file"],
        ["--check", ".", "--undo", "."],
        ["--apply-to", ".", "-o", "file"],
        ["--from", ".", "--check", "."],
    ],
)
def test_a_wrong_command_line_is_told_apart(words: list[str]) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert "Say what to do" in done.output


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--sglang", "0.5.8"], "KE706"),
        (["--check", "/nowhere"], "KE701"),
        (["--apply-to", "/nowhere"], "KE701"),
        (["--from", "/nowhere"], "KE701"),
        (["--sglang", "0.5.9", "-o", "/nowhere/file"], "KE709"),
        (["--sglang", "0.5.9", "-o", "/"], "KE709"),
    ],
)
def test_a_refusal_is_a_diagnostic(
    words: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run(*words)
    assert done.exit_code == 3
    assert f"{code} error:" in done.output


@pytest.mark.parametrize("option", ["--check", "--apply-to", "--undo", "--from"])
def test_a_pipe_among_the_sources_is_not_waited_for(tmp_path: Path, option: str) -> None:
    folder = tmp_path / "sglang" / "srt" / "models"
    folder.mkdir(parents=True)
    for name in ("deepseek_v2.py", "kimi_k25.py"):
        os.mkfifo(folder / name)
    done = run(option, str(tmp_path))
    assert done.exit_code == 3
    assert "not an ordinary file" in done.output


def test_a_path_that_is_printed_forges_no_line(tmp_path: Path) -> None:
    done = run("--sglang", "0.5.9", "-o", str(tmp_path / "a\nb\x1b[2J"))
    assert done.exit_code == 0
    assert done.output.count("\n") == 1 and "\x1b" not in done.output


@pytest.mark.wheels
def test_a_folder_is_checked_patched_and_restored(tmp_path: Path) -> None:
    folder = str(tmp_path / "site packages, überall")
    stock_copy("0.5.9", Path(folder) / "sglang")
    before = run("--check", folder)
    assert before.exit_code == 1
    assert "KE707 warning: SGLang 0.5.9 is as released" in before.output
    assert run("--apply-to", folder).exit_code == 0
    assert run("--check", folder).exit_code == 0
    assert "was patched already" in run("--apply-to", folder).output
    assert run("--check", folder, "--sglang", "0.5.10").exit_code == 3
    assert run("--undo", folder, "--sglang", "0.5.9").exit_code == 0
    assert run("--check", folder).exit_code == 1
    assert "was not patched" in run("--undo", folder).output


@pytest.mark.wheels
def test_a_tree_that_is_patched_in_part_is_told_and_mended(tmp_path: Path) -> None:
    folder = str(tmp_path)
    stock_copy("0.5.23", tmp_path / "sglang")
    (tmp_path / "sglang" / HELPERS).parent.mkdir(exist_ok=True)
    (tmp_path / "sglang" / HELPERS).write_text(helpers_text())
    told = run("--check", folder)
    assert told.exit_code == 3
    assert "KE703 error: SGLang 0.5.23 is patched in part" in told.output
    assert HELPERS in told.output
    assert run("--undo", folder).exit_code == 0
    assert run("--check", folder).exit_code == 1


@pytest.mark.wheels
def test_sources_that_cannot_be_understood_are_refused(tmp_path: Path) -> None:
    stock_copy("0.5.23", tmp_path / "sglang")
    for text in ("def broken(:\n", "class KimiK25ForConditionalGeneration:\n    pass\n"):
        (tmp_path / "sglang/srt/models/kimi_k25.py").write_text(text)
        done = run("--from", str(tmp_path))
        assert done.exit_code == 3
        assert "error:" in done.output
        assert "Traceback" not in done.output


@pytest.mark.wheels
def test_a_patch_is_generated_from_a_folder(tmp_path: Path) -> None:
    stock_copy("0.5.23", tmp_path / "python" / "sglang")
    done = run("--from", str(tmp_path), "--sglang", "0.5.23")
    assert done.exit_code == 0
    assert done.stdout == patch_of("0.5.23").render()
