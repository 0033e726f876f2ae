"""The committed patches: there is one for each release, in the one form."""

from __future__ import annotations

import pytest

from sglang_kimi_eagle.patching.diffs import parse
from sglang_kimi_eagle.patching.findings import PatchRefused
from sglang_kimi_eagle.patching.generate import HELPERS, helpers_text
from sglang_kimi_eagle.patching.shipped import folder, patch_of
from sglang_kimi_eagle.releases import RELEASES


@pytest.mark.parametrize("version", RELEASES)
def test_a_release_has_its_patch(version: str) -> None:
    text = (folder() / f"sglang-{version}.patch").read_text()
    assert parse(text).render() == text
    (helpers,) = (file for file in patch_of(version).files if file.path == HELPERS)
    assert helpers.apply(None) == helpers_text().encode()


def test_no_other_patch_lies_there() -> None:
    names = {path.name for path in folder().glob("*.patch")}
    assert names == {f"sglang-{version}.patch" for version in RELEASES}


@pytest.mark.parametrize("version", ["0.5.8", "latest", "../0.5.9"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(PatchRefused, match="no patch") as refused:
        patch_of(version)
    assert refused.value.findings[0].code == "KE706"
