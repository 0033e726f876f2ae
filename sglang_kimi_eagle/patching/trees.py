"""SGLang source trees: finding the package, telling its state, patching it and taking it back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sglang_kimi_eagle.ordinary_files import read_ordinary
from sglang_kimi_eagle.patching.diffs import FilePatch, Patch, blob_id
from sglang_kimi_eagle.patching.findings import (
    NO_TREE,
    NOT_WRITTEN,
    UNKNOWN_TREE,
    PatchRefused,
)
from sglang_kimi_eagle.patching.shipped import patch_of
from sglang_kimi_eagle.releases import RELEASES

_LAYOUTS = ("python/sglang", "sglang", ".")
"""Where the package is in a checkout, in a ``site-packages``, and when it is named itself."""
_STAGED = ".sglang-kimi-eagle"
"""How the name of a file ends that is not in its place yet; Python imports no such file."""


@dataclass(frozen=True)
class Tree:
    """An SGLang each of whose patchable files is that of a release, or of the patched release."""

    package: Path
    version: str
    """The release; the oldest of them where several have the same files."""
    patched: tuple[str, ...]
    """The files that are patched."""

    @property
    def patch(self) -> Patch:
        """The patch of the release."""
        return patch_of(self.version)

    @property
    def applied(self) -> bool:
        """Whether all files are patched."""
        return len(self.patched) == len(self.patch.files)

    @property
    def mixed(self) -> bool:
        """Whether some files are patched and others are not."""
        return bool(self.patched) and not self.applied


def locate(folder: Path) -> Path:
    """Return the package folder of the SGLang in ``folder``.

    Raises:
        PatchRefused: there is none.
    """
    for layout in _LAYOUTS:
        package = folder / layout
        # Python before 3.14 raises for a folder that may not be entered.
        with contextlib.suppress(OSError):
            if (package / "srt" / "models").is_dir():
                return package
    raise PatchRefused(
        NO_TREE.found(
            "There are no SGLang sources here.",
            where=str(folder),
            seen="no python/sglang/srt, sglang/srt or srt in it",
            leads_to="There is nothing to look at, and nothing to patch.",
            mend="Name a checkout of SGLang, or the site-packages that it is installed in.",
        )
    )


def read_tree(folder: Path, version: str | None = None) -> Tree:
    """Tell which release the SGLang in ``folder`` is, and which of its files are patched.

    Args:
        folder: a checkout, a ``site-packages`` or the package itself.
        version: the release that it has to be; any known one when it is not given.

    Raises:
        PatchRefused: a file is neither that of a release nor that of the patched release.
    """
    package = locate(folder)
    ids: dict[str, str] = {}

    def current(file: FilePatch) -> str:
        if file.path not in ids:
            ids[file.path] = blob_id(read_file(package / file.path))
        return ids[file.path]

    trees = []
    for candidate in [version] if version else RELEASES:
        files = patch_of(candidate).files
        if all(current(file) in (file.before, file.after) for file in files):
            patched = tuple(file.path for file in files if current(file) == file.after)
            trees.append(Tree(package, candidate, patched))
    if trees:
        # A release that the tree is entirely explains it better than one that it is in part.
        return min(trees, key=lambda tree: tree.mixed)
    wanted = f"SGLang {version}" if version else "any release"
    raise PatchRefused(
        UNKNOWN_TREE.found(
            f"These sources are not those of {wanted}.",
            where=str(package),
            seen=_differing([version] if version else RELEASES, current),
            leads_to="Nothing is changed: a patch is applied to the letter or not at all.",
            mend="sglang-kimi-eagle patch --from DIR -o FILE generates a patch for these sources; "
            "read it, then apply it with git apply.",
        )
    )


def _differing(versions: Iterable[str], current: Callable[[FilePatch], str]) -> str:
    """Name the files that differ from the release that the tree is nearest to."""
    differing = {
        version: [
            file.path
            for file in patch_of(version).files
            if current(file) not in (file.before, file.after)
        ]
        for version in versions
    }
    nearest = min(differing, key=lambda version: len(differing[version]))
    return f"differs from SGLang {nearest}, patched or not: {', '.join(differing[nearest])}"


def apply(tree: Tree) -> None:
    """Patch a tree, or the rest of one that is patched in part.

    Raises:
        PatchRefused: it could not be written, and is as before.
    """
    _change(tree, reverse=False)


def undo(tree: Tree) -> None:
    """Take a patch back, or the part of it that is there.

    Raises:
        PatchRefused: it could not be written, and is as before.
    """
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
    try:
        with _alone(tree.package):
            # Somebody else may have changed it before.
            tree = read_tree(tree.package, tree.version)
            _remove_staged(tree)
            contents = {
                tree.package / file.path: file.apply(
                    read_file(tree.package / file.path), reverse=reverse
                )
                for file in tree.patch.files
                if (file.path in tree.patched) is reverse
            }
            _write_all(contents)
    except OSError as error:
        raise PatchRefused(
            NOT_WRITTEN.found(
                f"{error.strerror}: {error.filename}",
                where=str(tree.package),
                leads_to="The tree is as it was before."
                if read_tree(tree.package, tree.version).patched == tree.patched
                else "The tree is patched in part.",
                mend="Make the folder writable and run this again, or patch a copy.",
            )
        ) from error


@contextlib.contextmanager
def _alone(package: Path) -> Iterator[None]:
    """Wait until nobody else patches the same tree."""
    folder = os.open(package, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _remove_staged(tree: Tree) -> None:
    """Remove the files that a killed process had written and not yet put in place."""
    for file in tree.patch.files:
        path = tree.package / file.path
        for staged in path.parent.glob(f".{path.name}.*{_STAGED}"):
            staged.unlink()


def _write_all(contents: Mapping[Path, bytes | None]) -> None:
    """Give all files their new content, or none; None removes a file."""
    originals = {path: read_file(path) for path in contents}
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
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_STAGED)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            # The name must not become the new file's before its content is there.
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        else:
            temporary.chmod(0o644)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def read_file(path: Path) -> bytes | None:
    """Return what is in a file of the tree; None when there is none.

    Raises:
        PatchRefused: it cannot be read, or is no ordinary file of a source's size.
    """
    try:
        return read_ordinary(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PatchRefused(
            NO_TREE.found(
                f"A file cannot be read: {error.strerror}.",
                where=str(path),
                leads_to="Nothing is changed.",
                mend="Unpack or check out this SGLang anew, and run it as a user that may read it.",
            )
        ) from error
