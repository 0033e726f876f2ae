"""The patch of every release: current, applicable by every tool, and in upstream's format."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from patching.formatters import complaints
from patching.sources import stock_copy
from sglang_kimi_eagle.patching.diffs import PREFIX
from sglang_kimi_eagle.patching.generate import generate
from sglang_kimi_eagle.patching.shipped import folder, patch_of
from sglang_kimi_eagle.patching.trees import apply, read_tree, undo
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.upstream import Installation, inspect
from wheels import unpacked

pytestmark = pytest.mark.wheels

every_release = pytest.mark.parametrize("version", RELEASES)


@pytest.fixture
def checkout(version: str, tmp_path: Path) -> Path:
    """The files that the patch changes, where they lie in SGLang's repository."""
    stock_copy(version, tmp_path / "checkout" / "python" / "sglang")
    return tmp_path / "checkout"


def patch_file(version: str) -> Path:
    return folder() / f"sglang-{version}.patch"


def result(checkout: Path) -> dict[str, bytes]:
    return {str(path.relative_to(checkout)): path.read_bytes() for path in checkout.rglob("*.py")}


@every_release
def test_generating_again_gives_no_difference(version: str) -> None:
    assert generate(unpacked(version), version).render() == patch_file(version).read_text()


@every_release
def test_every_tool_makes_the_same_tree_and_takes_it_back(version: str, checkout: Path) -> None:
    stock = result(checkout)
    tree = read_tree(checkout)
    apply(tree)
    patched = result(checkout)
    assert patched != stock
    undo(read_tree(checkout, tree.version))
    assert result(checkout) == stock

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=checkout, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run("git", "init", "--quiet", ".")
    run("git", "apply", "--check", str(patch_file(version)))
    run("git", "apply", str(patch_file(version)))
    assert result(checkout) == patched
    run("git", "apply", "--reverse", str(patch_file(version)))
    assert result(checkout) == stock
    said = run("patch", "--strip=1", "--fuzz=0", f"--input={patch_file(version)}")
    assert "offset" not in said
    assert result(checkout) == patched


@every_release
def test_the_plugin_knows_the_patched_release(version: str, checkout: Path) -> None:
    package = checkout / "python" / "sglang"
    stock = inspect(Installation(package, version)).release
    apply(read_tree(checkout))
    inspection = inspect(Installation(package, version))
    patched = inspection.release
    assert stock is not None
    assert patched is not None, inspection.findings
    assert inspection.missing_methods == ()
    assert patched.setter_rule is stock.setter_rule
    assert patched.captures_embedding is stock.captures_embedding
    assert not patched.graphs_reset_ids
    assert not patched.partial_sums


@every_release
def test_upstreams_formatters_find_nothing_new(version: str, checkout: Path) -> None:
    changed = [f"{PREFIX}{file.path}" for file in patch_of(version).files]
    existing = [path for path in changed if (checkout / path).exists()]
    before = complaints(checkout, existing, version)
    apply(read_tree(checkout))
    assert complaints(checkout, changed, version) <= before


def test_generating_from_a_patched_tree_is_refused(tmp_path: Path) -> None:
    from sglang_kimi_eagle.patching.findings import PatchRefused

    stock_copy("0.5.9", tmp_path)
    apply(read_tree(tmp_path))
    with pytest.raises(PatchRefused, match="patched already"):
        generate(tmp_path, "0.5.9")
