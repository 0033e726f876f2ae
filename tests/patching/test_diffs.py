"""Unified diffs: made, read back, and applied to the letter."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sglang_kimi_eagle.patching.diffs import ABSENT, Mismatch, Patch, blob_id, diff, parse

BEFORE = "".join(f"line {number}\n" for number in range(40))
AFTER = BEFORE.replace("line 3\n", "line three\n").replace("line 30\n", "line 30\nnew\n")

texts = st.lists(
    st.sampled_from(["a\n", "b\n", "\n", "\x0c c\n", "+d\n", "-e\n"]), max_size=30
).map("".join)


def test_blob_ids_are_those_of_git(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(AFTER)
    git = subprocess.run(
        ["git", "hash-object", "file"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert blob_id(AFTER.encode()) == git.stdout.strip()


@given(texts, texts)
def test_a_patch_read_back_does_and_undoes_the_change(before: str, after: str) -> None:
    assume(before != after and before and after)
    patch = Patch((diff("srt/file.py", before, after),), "What it is for.\n\n")
    assert parse(patch.render()) == patch
    (file,) = patch.files
    assert file.apply(before.encode()) == after.encode()
    assert file.apply(after.encode(), reverse=True) == before.encode()


def test_a_new_file_is_made_and_removed() -> None:
    file = diff("srt/new.py", None, AFTER)
    assert parse(Patch((file,)).render()).files == (file,)
    assert file.before == ABSENT
    assert file.apply(None) == AFTER.encode()
    assert file.apply(AFTER.encode(), reverse=True) is None


def test_another_file_is_refused_even_where_the_context_fits() -> None:
    file = diff("srt/file.py", BEFORE, AFTER)
    with pytest.raises(Mismatch, match="not the file that the patch is for"):
        file.apply((BEFORE + "one more line\n").encode())


def test_a_patch_that_was_edited_is_refused() -> None:
    text = Patch((diff("srt/file.py", BEFORE, AFTER),)).render()
    (file,) = parse(text.replace("+new", "+other")).files
    with pytest.raises(Mismatch, match="would not become the file that was meant"):
        file.apply(BEFORE.encode())
    (file,) = parse(text.replace(" line 31", " line thirty-one")).files
    with pytest.raises(Mismatch, match="line 29 differs"):
        file.apply(BEFORE.encode())


@pytest.mark.parametrize("text", ["", "--- a\n+++ b\n@@ -1 +1 @@\n-a\n+b\n"])
def test_other_diffs_are_not_read(text: str) -> None:
    with pytest.raises(ValueError, match="no file of SGLang is changed"):
        parse(text)


def test_git_applies_it(tmp_path: Path) -> None:
    folder = tmp_path / "python" / "sglang" / "srt"
    folder.mkdir(parents=True)
    (folder / "file.py").write_text(BEFORE)
    patch = Patch((diff("srt/file.py", BEFORE, AFTER), diff("srt/new.py", None, AFTER)), "About.\n")
    (tmp_path / "patch").write_text(patch.render())
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "--check", "patch"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "patch"], cwd=tmp_path, check=True)
    assert (folder / "file.py").read_text() == (folder / "new.py").read_text() == AFTER


def test_changes_outside_the_package_are_passed_over() -> None:
    inside = diff("srt/file.py", BEFORE, AFTER)
    outside = diff("test/test_file.py", None, AFTER, root="")
    assert parse(Patch((inside, outside)).render()).files == (inside,)
