"""A dump's own tokens, sent to a server that traces."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dump_files import CAPTURED, dumped, speculators, story, texts, write_trace
from sglang_kimi_eagle.dumps import server
from sglang_kimi_eagle.dumps.findings import DumpRefused
from sglang_kimi_eagle.dumps.identify import identify
from sglang_kimi_eagle.dumps.report import states_of_dump
from sglang_kimi_eagle.dumps.server import send, wait_for_trace

pytestmark = [pytest.mark.measure, pytest.mark.usefixtures("torch_layer")]


@dataclass
class Traced:
    """A server that writes the twin's states of what it is asked, or does not."""

    folder: Path
    status: int = 200
    answer: bytes = b'{"meta_info": {}}'
    traces: bool = True
    prompts: list[tuple[int, ...]] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[str]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert body["sampling_params"]["max_new_tokens"] == 1
                owner.prompts.append(tuple(body["input_ids"]))
                if owner.traces:
                    write_trace(owner.folder, owner.prompts)
                self.send_response(owner.status)
                self.send_header("Location", "http://127.0.0.1:9/")
                self.end_headers()
                self.wfile.write(owner.answer)

            def log_message(self, *_: object) -> None:
                pass

        httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{httpd.server_address[1]}"
        finally:
            httpd.shutdown()
            httpd.server_close()
            thread.join()


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    (tmp_path / "dump").mkdir()
    for number, tokens in enumerate(texts()):
        speculators(tmp_path / "dump" / f"hs_{number}.safetensors", dumped(tokens))
    return tmp_path / "dump"


def refusal(url: str, dump: Path) -> str:
    with pytest.raises(DumpRefused) as problem:
        send(url, dump)
    finding = problem.value.findings[0]
    return f"{finding.code} {finding.message} {finding.where} {finding.seen}"


def test_the_dumps_own_tokens_are_traced_and_compared(dump: Path, tmp_path: Path) -> None:
    with Traced(tmp_path / "trace").running() as url:
        prompts = send(url, dump)
        trace = wait_for_trace(url, prompts, tmp_path / "trace", 0)
    assert prompts == list(texts())
    found = identify(dump, trace)
    assert states_of_dump(found) == CAPTURED and found.used == len(texts())


def test_few_and_short_prompts_are_sent(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_PROMPTS", 2)
    monkeypatch.setattr(server, "MOST_TOKENS", 20)
    traced = Traced(tmp_path / "trace")
    with traced.running() as url:
        send(url, dump)
    assert traced.prompts == [tokens[:20] for tokens in texts()[:2]]


def test_a_server_that_traces_nothing_is_reported(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TRACE_SECONDS", 0.0)
    with Traced(tmp_path / "trace", traces=False).running() as url:
        prompts = send(url, dump)
        with pytest.raises(DumpRefused) as problem:
            wait_for_trace(url, prompts, tmp_path / "trace", 0)
    assert problem.value.findings[0].code == "KE828"


def test_a_trace_of_a_part_is_used(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TRACE_SECONDS", 0.0)
    write_trace(tmp_path / "trace", [texts()[0][:40]])
    trace = wait_for_trace("http://localhost", list(texts()), tmp_path / "trace", 0)
    assert states_of_dump(identify(dump, trace)) == CAPTURED


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (400, b"ids beyond the vocabulary", "refuses"),
        (302, b"", "refuses"),
        (200, b"<html>", "does not answer"),
        (200, b"[]", "does not answer"),
        (200, b"{}", "does not answer"),
    ],
)
def test_other_answers_are_reported(
    status: int, answer: bytes, said: str, dump: Path, tmp_path: Path
) -> None:
    with Traced(tmp_path / "trace", status, answer, traces=False).running() as url:
        found = refusal(url, dump)
    assert found.startswith("KE828") and said in found


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:9", "localhost:30000", "file:///etc/passwd", "http://[", "http://"),
        *("http://host/?key=secret", "http://user:secret@host", "http://user:secret/@host"),
    ],
)
def test_no_server_is_reported(url: str, dump: Path) -> None:
    said = refusal(url, dump)
    assert said.startswith("KE828") and "secret" not in said


def test_a_dump_without_tokens_cannot_be_sent(tmp_path: Path) -> None:
    story(tmp_path / "dump", dumped(texts()[0]))
    assert refusal("http://127.0.0.1:9", tmp_path / "dump").startswith("KE816")
