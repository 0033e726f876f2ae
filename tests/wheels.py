"""The published SGLang wheels, unpacked for reading; never installed or imported from here."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def cache() -> Path:
    """The folder that holds engines and wheels (ignored by git)."""
    return Path(os.environ.get("SGLANG_KIMI_EAGLE_ENGINES", ROOT / ".engines"))


def unpacked(version: str) -> Path:
    """Return the ``sglang`` package folder of a release's wheel, downloaded when needed."""
    folder = cache() / "sources" / version
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Tests run on several cores: one of them downloads a release.
        with (folder.parent / f"{version}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _unpack(version, folder)
    return folder / "sglang"


def _unpack(version: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        _download(version, Path(scratch))
        content = Path(scratch) / "content"
        for wheel in Path(scratch).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(content, _readable(archive))
        content.rename(folder)


def _readable(archive: zipfile.ZipFile) -> list[str]:
    """Sources and metadata only: shared objects and kernels' data are not read."""
    return [name for name in archive.namelist() if name.endswith(".py") or ".dist-info/" in name]


def _download(version: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    # The wheels since 0.5.11 are for one Python version; they are read, not run.
    platform = ["--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_34_x86_64"]
    platform += ["--platform=any"]
    subprocess.run(
        [*command, str(folder), *platform, f"sglang=={version}"], check=True, stdout=sys.stderr
    )
