"""Reading files that others have named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglang_kimi_eagle.drafter import UnreadableDrafter, read_drafter
from sglang_kimi_eagle.entry import needs_plugin
from sglang_kimi_eagle.ordinary_files import read_ordinary
from sglang_kimi_eagle.probing.findings import ProbeRefused
from sglang_kimi_eagle.probing.prompts import read_prompts
from sglang_kimi_eagle.server_arguments import BadCommandLine, ServerArguments
from sglang_kimi_eagle.target import UnreadableTarget, read_target


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (1 << 20))
    (tmp_path / "link").symlink_to(path)
    assert len(read_ordinary(path, 1 << 20)) == len(read_ordinary(tmp_path / "link")) == 1 << 20
    path.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(OSError, match="larger than 1024 KiB"):
        read_ordinary(path, 1 << 20)


def test_what_is_no_ordinary_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not an ordinary file"):
            read_ordinary(path)
    with pytest.raises(FileNotFoundError):
        read_ordinary(tmp_path / "none")


@pytest.mark.parametrize("name", ["launch.yaml", "prompts.json", "config.json", "refs/main"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    repository = tmp_path / "models--a--b"
    path = (repository if name.startswith("refs") else tmp_path) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    if name == "launch.yaml":
        assert not needs_plugin(["--config", str(path)])
        with pytest.raises(BadCommandLine, match="not an ordinary file"):
            ServerArguments.from_command_line(["--config", str(path)])
    elif name == "prompts.json":
        with pytest.raises(ProbeRefused) as refused:
            read_prompts(tmp_path)
        assert "not an ordinary file" in refused.value.findings[0].seen
    elif name == "config.json":
        assert needs_plugin(["--model-path", str(tmp_path), "--speculative-algorithm", "EAGLE3"])
        with pytest.raises(UnreadableTarget, match="not an ordinary file"):
            read_target(str(tmp_path))
    else:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(UnreadableDrafter):
            read_drafter("a/b")
