"""Reading from servers that are gone, slow, huge, or not what they should be."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from sglang_kimi_eagle.watching import client as client_module
from sglang_kimi_eagle.watching.address import parse_address
from sglang_kimi_eagle.watching.client import Client
from sglang_kimi_eagle.watching.findings import WatchFailed
from watched_server import WatchedServer, answering


def code_of(client: Client, path: str = "/") -> str:
    with pytest.raises(WatchFailed) as failure:
        client.get(path)
    return failure.value.finding.code


@contextlib.contextmanager
def speaking(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that answers each connection with ``talk`` alone."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(65536)
                    talk(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def drip(start: bytes) -> Callable[[socket.socket], None]:
    def talk(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(b"a")
            time.sleep(0.05)

    return talk


def test_a_page_is_read_with_its_status() -> None:
    with WatchedServer({"/a": [1], "/b": answering(b"no", status=500)}) as server:
        client = Client(parse_address(server.url))
        assert client.get("/a").body == b"[1]"
        assert client.get("/b").status == 500
        assert client.get("/c").status == 404


def test_the_key_is_sent_and_not_shown() -> None:
    with WatchedServer({"/a": 1}) as server:
        client = Client(parse_address(server.url), "secret")
        client.get("/a")
    assert server.requests[0][1]["Authorization"] == "Bearer secret"
    assert "secret" not in repr(client)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_said(status: int) -> None:
    with WatchedServer({"/a": answering(b"", status=status)}) as server:
        assert code_of(Client(parse_address(server.url)), "/a") == "KE865"


def test_a_redirection_is_not_followed() -> None:
    with WatchedServer({}) as other:
        pages = {"/a": answering(b"", status=302, Location=f"{other.url}/a\x1b[2J")}
        with WatchedServer(pages) as server:
            assert code_of(Client(parse_address(server.url), "secret"), "/a") == "KE863"
    assert other.requests == []


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert code_of(Client(parse_address(f"http://127.0.0.1:{port}"))) == "KE861"
    assert code_of(Client(parse_address("http://no-such-host.invalid"))) == "KE861"


def test_a_server_without_tls_is_asked_for_it() -> None:
    with WatchedServer({}) as server:
        url = server.url.replace("http:", "https:")
        assert code_of(Client(parse_address(url), seconds=5)) == "KE861"


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nX-Long: ",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
    ],
)
def test_a_server_that_drips_is_given_up(start: bytes) -> None:
    with speaking(drip(start)) as url:
        assert code_of(Client(parse_address(url), seconds=0.5)) == "KE864"


def test_a_silent_server_is_given_up() -> None:
    with speaking(lambda connection: time.sleep(0.6)) as url:
        assert code_of(Client(parse_address(url), seconds=0.3)) == "KE864"


def test_a_huge_reply_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_BODY", 1 << 20)

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):
            while True:
                handler.wfile.write(b"a" * 65536)

    with WatchedServer({"/a": endless}) as server:
        assert code_of(Client(parse_address(server.url)), "/a") == "KE864"


@pytest.mark.parametrize(
    "start",
    [
        b"\x00\xff" * 100,
        b"HTTP/1.1 two OK\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"",
    ],
)
def test_what_is_no_http_is_unreachable(start: bytes) -> None:
    with speaking(lambda connection: connection.sendall(start)) as url:
        assert code_of(Client(parse_address(url))) == "KE861"
