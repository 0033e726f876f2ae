"""The patches that come with the plugin, one for each known release."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sglang_kimi_eagle.patching.diffs import Patch, parse
from sglang_kimi_eagle.patching.findings import NO_PATCH, PatchRefused
from sglang_kimi_eagle.releases import RELEASES, spans


def folder() -> Path:
    """Return the folder of the patches: inside the installed package, or the checkout's."""
    installed = Path(__file__).with_name("patches")
    return installed if installed.is_dir() else Path(__file__).parents[2] / "patches"


@cache
def patch_of(version: str) -> Patch:
    """Return the patch for a release.

    Raises:
        PatchRefused: there is none.
    """
    path = folder() / f"sglang-{version}.patch"
    if version not in RELEASES or not path.is_file():
        raise PatchRefused(
            NO_PATCH.found(
                f"There is no patch for SGLang {version}.",
                where=str(path.parent),
                seen=f"patches exist for {spans(list(RELEASES))}",
                leads_to="Nothing is written.",
                mend="Name one of these releases, or generate a patch from your sources: "
                "sglang-kimi-eagle patch --from DIR",
            )
        )
    return parse(path.read_bytes().decode())
