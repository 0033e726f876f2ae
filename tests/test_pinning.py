"""Writing a wiring down in a drafter's own config."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from sglang_kimi_eagle.pinning import (
    Pin,
    PinRefused,
    pin_for_stock,
    pin_states,
    write_copy,
    write_in_place,
)
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.states import Convention
from sglang_kimi_eagle.wiring import resolve

STATES = st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True).map(
    lambda states: tuple(sorted(states))
)


@given(STATES, st.one_of(st.none(), STATES))
def test_a_pin_means_its_states_on_every_release(
    states: tuple[int, ...], current: tuple[int, ...] | None
) -> None:
    config = pin_states(states, current).applied_to({"eagle_config": None})
    for release in RELEASES.values():
        assert resolve(config, num_layers=61, release=release).states == states


def test_present_ids_are_kept_when_they_can_mean_the_states() -> None:
    assert pin_states((3, 31, 59), [2, 30, 58]) == Pin((2, 30, 58), Convention.LAYER_OUTPUT)
    assert pin_states((2, 30, 58), [2, 30, 58]) == Pin((2, 30, 58), Convention.LAYER_INPUT)
    assert pin_states((3, 31, 59), [7, 8, 9]) == Pin((2, 30, 58), Convention.LAYER_OUTPUT)
    assert pin_states((0, 31, 59), None) == Pin((0, 31, 59), Convention.LAYER_INPUT)


@given(STATES)
def test_ids_for_stock_are_read_as_the_states_by_every_release_asked_for(
    states: tuple[int, ...],
) -> None:
    for specifier in (SpecifierSet("<0.5.13"), SpecifierSet(">=0.5.13")):
        releases = [r for v, r in RELEASES.items() if specifier.contains(v, prereleases=True)]
        try:
            pin = pin_for_stock(states, specifier, 61)
        except PinRefused as refusal:
            assert refusal.finding.code == "KE221"
            assert states[0] == 1 and "0.5.23" in refusal.finding.where
            continue
        assert {release.stock_states(pin.ids, 61) for release in releases} == {states}
        assert pin.states == states


def test_what_no_ids_express_is_said_with_the_releases_that_could() -> None:
    with pytest.raises(PinRefused) as refusal:
        pin_for_stock((3, 31, 59), SpecifierSet(">=0.5.9"), 61)
    seen = refusal.value.finding.seen
    assert "[3, 31, 59] do so on 0.5.13 - 0.5.23" in seen
    assert "[2, 30, 58] do so on 0.5.9 - 0.5.12.post1" in seen
    with pytest.raises(PinRefused) as refusal:
        pin_for_stock((1, 29, 57), SpecifierSet(">=0.5.13"), 61)
    assert "no ids do on any of them" in refusal.value.finding.seen


def test_other_keys_and_their_order_are_kept() -> None:
    config: dict[str, Any] = {"b": 1, "eagle_config": {"z": 2}, "a": [3]}
    pinned = Pin((2, 30, 58), Convention.LAYER_OUTPUT).applied_to(config)
    assert list(pinned) == ["b", "eagle_config", "a"]
    assert pinned["eagle_config"]["z"] == 2
    assert config["eagle_config"] == {"z": 2}


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "config.json").write_text('{"eagle_config": {}}')
    (folder / "config.json").chmod(0o640)
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_in_place_keeps_a_backup_and_the_permissions(drafter: Path) -> None:
    assert write_in_place(drafter, {"new": 1}).name == "config.json.bak"
    assert write_in_place(drafter, {"new": 2}).name == "config.json.bak2"
    assert json.loads((drafter / "config.json").read_text()) == {"new": 2}
    assert (drafter / "config.json.bak").read_text() == '{"eagle_config": {}}'
    assert (drafter / "config.json").stat().st_mode & 0o777 == 0o640
    assert len(list(drafter.iterdir())) == 4


def test_a_linked_config_is_never_changed(drafter: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    (drafter / "config.json").rename(blob)
    (drafter / "config.json").symlink_to(blob)
    with pytest.raises(PinRefused, match="is a link"):
        write_in_place(drafter, {"new": 1})
    assert blob.read_text() == '{"eagle_config": {}}'
    assert (drafter / "config.json").is_symlink()


def test_a_copy_follows_links_and_leaves_the_source_alone(drafter: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    (drafter / "model.safetensors").rename(blob)
    (drafter / "model.safetensors").symlink_to(blob)
    write_copy(drafter, tmp_path / "new" / "copy", {"new": 1})
    copied = tmp_path / "new" / "copy"
    assert (copied / "model.safetensors").read_bytes() == b"weights"
    assert not (copied / "model.safetensors").is_symlink()
    assert json.loads((copied / "config.json").read_text()) == {"new": 1}
    assert (drafter / "config.json").read_text() == '{"eagle_config": {}}'
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["copy"]


def test_a_folder_in_the_way_is_refused(drafter: Path, tmp_path: Path) -> None:
    with pytest.raises(PinRefused) as refusal:
        write_copy(drafter, drafter, {})
    assert refusal.value.finding.code == "KE223"
    (tmp_path / "empty").mkdir()
    write_copy(drafter, tmp_path / "empty", {"new": 1})
    assert (tmp_path / "empty" / "model.safetensors").is_file()


def test_what_is_no_folder_in_the_way_is_called_so(drafter: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("file", "is a file"), ("pipe", "is a pipe")):
        with pytest.raises(PinRefused, match=said) as refusal:
            write_copy(drafter, tmp_path / name, {})
        assert refusal.value.finding.code == "KE223"


@pytest.mark.parametrize("inside", ["sub", "a/b", "../drafter/sub", "../link/sub", "empty"])
def test_a_copy_is_not_put_inside_the_drafter(drafter: Path, tmp_path: Path, inside: str) -> None:
    (tmp_path / "link").symlink_to(drafter)
    (drafter / "empty").mkdir()
    before = sorted(drafter.rglob("*"))
    with pytest.raises(PinRefused) as refusal:
        write_copy(drafter, drafter / inside, {})
    assert refusal.value.finding.code == "KE225"
    assert sorted(drafter.rglob("*")) == before


def test_what_cannot_be_written_leaves_nothing_behind(
    drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PinRefused) as refusal:
        write_in_place(drafter, {"new": 1})
    assert refusal.value.finding.code == "KE224" and "No space" in refusal.value.finding.seen
    assert (drafter / "config.json").read_text() == '{"eagle_config": {}}'
    assert {path.name for path in drafter.iterdir()} == {
        "config.json",
        "model.safetensors",
    }


def test_a_backup_never_follows_a_link(drafter: Path, tmp_path: Path) -> None:
    (drafter / "config.json.bak").symlink_to(tmp_path / "outside")
    assert write_in_place(drafter, {"new": 1}).name == "config.json.bak2"
    assert not (tmp_path / "outside").exists()


def test_the_owner_is_kept(drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = (drafter / "config.json").stat().st_uid
    given: list[int] = []
    monkeypatch.setattr("os.getuid", lambda: owner + 1)
    monkeypatch.setattr("os.chown", lambda path, uid, gid: given.append(uid))
    write_in_place(drafter, {"new": 1})
    assert given == [owner]


@pytest.mark.parametrize("name", ["x" * 300, "a/\0b"])
def test_an_impossible_output_is_diagnosed(drafter: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(PinRefused) as refusal:
        write_copy(drafter, tmp_path / name, {})
    assert refusal.value.finding.code == "KE224"
