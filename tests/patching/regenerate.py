"""Write every generated patch anew: ``python -m patching.regenerate``."""

from __future__ import annotations

from pathlib import Path

from sglang_kimi_eagle.patching.generate import generate
from sglang_kimi_eagle.releases import RELEASES
from wheels import ROOT, unpacked


def main() -> None:
    """Generate the patch of each release from its wheel."""
    for version in RELEASES:
        path = ROOT / "patches" / f"sglang-{version}.patch"
        _write(path, generate(unpacked(version), version).render())


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8", newline="\n")
        print(path.name)


if __name__ == "__main__":
    main()
