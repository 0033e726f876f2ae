"""Ends a server whose test run was itself killed, so that none is left behind."""

import os
import signal
import threading
import time


def end_with_parent(parent: int) -> None:
    """In the process started by ``parent``: kill its process group once that is gone."""
    if os.getppid() == parent:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(os.getpgid(0), signal.SIGKILL)
