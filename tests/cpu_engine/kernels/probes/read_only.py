"""Makes the folder CPU_ENGINE_READ_ONLY read-only, for root as well: writing there is an error."""

import errno
import os
import sys
from typing import Any

_WRITING = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod")


def register() -> None:
    folder = os.environ["CPU_ENGINE_READ_ONLY"]

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            writing = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or (
                isinstance(mode, str) and any(letter in mode for letter in "wax+")
            )
        else:
            path, writing = args[0] if args else "", event in _WRITING
        if writing and isinstance(path, str) and path.startswith(folder):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    sys.addaudithook(audit)
