"""SGLang source trees: finding the package, telling its state, patching it and taking it back."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sglang_kimi_eagle.patching.diffs import FilePatch, Patch, blob_id
from sglang_kimi_eagle.patching.findings import (
    MIXED_TREE,
    NO_TREE,
    NOT_WRITTEN,
    UNKNOWN_TREE,
    PatchRefused,
)
from sglang_kimi_eagle.patching.shipped import patch_of
from sglang_kimi_eagle.releases import RELEASES

_LAYOUTS = ("python/sglang", "sglang", ".")
"""Where the package is in a checkout, in a ``site-packages``, and when it is named itself."""


@dataclass(frozen=True)
class Tree:
    """An SGLang whose patchable files are those of a release, or of the patched release."""

    package: Path
    version: str
    """The release; the oldest of them where several have the same files."""
    applied: bool

    @property
    def patch(self) -> Patch:
        """The patch of the release."""
        return patch_of(self.version)


def locate(folder: Path) -> Path:
    """Return the package folder of the SGLang in ``folder``.

    Raises:
        PatchRefused: there is none.
    """
    for layout in _LAYOUTS:
        package = folder / layout
        if (package / "srt" / "models").is_dir():
            return package
    raise PatchRefused(
        NO_TREE.found(
            "There are no SGLang sources here.",
            where=str(folder),
            seen="no python/sglang/srt, sglang/srt or srt in it",
            leads_to="Nothing is changed.",
            mend="Name a checkout of SGLang, or the site-packages that it is installed in.",
        )
    )


def read_tree(folder: Path, version: str | None = None) -> Tree:
    """Tell which release the SGLang in ``folder`` is, and whether the patch is applied.

    Args:
        folder: a checkout, a ``site-packages`` or the package itself.
        version: the release that it has to be; any known one when it is not given.

    Raises:
        PatchRefused: it is neither a release nor a patched release.
    """
    package = locate(folder)
    ids: dict[str, str] = {}

    def current(file: FilePatch) -> str:
        if file.path not in ids:
            ids[file.path] = blob_id(_read(package / file.path))
        return ids[file.path]

    for candidate in [version] if version else RELEASES:
        files = patch_of(candidate).files
        if all(current(file) == file.before for file in files):
            return Tree(package, candidate, applied=False)
        if all(current(file) == file.after for file in files):
            return Tree(package, candidate, applied=True)
    raise _unknown(package, version, current)


def _unknown(
    package: Path, version: str | None, current: Callable[[FilePatch], str]
) -> PatchRefused:
    for candidate in [version] if version else RELEASES:
        files = patch_of(candidate).files
        patched = [file.path for file in files if current(file) == file.after]
        stock = [file.path for file in files if current(file) == file.before]
        if patched and stock and len(patched) + len(stock) == len(files):
            return PatchRefused(
                MIXED_TREE.found(
                    f"SGLang {candidate} is patched in part.",
                    where=str(package),
                    seen=f"patched: {', '.join(patched)}; as released: {', '.join(stock)}",
                    leads_to="Nothing is changed.",
                    mend="Restore the release's files (git checkout, or reinstall), then apply.",
                )
            )
    wanted = f"SGLang {version}" if version else "any release"
    return PatchRefused(
        UNKNOWN_TREE.found(
            f"These sources are not those of {wanted}.",
            where=str(package),
            seen=_differing(version, current) if version else "no patch was made for these files",
            leads_to="Nothing is changed: a patch is applied to the letter or not at all.",
            mend="sglang-kimi-eagle patch --from DIR -o FILE generates a patch for these sources; "
            "read it, then apply it with git apply.",
        )
    )


def _differing(version: str, current: Callable[[FilePatch], str]) -> str:
    files = patch_of(version).files
    paths = [file.path for file in files if current(file) not in (file.before, file.after)]
    return f"differs from the release and the patched release: {', '.join(paths)}"


def apply(tree: Tree) -> None:
    """Patch a tree; one that is patched already is left alone.

    Raises:
        PatchRefused: it could not be written, and is as before.
    """
    if not tree.applied:
        _change(tree, reverse=False)


def undo(tree: Tree) -> None:
    """Take a patch back; a tree without it is left alone.

    Raises:
        PatchRefused: it could not be written, and is as before.
    """
    if tree.applied:
        _change(tree, reverse=True)


def patched_copy(package: Path, copy: Path) -> Tree:
    """Copy the package folder ``package`` to ``copy`` and patch the copy.

    With the parent of ``copy`` first on ``PYTHONPATH``, an interpreter that has SGLang installed
    imports the patched one.

    Raises:
        PatchRefused: it is not a release.
    """
    read_tree(package)
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    tree = read_tree(copy)
    apply(tree)
    return read_tree(copy, tree.version)


def _change(tree: Tree, *, reverse: bool) -> None:
    contents = {
        tree.package / file.path: file.apply(_read(tree.package / file.path), reverse=reverse)
        for file in tree.patch.files
    }
    try:
        _write_all(contents)
    except OSError as error:
        raise PatchRefused(
            NOT_WRITTEN.found(
                f"{error.strerror}: {error.filename}",
                where=str(tree.package),
                leads_to="The tree is as it was before.",
                mend="Make the folder writable, or patch a copy.",
            )
        ) from error


def _write_all(contents: Mapping[Path, bytes | None]) -> None:
    """Give all files their new content, or none; None removes a file."""
    originals = {path: _read(path) for path in contents}
    staged: dict[Path, Path] = {}
    replaced: list[Path] = []
    try:
        for path, content in contents.items():
            if content is not None:
                staged[path] = _stage(path, content)
        for path in contents:
            if path in staged:
                staged[path].replace(path)
                del staged[path]
            else:
                path.unlink()
            replaced.append(path)
    except BaseException:
        for path in replaced:
            original = originals[path]
            if original is None:
                path.unlink(missing_ok=True)
            else:
                _stage(path, original).replace(path)
        raise
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def _stage(path: Path, content: bytes) -> Path:
    """Write ``content`` beside ``path``, with the same permissions."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        if path.exists():
            shutil.copymode(path, temporary)
        else:
            temporary.chmod(0o644)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _read(path: Path) -> bytes | None:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    return None
