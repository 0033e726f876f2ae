"""Finding, patching and restoring source trees; a made-up release stands in for SGLang's."""

from __future__ import annotations

import itertools
import os
import signal
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sglang_kimi_eagle.ordinary_files import MAX_SOURCE
from sglang_kimi_eagle.patching import trees
from sglang_kimi_eagle.patching.diffs import Patch, diff
from sglang_kimi_eagle.patching.findings import PatchRefused

STOCK = {"srt/models/kimi_k25.py": "one\ntwo\n", "srt/models/deepseek_v2.py": "three\n"}
PATCHED = {
    "srt/models/kimi_k25.py": "one\nand a half\ntwo\n",
    "srt/models/deepseek_v2.py": "four\n",
    "srt/models/new.py": "five\n",
}
PATCHES = {
    "0.5.9": Patch(tuple(diff(path, STOCK.get(path), text) for path, text in PATCHED.items())),
    "0.5.10": Patch((diff("srt/models/kimi_k25.py", "another\n", "changed\n"),)),
}


@pytest.fixture(autouse=True)
def releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "RELEASES", PATCHES)
    monkeypatch.setattr(trees, "patch_of", PATCHES.__getitem__)


def write(package: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(text)


def content(package: Path) -> dict[str, str]:
    return {
        str(path.relative_to(package)): path.read_text()
        for path in package.rglob("*")
        if path.is_file()
    }


@pytest.fixture(params=["python/sglang", "sglang", "."])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, Path]]:
    """A tree in each layout: the folder that is named, and the package in it."""
    package = tmp_path / request.param
    write(package, STOCK)
    yield tmp_path, package


def test_a_tree_is_patched_and_restored(folder: tuple[Path, Path]) -> None:
    named, package = folder
    tree = trees.read_tree(named)
    assert (tree.version, tree.patched) == ("0.5.9", ())
    trees.apply(tree)
    assert content(package) == PATCHED
    tree = trees.read_tree(named, "0.5.9")
    assert tree.applied
    trees.apply(tree)
    assert content(package) == PATCHED
    trees.undo(tree)
    assert content(package) == STOCK
    trees.undo(trees.read_tree(named))
    assert content(package) == STOCK


def test_permissions_are_kept_and_linked_files_are_not_written_through(tmp_path: Path) -> None:
    shared = tmp_path / "shared.py"
    shared.write_text(STOCK["srt/models/deepseek_v2.py"])
    package = tmp_path / "sglang"
    write(package, STOCK)
    kimi, deepseek = (package / path for path in STOCK)
    kimi.chmod(0o640)
    deepseek.unlink()
    deepseek.symlink_to(shared)
    trees.apply(trees.read_tree(tmp_path))
    assert stat.S_IMODE(kimi.stat().st_mode) == 0o640
    assert shared.read_text() == STOCK["srt/models/deepseek_v2.py"]
    assert content(package) == PATCHED


@pytest.mark.parametrize("version", [None, "0.5.9"])
def test_other_sources_are_refused(tmp_path: Path, version: str | None) -> None:
    write(tmp_path, {**STOCK, "srt/models/kimi_k25.py": "one\ntwo\n# mine\n"})
    before = content(tmp_path)
    with pytest.raises(PatchRefused) as refused:
        trees.read_tree(tmp_path, version)
    (finding,) = refused.value.findings
    assert finding.code == "KE702"
    assert finding.seen == "differs from SGLang 0.5.9, patched or not: srt/models/kimi_k25.py"
    assert content(tmp_path) == before


def test_another_release_than_asked_for_is_refused(tmp_path: Path) -> None:
    write(tmp_path, STOCK)
    with pytest.raises(PatchRefused, match=r"not those of SGLang 0\.5\.10"):
        trees.read_tree(tmp_path, "0.5.10")


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("path", PATCHED)
def test_a_tree_that_is_patched_in_part_is_completed_or_restored(
    tmp_path: Path, path: str, undo: bool
) -> None:
    write(tmp_path, STOCK)
    write(tmp_path, {path: PATCHED[path]})
    tree = trees.read_tree(tmp_path)
    assert tree.mixed
    assert tree.patched == (path,)
    (trees.undo if undo else trees.apply)(tree)
    assert content(tmp_path) == (STOCK if undo else PATCHED)


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("killed_at", [1, 2, 3])
def test_a_killed_process_leaves_a_tree_that_can_be_completed_or_restored(
    tmp_path: Path, undo: bool, killed_at: int
) -> None:
    write(tmp_path, PATCHED if undo else STOCK)
    run_killed(trees.read_tree(tmp_path), undo=undo, killed_at=killed_at)
    left = trees.read_tree(tmp_path)
    assert len(left.patched) == (3 - (killed_at - 1) if undo else killed_at - 1)
    trees.apply(left)
    assert content(tmp_path) == PATCHED
    trees.undo(trees.read_tree(tmp_path))
    assert content(tmp_path) == STOCK


