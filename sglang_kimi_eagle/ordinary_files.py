"""Reading a file that somebody else has named: an ordinary one, of bounded size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_SOURCE = 4 << 20
"""Bytes of one file of SGLang's sources; the largest of 0.5.9 - 0.5.23 has some 300 kB."""


def read_ordinary(path: Path, limit: int = MAX_SOURCE) -> bytes:
    """Return what is in ``path``.

    Raises:
        OSError: it cannot be read, is a folder, a pipe, a socket or a device, or has more than
            ``limit`` bytes.
        ValueError: the name cannot be one of a file.
    """
    # Not blocking: opening a pipe would otherwise wait for its writer for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not an ordinary file", str(path))
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit >> 10} KiB", str(path))
    return content
