"""The files of a dump's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_kimi_eagle.dumps.files import list_files, open_file
from sglang_kimi_eagle.dumps.findings import DumpRefused


def code(path: Path, root: Path | None = None) -> str:
    with pytest.raises(DumpRefused) as problem:
        list_files(path) if root is None else open_file(path, root)
    return problem.value.findings[0].code


def test_files_are_listed_by_number_below_all_folders(tmp_path: Path) -> None:
    for name in ("rows_0-10/data_10.ckpt", "rows_0-10/data_9.ckpt", "rows_10-20/data_0.ckpt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".hidden").touch()
    names = [str(path.relative_to(tmp_path)) for path in list_files(tmp_path)]
    assert names == ["rows_0-10/data_9.ckpt", "rows_0-10/data_10.ckpt", "rows_10-20/data_0.ckpt"]


def test_a_file_is_itself(tmp_path: Path) -> None:
    (tmp_path / "dump").touch()
    assert list_files(tmp_path / "dump") == [tmp_path / "dump"]


@pytest.mark.parametrize("name", ["missing", "empty", "a\0b", "x" * 300])
def test_no_files_are_a_finding(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert code(tmp_path / name) == "KE811"


def test_links_are_followed_inside_the_folder_only(tmp_path: Path) -> None:
    root = tmp_path / "dump"
    root.mkdir()
    (root / "data").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"outside")
    (root / "in").symlink_to("data")
    (root / "out").symlink_to(tmp_path / "secret")
    assert open_file(root / "in", root).read_at(0, 10) == b"inside"
    assert code(root / "out", root) == "KE812"
    # A link that the user names is the user's own.
    assert open_file(root / "out", None).read_at(0, 10) == b"outside"


def test_a_snapshot_of_the_cache_has_its_files_among_the_blobs(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "x").write_bytes(b"blob")
    (snapshot / "data").symlink_to("../../blobs/x")
    assert open_file(snapshot / "data", snapshot).read_at(0, 4) == b"blob"


def test_a_read_that_fails_is_a_finding() -> None:
    with pytest.raises(DumpRefused) as problem:
        open_file(Path("/proc/self/mem"), None).read_at(0, 64)
    (finding,) = problem.value.findings
    assert (finding.code, finding.where) == ("KE811", "/proc/self/mem")


def test_what_is_checked_is_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(b"first")
    opened = open_file(tmp_path / "dump", None)
    (tmp_path / "other").write_bytes(b"second")
    (tmp_path / "other").replace(tmp_path / "dump")
    assert Path(opened.path).read_bytes() == b"first"
