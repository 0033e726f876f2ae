"""A server that a probe starts, traces and ends."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sglang_kimi_eagle.launch_config import BadLaunchConfig, expand_config
from sglang_kimi_eagle.probing.client import Client
from sglang_kimi_eagle.probing.findings import SERVER_FAILED, ProbeRefused
from sglang_kimi_eagle.server_arguments import BadCommandLine

LOG = "server.log"
DEFAULT_PORT = 30000
"""``ServerArgs.port`` of every release."""
_MOST_SHOWN = 1000
"""Characters."""
_LAST_LINES = 12
_LOG_BYTES = 16 * 1024
_POLL_SECONDS = 0.2
_END_SECONDS = 20.0
_EVERYWHERE = ("", "0.0.0.0", "::", "[::]")


@dataclass(frozen=True)
class Address:
    """Where the server will listen, by its launch arguments."""

    host: str
    port: int
    api_key: str | None
    admin_key: str | None

    def client(self) -> Client:
        """Return a client of it."""
        host = "127.0.0.1" if self.host in _EVERYWHERE else self.host
        if ":" in host and not host.startswith("["):
            host = f"[{host}]"
        return Client(f"http://{host}:{self.port}", self.api_key, self.admin_key)


def address_of(words: Sequence[str]) -> Address:
    """Read the address out of launch arguments.

    Raises:
        BadCommandLine: they cannot be read.
    """

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise BadCommandLine(message)

    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--api-key")
    parser.add_argument("--admin-api-key")
    valued = {"--host", "--port", "--api-key", "--admin-api-key"}
    try:
        expanded = expand_config(words, booleans=(), valued=valued)
    except BadLaunchConfig as problem:
        raise BadCommandLine(str(problem)) from problem
    found, _ = parser.parse_known_args(expanded)
    return Address(found.host, found.port, found.api_key, found.admin_api_key)


class Server:
    """A running ``sglang.launch_server``, in a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, client: Client) -> None:
        self.process, self.log, self.client = process, log, client

    def wait(self, seconds: float, waiting: Callable[[float], None]) -> None:
        """Wait until it is ready; ``waiting`` is told how many seconds have passed.

        Raises:
            ProbeRefused: it ended, or takes longer than ``seconds``.
        """
        begun = time.monotonic()
        while not self.client.healthy():
            passed = time.monotonic() - begun
            status = self.process.poll()
            if status is not None:
                raise self._failed(f"The server ended with status {status} before it was ready.")
            if passed > seconds:
                raise self._failed(f"The server was not ready after {seconds:.0f} seconds.")
            waiting(passed)
            time.sleep(_POLL_SECONDS)

    def check(self, refused: ProbeRefused) -> ProbeRefused:
        """Return what refused a request, or that the server has ended meanwhile."""
        time.sleep(_POLL_SECONDS)
        status = self.process.poll()
        if status is None:
            return refused
        return self._failed(f"The server ended with status {status} while it was asked.")

    def end(self) -> None:
        """End every process of its group: its own way if it takes no longer than it should."""
        self._signal(os.kill, signal.SIGTERM)
        if not self._gone(_END_SECONDS):
            self._signal(os.killpg, signal.SIGKILL)
            self._gone(_END_SECONDS)

    def _signal(self, send: Callable[[int, int], None], number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(self.process.pid, number)

    def _gone(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                # What outlives the server itself holds on to its memory.
                self._signal(os.killpg, signal.SIGKILL)
                if not _group_runs(self.process.pid):
                    return True
            time.sleep(0.05)
        return False

    def _failed(self, message: str) -> ProbeRefused:
        return ProbeRefused(
            SERVER_FAILED.found(
                message,
                where=str(self.log),
                seen=_last_lines(self.log),
                leads_to="Nothing was traced.",
                mend="Read its whole log there; try the launch arguments without the probe.",
            )
        )


@contextmanager
def running(
    words: Sequence[str], python: str, environ: Mapping[str, str], folder: Path, *, keep: bool
) -> Iterator[Server]:
    """Start a server; end it when the block is left, unless it succeeds and ``keep`` is true.

    SIGTERM ends the block as Ctrl-C does.

    Args:
        words: arguments of ``sglang.launch_server``.
        python: the interpreter that has SGLang.
        environ: variables beside this process's own.
        folder: for its log.
        keep: leave it running in the end.

    Raises:
        ProbeRefused: the port is taken, or the interpreter cannot be started.
        BadCommandLine: the arguments cannot be read.
    """
    address = address_of(words)
    _refuse_taken(address)
    log = folder / LOG
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(
                    [python, "-m", "sglang.launch_server", *words],
                    env={**os.environ, **environ},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ProbeRefused(
                    SERVER_FAILED.found(
                        "The server could not be started.",
                        where=python,
                        seen=str(error),
                        mend="Name the interpreter that has SGLang: --python PATH.",
                    )
                ) from None
        server = Server(process, log, address.client())
        try:
            yield server
        except BaseException:
            server.end()
            raise
        if not keep:
            server.end()
    finally:
        signal.signal(signal.SIGTERM, previous)


def default_python() -> str:
    """Return the interpreter that runs this."""
    return sys.executable


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _refuse_taken(address: Address) -> None:
    """Another server on the port would answer in place of the one that is started."""
    host = "127.0.0.1" if address.host in _EVERYWHERE else address.host
    try:
        with socket.create_connection((host.strip("[]"), address.port), 2.0):
            pass
    except OSError:
        return
    raise ProbeRefused(
        SERVER_FAILED.found(
            "Something listens on the server's port already.",
            where=f"{host}:{address.port}",
            mend="Stop it, or give the launch another --port.",
        )
    )


def _group_runs(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _last_lines(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return str(error)
    last = [line.strip() for line in text.splitlines()[-_LAST_LINES:]]
    # A finding is cut at its end, and the last line tells most.
    return " | ".join(filter(None, last))[-_MOST_SHOWN:]
