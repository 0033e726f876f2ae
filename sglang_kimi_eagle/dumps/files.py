"""The files of a dump: ordinary ones, inside its folder, unpacked within bounds."""

from __future__ import annotations

import gzip
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.dumps.findings import (
    DAMAGED,
    LEAVES_FOLDER,
    TOO_LARGE,
    UNREADABLE,
    DumpRefused,
)

MAX_ENTRIES = 200_000
"""Files of a dump's folder; trainers dump up to some hundred thousand samples."""
MAX_DEPTH = 4
MAX_UNPACKED = 8 << 30
"""Bytes that the ``.gz`` files of one dump may unpack to in all, in the temporary folder."""
MAX_RATIO = 100
"""Of an unpacked file to a packed one. Floats pack to about two thirds, padding to more; zlib's
most is about 1000."""
GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20
_RATIO_FROM = 64 << 20


@dataclass
class Budget:
    """What may still be unpacked."""

    left: int = MAX_UNPACKED


@dataclass(frozen=True)
class OpenFile:
    """A file that was looked at and is held open: what was checked is what is read."""

    shown: str
    """Its path, for people."""
    file: BinaryIO

    @property
    def path(self) -> str:
        """A path that opens this very file, even if its name is taken by another meanwhile."""
        return f"/proc/self/fd/{self.file.fileno()}"

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return os.fstat(self.file.fileno()).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes at ``offset``; fewer where the file ends.

        Raises:
            DumpRefused: the operating system fails to read it.
        """
        try:
            self.file.seek(offset)
            return self.file.read(length)
        except OSError as error:
            raise DumpRefused(_unreadable(Path(self.shown), _reason(error))) from None


def list_files(location: Path) -> list[Path]:
    """Return the file at ``location``, or the files below that folder, by name.

    Raises:
        DumpRefused: there is nothing, or too much.
    """
    try:
        if not location.is_dir():
            location.lstat()
            return [location]
        files = sorted(_walk(location, MAX_DEPTH), key=_natural)
    except (OSError, ValueError, RuntimeError) as error:
        raise DumpRefused(_unreadable(location, _reason(error))) from None
    if not files:
        raise DumpRefused(_unreadable(location, "a folder without files"))
    return files


def open_file(path: Path, root: Path | None) -> OpenFile:
    """Open an ordinary file; below ``root``, or in the HF cache that ``root`` is a snapshot of.

    Raises:
        DumpRefused: it is something else, or leads out of ``root``.
    """
    try:
        resolved = path.resolve(strict=True)
        if root is not None and not any(resolved.is_relative_to(r) for r in _roots(root)):
            raise DumpRefused(
                LEAVES_FOLDER.found(
                    "A file of the dump is a link that leads out of its folder.",
                    where=str(path),
                    seen=f"link to {resolved}",
                    leads_to="The file is not read.",
                    mend="Name that file itself, or copy it into the folder.",
                )
            )
        # Not blocking: opening a FIFO would otherwise wait for its writer for ever.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(resolved, flags)
    except (OSError, ValueError, RuntimeError) as error:
        raise DumpRefused(_unreadable(path, _reason(error))) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DumpRefused(_unreadable(path, "not an ordinary file"))
    return OpenFile(str(path), os.fdopen(descriptor, "rb", buffering=0))


def unpack(packed: OpenFile, budget: Budget) -> OpenFile:
    """Unpack a gzip file to an unnamed temporary file.

    Raises:
        DumpRefused: it is damaged, or unpacks to too much.
    """
    size, written = packed.size, 0
    output = tempfile.TemporaryFile()  # noqa: SIM115
    packed.file.seek(0)
    try:
        with gzip.GzipFile(fileobj=packed.file) as source:
            while chunk := source.read(_CHUNK):
                written += len(chunk)
                if written > budget.left or (written > max(_RATIO_FROM, MAX_RATIO * size)):
                    raise DumpRefused(
                        too_large(
                            packed.shown,
                            f"more than {written} bytes from {size}",
                            f"At most {MAX_UNPACKED} bytes, and {MAX_RATIO} times the packed "
                            "size, are unpacked.",
                        )
                    )
                output.write(chunk)
        output.flush()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DumpRefused(
            DAMAGED.found(
                "A gzip file of the dump was cut or damaged.",
                where=packed.shown,
                seen=f"gzip: {error}",
                leads_to="The file is not read.",
                mend="Copy or dump it again.",
            )
        ) from None
    except OSError as error:
        raise DumpRefused(_unreadable(Path(packed.shown), f"gzip: {_reason(error)}")) from None
    budget.left -= written
    return OpenFile(packed.shown, output)


def too_large(where: str, seen: str, bound: str) -> Diagnostic:
    """Build the finding of something over its bound."""
    return TOO_LARGE.found(
        "A file of the dump describes or unpacks to more than any dump holds.",
        where=where,
        seen=seen,
        leads_to=f"The file is not read. {bound}",
        mend="See where the file comes from; unpack or split it yourself if it is sound.",
    )


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    count = 0
    stack = [(folder, depth)]
    while stack:
        current, left = stack.pop()
        with os.scandir(current) as entries:
            for entry in entries:
                count += 1
                if count > MAX_ENTRIES:
                    raise ValueError(f"more than {MAX_ENTRIES} entries; name a part of it")
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if left > 0:
                        stack.append((Path(entry.path), left - 1))
                else:
                    yield Path(entry.path)


def _natural(path: Path) -> tuple[object, ...]:
    """Sort data_2 before data_10."""
    parts = re.split(r"(\d{1,18})", str(path))
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts))


def _roots(root: Path) -> tuple[Path, ...]:
    resolved = root.resolve()
    if resolved.parent.name == "snapshots":
        return (resolved, resolved.parent.parent / "blobs")
    return (resolved,)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _unreadable(path: Path, seen: str) -> Diagnostic:
    return UNREADABLE.found(
        "The dump cannot be read.",
        where=str(path),
        seen=seen,
        mend="Name a file of the dump, or the folder of its samples.",
    )