def run_killed(tree: trees.Tree, *, undo: bool, killed_at: int) -> None:
    """Patch in another process, which is killed when it puts the n-th file in place."""
    pid = os.fork()
    if pid == 0:
        count = itertools.count(1)
        for name in ("replace", "unlink"):
            original = getattr(Path, name)

            def step(
                self: Path, *words: object, original: object = original, **rest: object
            ) -> object:
                if next(count) == killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(self, *words, **rest)  # type: ignore[operator]

            setattr(Path, name, step)
        try:
            (trees.undo if undo else trees.apply)(tree)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)


def test_two_at_once_patch_once(tmp_path: Path) -> None:
    write(tmp_path, STOCK)
    tree = trees.read_tree(tmp_path)
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(trees.apply, tree) for _ in range(8)]:
            done.result()
    assert content(tmp_path) == PATCHED


def test_a_tree_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    write(tmp_path, STOCK)
    tree = trees.read_tree(tmp_path)
    write(tmp_path, {"srt/models/kimi_k25.py": "mine\n"})
    with pytest.raises(PatchRefused) as refused:
        trees.apply(tree)
    assert refused.value.findings[0].code == "KE702"


def test_a_file_that_cannot_be_read_is_a_diagnostic(tmp_path: Path) -> None:
    write(tmp_path, {"srt/models/deepseek_v2.py": "three\n"})
    path = tmp_path / "srt/models/kimi_k25.py"
    for spoil in (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
        spoil()
        with pytest.raises(PatchRefused, match="cannot be read: not an ordinary file") as refused:
            trees.read_tree(tmp_path)
        assert refused.value.findings[0].code == "KE701"
        path.rmdir() if path.is_dir() else path.unlink()
    path.write_bytes(b"#" * (MAX_SOURCE + 1))
    with pytest.raises(PatchRefused, match="cannot be read: larger than") as refused:
        trees.read_tree(tmp_path)


def test_a_folder_without_sglang_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PatchRefused) as refused:
        trees.read_tree(tmp_path)
    assert refused.value.findings[0].code == "KE701"


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_failure_half_way_leaves_the_tree_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undo: bool, fails_at: int
) -> None:
    write(tmp_path, PATCHED if undo else STOCK)
    before = content(tmp_path)
    tree = trees.read_tree(tmp_path)
    calls = 0

    def failing(original: object) -> object:
        def step(self: Path, *arguments: object, **keywords: object) -> object:
            nonlocal calls
            # Temporary files may be removed, and what was replaced may be put back.
            if calls < fails_at and not (original is unlink and self.name.startswith(".")):
                calls += 1
                if calls == fails_at:
                    raise OSError(28, "No space left on device", str(self))
            return original(self, *arguments, **keywords)  # type: ignore[operator]

        return step

    replace, unlink = Path.replace, Path.unlink
    monkeypatch.setattr(Path, "replace", failing(replace))
    monkeypatch.setattr(Path, "unlink", failing(unlink))
    with pytest.raises(PatchRefused, match="No space left") as refused:
        (trees.undo if undo else trees.apply)(tree)
    assert refused.value.findings[0].code == "KE708"
    assert content(tmp_path) == before


def test_a_failure_that_lasts_is_told_as_it_is_and_can_be_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, STOCK)
    replace = Path.replace
    count = itertools.count(1)

    def failing(self: Path, target: Path) -> Path:
        if next(count) > 1:
            raise OSError(30, "Read-only file system", str(target))
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", failing)
        with pytest.raises(PatchRefused) as refused:
            trees.apply(trees.read_tree(tmp_path))
    assert refused.value.findings[0].leads_to == "The tree is patched in part."
    trees.undo(trees.read_tree(tmp_path))
    assert content(tmp_path) == STOCK


def test_a_copy_is_patched_and_the_original_is_not(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "sglang"
    write(package, {**STOCK, "srt/models/__pycache__/kimi_k25.pyc": ""})
    tree = trees.patched_copy(package, tmp_path / "copy" / "sglang")
    assert tree.applied
    assert tree.version == "0.5.9"
    assert content(tmp_path / "copy" / "sglang") == PATCHED
    assert not trees.read_tree(package).applied
