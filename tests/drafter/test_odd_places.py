"""What people, and downloads, put in the place of a drafter: nothing of it may break the reader."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from drafter_files import llama
from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.drafter import UnreadableDrafter, folder, read_drafter

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return llama().write(tmp_path / "drafter")


def refused(location: Path | str) -> Diagnostic:
    with pytest.raises(UnreadableDrafter) as caught:
        read_drafter(str(location))
    (finding,) = caught.value.findings
    return finding


def as_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        # A path of more than a hundred bytes is too long to bind to.
        here = Path.cwd()
        os.chdir(path.parent)
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


@pytest.mark.parametrize(
    "put",
    [
        lambda path: path.write_text("{}"),
        lambda path: os.mkfifo(path),
        lambda path: path.symlink_to(path),
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.symlink_to("/dev/zero"),
        as_socket,
    ],
)
def test_in_place_of_the_folder(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / "it")
    finding = refused(tmp_path / "it")
    assert finding.code == "KE101" and "not that of a folder" in finding.message


def test_a_file_of_the_drafter_in_place_of_its_folder(drafter: Path) -> None:
    for name in (CONFIG, WEIGHTS):
        assert refused(drafter / name).mend == "Give the folder that the file is in."


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, INDEX])
@pytest.mark.parametrize(
    "put",
    [lambda path: path.mkdir(), lambda path: os.mkfifo(path), as_socket],
)
def test_in_place_of_a_file(drafter: Path, name: str, put: Callable[[Path], None]) -> None:
    (drafter / name).unlink(missing_ok=True)
    put(drafter / name)
    assert refused(drafter).code == "KE106"


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, INDEX])
def test_a_device_in_place_of_a_file(drafter: Path, name: str) -> None:
    (drafter / name).unlink(missing_ok=True)
    (drafter / name).symlink_to("/dev/zero")
    assert refused(drafter).code == "KE105"


@pytest.mark.parametrize("name", [".", CONFIG, WEIGHTS])
def test_what_may_not_be_read(drafter: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root reads what it likes, so that modes would say nothing here.
    locked = str((drafter / name).resolve())

    def closed(function: Callable[..., object]) -> Callable[..., object]:
        def call(path: object, *args: object, **kwargs: object) -> object:
            if str(path) == locked:
                raise PermissionError(13, "Permission denied", locked)
            return function(path, *args, **kwargs)

        return call

    for function in ("open", "scandir", "listdir"):
        monkeypatch.setattr(os, function, closed(getattr(os, function)))
    finding = refused(drafter)
    assert (finding.code, finding.seen) == ("KE106", "Permission denied")


def test_a_folder_that_may_be_listed_and_not_entered(
    drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lstat(path: object, *args: object, **kwargs: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(folder.os, "lstat", lstat)
    assert refused(drafter).code == "KE106"


def test_very_many_entries(drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MAX_ENTRIES", 4)
    for number in range(5):
        (drafter / f"{number}.txt").touch()
    finding = refused(drafter)
    assert finding.code == "KE104" and "entries" in finding.seen


def test_very_many_shards(drafter: Path) -> None:
    for number in range(3000):
        (drafter / f"m{number}.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    assert "fc.weight" in read_drafter(str(drafter)).tensors


def test_very_large_files(drafter: Path) -> None:
    (drafter / WEIGHTS).write_bytes((10**9).to_bytes(8, "little"))
    os.truncate(drafter / WEIGHTS, 5 * 10**9)
    assert refused(drafter).code == "KE104"
    os.truncate(drafter / CONFIG, 40 * 10**9)
    assert refused(drafter).code == "KE104"


NAMES = ["ünï 漢字", "-x", "a\nb", "[red]", "'; rm -rf ~ #", "\udcff\udcfe"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_folders(drafter: Path, name: str) -> None:
    shutil.copytree(drafter, drafter.parent / name)
    assert read_drafter(str(drafter.parent / name)).config["hidden_size"] == 128


@pytest.mark.parametrize(
    "name", ["'; rm -rf ~ #.bin", "\x1b[2J.bin", "$(id).bin", "-o.bin", "x" * 200 + ".bin"]
)
def test_names_of_files_are_no_part_of_a_command(drafter: Path, name: str) -> None:
    (drafter / WEIGHTS).rename(drafter / name)
    finding = refused(drafter)
    assert finding.code == "KE108"
    assert "torch.load('FILE'," in finding.mend
    assert "\x1b" not in finding.render()


def test_only_a_hub_id_is_named_as_one(drafter: Path) -> None:
    (drafter / WEIGHTS).unlink()
    assert refused(drafter).mend.endswith("hf download REPOSITORY")


@pytest.mark.parametrize("letter", ["\x1b", "\x07", "\u202e", "\x9b", "\r"])
def test_names_in_a_checkpoint_cannot_write_to_the_terminal(drafter: Path, letter: str) -> None:
    (drafter / INDEX).write_text(f'{{"weight_map": {{"a": "x{letter * 5000}.safetensors"}}}}')
    try:
        read_drafter(str(drafter))
    except UnreadableDrafter as problem:
        text = str(problem)
    assert letter not in text and len(text) < 3000
