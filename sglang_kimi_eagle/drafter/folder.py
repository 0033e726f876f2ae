"""The folder of a checkpoint: its ordinary files, and no way out of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.drafter.problems import (
    LEAVES_FOLDER,
    LFS_POINTER,
    TOO_LARGE,
    UNREADABLE,
    UnreadableDrafter,
)

LFS_MAGIC = b"version https://git-lfs.github.com/spec/"
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Folder:
    """A checkpoint folder: ``path`` is resolved, ``location`` is what the user wrote."""

    location: str
    path: Path

    def names(self) -> list[str]:
        """Return the names of what is in the folder, sorted."""
        return self._guarded(".", lambda: sorted(entry.name for entry in self.path.iterdir()))

    def show(self, name: str) -> str:
        """Format the path of a file of the folder for people."""
        return str(self.path / name)

    def has(self, name: str) -> bool:
        """Tell whether the folder has an entry of that name, dangling links included."""
        return os.path.lexists(self.path / name)

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        with self.open(name) as file:
            return os.fstat(file.fileno()).st_size

    def read(self, name: str, limit: int) -> bytes:
        """Read a whole file of at most ``limit`` bytes."""
        with self.open(name) as file:
            data = self._guarded(name, lambda: file.read(limit + 1))
        if len(data) > limit:
            raise UnreadableDrafter([too_large(self.show(name), self.size(name), limit)])
        if data.startswith(LFS_MAGIC):
            raise UnreadableDrafter([lfs_pointer(self.show(name))])
        return data

    def read_at(self, name: str, offset: int, length: int) -> bytes:
        """Read ``length`` bytes at ``offset``; fewer when the file ends before."""
        with self.open(name) as file:
            file.seek(offset)
            return self._guarded(name, lambda: file.read(length))

    def open(self, name: str) -> BinaryIO:
        """Open an ordinary file of the folder, or of the HF cache that it is a snapshot of."""
        path = self._guarded(name, lambda: (self.path / name).resolve(strict=True))
        if not any(path.is_relative_to(root) for root in self._roots()):
            raise UnreadableDrafter(
                [
                    LEAVES_FOLDER.found(
                        "A file of the checkpoint is a link that leads out of its folder.",
                        where=self.show(name),
                        seen=f"link to {path}",
                        leads_to="The file is not read.",
                        mend="Copy the file into the folder in place of the link.",
                    )
                ]
            )
        # Not blocking: opening a FIFO would otherwise wait for its writer for ever.
        descriptor = self._guarded(name, lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise UnreadableDrafter([_unreadable(self.show(name), "not an ordinary file")])
        return os.fdopen(descriptor, "rb", buffering=0)

    def _roots(self) -> tuple[Path, ...]:
        if self.path.parent.name == "snapshots":
            return (self.path, self.path.parent.parent / "blobs")
        return (self.path,)

    def _guarded(self, name: str, action: Callable[[], _Read]) -> _Read:
        try:
            return action()
        except (OSError, ValueError, RuntimeError) as problem:
            # ValueError: a NUL in the name. RuntimeError: a loop of links (before Python 3.13).
            reason = getattr(problem, "strerror", None) or str(problem)
            raise UnreadableDrafter([_unreadable(self.show(name), reason)]) from problem


def too_large(path: str, size: int, limit: int) -> Diagnostic:
    """Build the finding of a file over its bound."""
    return TOO_LARGE.found(
        "A file that describes the checkpoint is too large to be one.",
        where=path,
        seen=f"{size} bytes; at most {limit} are read",
        leads_to="The file is not read, so the checkpoint cannot be checked.",
        mend="Fetch the file again, and see that the location is that of a drafter.",
    )


def lfs_pointer(path: str) -> Diagnostic:
    """Build the finding of a Git LFS pointer in place of a file."""
    return LFS_POINTER.found(
        "The file is a Git LFS pointer, not the file itself.",
        where=path,
        seen="text beginning with 'version https://git-lfs.github.com/spec/'",
        leads_to="SGLang fails to parse it after the target is loaded.",
        mend="Run `git lfs pull` in the repository, or fetch it with `hf download`.",
    )


def _unreadable(path: str, reason: str) -> Diagnostic:
    return UNREADABLE.found(
        "A file of the checkpoint cannot be read.",
        where=path,
        seen=reason,
        leads_to="SGLang fails on it after the target is loaded.",
        mend="Fetch the file again, and give the server's user the right to read it.",
    )
