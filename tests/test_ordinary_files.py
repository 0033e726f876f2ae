"""Reading files that others have named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglang_kimi_eagle.ordinary_files import read_ordinary


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (1 << 20))
    (tmp_path / "link").symlink_to(path)
    assert len(read_ordinary(path, 1 << 20)) == len(read_ordinary(tmp_path / "link")) == 1 << 20
    path.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(OSError, match="larger than 1 MiB"):
        read_ordinary(path, 1 << 20)


def test_what_is_no_ordinary_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not an ordinary file"):
            read_ordinary(path)
    with pytest.raises(FileNotFoundError):
        read_ordinary(tmp_path / "none")
