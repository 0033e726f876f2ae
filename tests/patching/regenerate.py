"""Write every generated patch anew: ``python -m patching.regenerate``."""

from __future__ import annotations

from pathlib import Path

from patching.other_models import with_table
from patching.pull_request import (
    BACKPORT,
    FOLDER,
    FOLLOW_UP,
    K3_PATCH,
    OTHER_MODELS,
    PATCH,
    backport,
    follow_up,
    kimi_k3_patch,
    pull_request,
)
from sglang_kimi_eagle.adapters.kimi_k3 import PROVED
from sglang_kimi_eagle.patching.generate import generate
from sglang_kimi_eagle.patching.kimi_k3 import generate_kimi_k3
from sglang_kimi_eagle.releases import NEWEST, RELEASES
from wheels import ROOT, unpacked


def main() -> None:
    """Generate the patch of each release from its wheel, and the pull request."""
    for version in RELEASES:
        patch = generate(unpacked(version), version)
        _write(ROOT / "patches" / f"sglang-{version}.patch", patch.render())
    for version in PROVED:
        patch = generate_kimi_k3(unpacked(version), version)
        _write(ROOT / "patches" / "kimi-k3" / f"sglang-{version}.patch", patch.render())
    _write(FOLDER / K3_PATCH, kimi_k3_patch())
    _write(FOLDER / PATCH, pull_request())
    _write(FOLDER / FOLLOW_UP, follow_up())
    _write(FOLDER / BACKPORT, backport())
    others = FOLDER / OTHER_MODELS
    _write(others, with_table(others.read_text(encoding="utf-8"), unpacked(NEWEST)))


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8", newline="\n")
        print(path.name)


if __name__ == "__main__":
    main()
