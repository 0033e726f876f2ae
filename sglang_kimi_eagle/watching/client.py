"""HTTP reads with a bound on their size and on their time, and nothing else.

No redirection is followed, no proxy is used, no cookie is kept.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.watching.address import Address
from sglang_kimi_eagle.watching.findings import (
    KEY_REFUSED,
    REDIRECTED,
    UNBOUNDED,
    UNREACHABLE,
    WatchFailed,
)

if TYPE_CHECKING:
    import http.client

SECONDS = 10.0
"""For one reply, from the connection to its last byte."""
MAX_BODY = 16 << 20
"""Bytes of one reply; `/server_info` of one data-parallel rank has 40 kB, `/metrics` 100 kB."""
_CHUNK = 64 << 10


@dataclass(frozen=True)
class Reply:
    """One answer of the server."""

    status: int
    body: bytes


@dataclass(frozen=True)
class Client:
    """Reads pages of one server."""

    address: Address
    api_key: str | None = field(default=None, repr=False)
    """Sent as a bearer token."""
    seconds: float = SECONDS

    def get(self, path: str) -> Reply:
        """Read ``path``, whatever its status is but for redirections and refused keys.

        Raises:
            WatchFailed: KE861, KE863, KE864 or KE865.
        """
        from http.client import HTTPException

        begun = time.monotonic()
        try:
            raw = socket.create_connection((self.address.host, self.address.port), self.seconds)
        except (OSError, UnicodeError) as problem:
            raise WatchFailed(self._unreachable(path, str(problem))) from None
        # Closing a socket under a reader is not safe; shutting down a duplicate of it is.
        with raw, socket.socket(fileno=os.dup(raw.fileno())) as guard:
            late = threading.Event()
            left = max(self.seconds - (time.monotonic() - begun), 0.1)
            alarm = threading.Timer(left, _shut_down, [guard, late])
            alarm.daemon = True
            alarm.start()
            try:
                reply = self._exchange(raw, path)
            except (OSError, HTTPException, ValueError) as problem:
                if late.is_set() or isinstance(problem, TimeoutError):
                    raise WatchFailed(self._slow(path)) from None
                text = str(problem) or type(problem).__name__
                raise WatchFailed(self._unreachable(path, text)) from None
            finally:
                alarm.cancel()
                # It must be done with the guard before that is closed.
                alarm.join()
        if late.is_set():
            # A body without a length ends where the connection was shut down.
            raise WatchFailed(self._slow(path))
        return reply

    def _exchange(self, raw: socket.socket, path: str) -> Reply:
        import http.client
        import ssl

        address = self.address
        connection: http.client.HTTPConnection
        connection = http.client.HTTPConnection(address.host, address.port)
        connection.sock = raw
        if address.secure:
            context = ssl.create_default_context()
            connection.sock = context.wrap_socket(raw, server_hostname=address.host)
        try:
            connection.request("GET", f"{address.prefix}{path}", headers=self._headers())
            response = connection.getresponse()
            if 300 <= response.status < 400:
                raise WatchFailed(self._redirected(path, response))
            if response.status in (401, 403):
                raise WatchFailed(self._key_refused(path, response.status))
            chunks: list[bytes] = []
            size = 0
            while chunk := response.read(_CHUNK):
                size += len(chunk)
                if size > MAX_BODY:
                    raise WatchFailed(self._large(path))
                chunks.append(chunk)
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            return Reply(response.status, b"".join(chunks))
        finally:
            connection.close()

    def _headers(self) -> Mapping[str, str]:
        headers = {"Accept": "application/json, text/plain", "Connection": "close"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return headers

    def _unreachable(self, path: str, why: str) -> Diagnostic:
        return UNREACHABLE.found(
            "The server does not answer.",
            where=f"{self.address}{path}",
            seen=why[:300],
            leads_to="Nothing is known about it.",
            mend="Check host and port, and that the server has started. A certificate of an own "
            "authority is named by SSL_CERT_FILE.",
        )

    def _slow(self, path: str) -> Diagnostic:
        return UNBOUNDED.found(
            f"The reply was not complete after {self.seconds:g} seconds.",
            where=f"{self.address}{path}",
            leads_to="It was given up.",
            mend="Check that this is an SGLang server, and that it is not stuck.",
        )

    def _large(self, path: str) -> Diagnostic:
        return UNBOUNDED.found(
            f"The reply is larger than {MAX_BODY >> 20} MiB.",
            where=f"{self.address}{path}",
            leads_to="It was given up.",
            mend="Check that this is an SGLang server.",
        )

    def _redirected(self, path: str, response: http.client.HTTPResponse) -> Diagnostic:
        return REDIRECTED.found(
            "The server sends its clients elsewhere.",
            where=f"{self.address}{path}",
            seen=f"status {response.status}, Location {(response.getheader('Location') or '')!r}"[
                :300
            ],
            leads_to="Redirections are not followed.",
            mend="Watch the server itself, by the address it listens on.",
        )

    def _key_refused(self, path: str, status: int) -> Diagnostic:
        sent = "with the given key" if self.api_key is not None else "without a key"
        return KEY_REFUSED.found(
            "The server refuses to tell.",
            where=f"{self.address}{path}",
            seen=f"status {status}, asked {sent}",
            mend="Put its --api-key into an environment variable and name that variable with "
            "--api-key-env.",
        )


def _shut_down(guard: socket.socket, late: threading.Event) -> None:
    late.set()
    try:
        guard.shutdown(socket.SHUT_RDWR)
    except OSError:
        # The reply ended at the same moment.
        return
