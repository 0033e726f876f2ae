"""The folder of a checkpoint: its ordinary files, and no way out of it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
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
MAX_ENTRIES = 10_000
"""Of a folder that is taken for a checkpoint; the largest models have some hundreds."""
_Read = TypeVar("_Read")
# Also what a hub id looks like; no option, and nothing that a shell or Python reads.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}(?:/[A-Za-z0-9_.-]{1,96})?")


@dataclass(frozen=True)
class Folder:
    """A checkpoint folder: ``path`` is resolved, ``location`` is what the user wrote."""

    location: str
    path: Path

    @property
    def fetch_command(self) -> str:
        """The command that fetches the checkpoint from the hub, for people to copy."""
        from_hub = self.path.parent.name == "snapshots"
        return f"hf download {plain(self.location if from_hub else '', 'REPOSITORY')}"

    def names(self) -> list[str]:
        """Return the names of what is in the folder, sorted."""

        def listed() -> list[str]:
            with os.scandir(self.path) as entries:
                return [entry.name for entry in islice(entries, MAX_ENTRIES + 1)]

        names = self._guarded(".", listed)
        if len(names) > MAX_ENTRIES:
            finding = TOO_LARGE.found(
                "The folder has too many entries to be a checkpoint.",
                where=str(self.path),
                seen=f"more than {MAX_ENTRIES} entries",
                leads_to="The folder is not read, so the checkpoint cannot be checked.",
                mend="Give the folder of the drafter itself.",
            )
            raise UnreadableDrafter([finding])
        return sorted(names)

    def show(self, name: str) -> str:
        """Format the path of a file of the folder for people."""
        return str(self.path / name)

    def has(self, name: str) -> bool:
        """Tell whether the folder has an entry of that name, dangling links included."""

        def present() -> bool:
            try:
                os.lstat(self.path / name)
            except FileNotFoundError:
                return False
            return True

        return self._guarded(name, present)

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

            def read() -> bytes:
                file.seek(offset)
                return file.read(length)

            return self._guarded(name, read)

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


def plain(name: str, otherwise: str = "FILE") -> str:
    """Return a name that can be pasted into a command as it is, else a placeholder for it."""
    return name if _PLAIN.fullmatch(name) else otherwise


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
        mend="See that an ordinary file is there which the server's user may read, or fetch it "
        "again.",
    )
