"""A stand-in for a running SGLang: it serves what real ones said, or what hostile ones would."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

RECORDED = Path(__file__).resolve().parent / "watching" / "recorded"
Answer = Callable[[BaseHTTPRequestHandler], None]
Pages = dict[str, Any]
"""Path -> JSON value, lines of text, None for status 404, or a function that answers."""


def recorded(release: str, kind: str = "metrics", when: str = "after") -> Pages:
    """What an engine on CPU said, shortened.

    The drafter was the shipped Llama-style one with nothing declared: fed h[3], h[5], h[7], as it
    was trained, on 0.5.9 and 0.5.12.post1, and h[2], h[4], h[6] on 0.5.23.  ``kind`` is
    ``metrics`` or ``plain`` (launched without --enable-metrics); ``when`` is ``before`` or
    ``after`` 16 prompts.
    """
    pages: Pages = json.loads((RECORDED / f"{release}-{kind}.json").read_text())[when]
    return pages


class WatchedServer:
    """Serves pages inside a ``with`` block; they may be changed meanwhile."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.requests.append((self.path, dict(self.headers)))
                owner._answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> WatchedServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        page = self.pages.get(handler.path)
        if callable(page):
            page(handler)
        elif page is None:
            reply(handler, b'{"detail":"Not Found"}', status=404)
        elif handler.path == "/metrics":
            reply(handler, "\n".join(page).encode() + b"\n", kind="text/plain; version=0.0.4")
        else:
            reply(handler, json.dumps(page).encode())


def reply(
    handler: BaseHTTPRequestHandler,
    body: bytes,
    *,
    status: int = 200,
    kind: str = "application/json",
    **headers: str,
) -> None:
    """Send one answer."""
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def answering(body: bytes, **options: Any) -> Answer:
    """An answer to be put among pages."""
    return lambda handler: reply(handler, body, **options)
