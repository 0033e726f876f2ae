"""Starting, waiting for, asking and ending a server; it is a stand-in that misbehaves."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sglang_kimi_eagle.probing import recording
from sglang_kimi_eagle.probing.calibration import PROMPTS, Prompt
from sglang_kimi_eagle.probing.findings import ProbeRefused
from sglang_kimi_eagle.probing.recording import Plan, check_room, record
from sglang_kimi_eagle.probing.serving import Server, address_of, running
from sglang_kimi_eagle.server_arguments import BadCommandLine
from sglang_kimi_eagle.target import target_of

# Servers are started and waited for; no engine is.
pytestmark = pytest.mark.measure

STAND_IN = """
import json, os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

behaviour, port = sys.argv[1], int(sys.argv[sys.argv.index("--port") + 1])
print("stand-in:", behaviour, flush=True)
if behaviour == "fails":
    print("KE210 error: refused", flush=True)
    sys.exit(3)
if behaviour == "hangs":
    time.sleep(600)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        self.answer(200, "ok")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        if self.path == "/flush_cache":
            self.answer(200, "flushed")
        elif self.path == "/tokenize":
            self.answer(200, {"tokens": [1, 2, 3]})
        elif behaviour == "dies":
            os._exit(9)
        elif behaviour == "refuses":
            self.answer(400, {"error": {"message": "too long"}})
        elif behaviour == "chats":
            self.answer(200, "hello")
        else:
            one = {"output_ids": [4, 5], "meta_info": {"spec_verify_ct": 1}}
            self.answer(200, [one] * len(body["input_ids"]))

    def answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
PLAN = Plan((Prompt("chat", ({"role": "user", "content": "Hello"},)),), 2)


@pytest.fixture
def package(tmp_path: Path) -> dict[str, str]:
    """The environment in which ``python -m sglang.launch_server`` is the stand-in."""
    folder = tmp_path / "path" / "sglang"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "launch_server.py").write_text(STAND_IN)
    return {"PYTHONPATH": str(folder.parent)}


@pytest.fixture
def port() -> int:
    return random.randrange(20000, 32000)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recording, "_TRACE_SECONDS", 0.3)
    yield


def refusal(folder: Path, environ: dict[str, str], behaviour: str, port: int) -> tuple[str, str]:
    """Run a whole recording; return the code and what was seen."""
    words = [behaviour, "--port", str(port)]
    with (
        pytest.raises(ProbeRefused) as refused,
        running(words, sys.executable, environ, folder, keep=False) as server,
    ):
        server.wait(3.0 if behaviour == "hangs" else 60.0, lambda _passed: None)
        try:
            record(server.client, folder, PLAN)
        except ProbeRefused as problem:
            raise server.check(problem) from None
    (finding,) = refused.value.findings
    return finding.code, f"{finding.message} {finding.seen}"


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        # A zombie that nobody waits for is as good as gone.
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def gone(pid: int) -> bool:
    for _ in range(200):
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


def child_of(log: Path) -> int:
    return int(log.read_text().split("child ")[1].split()[0])


class TestRefusals:
    def test_a_server_that_ends(self, tmp_path: Path, package: dict[str, str], port: int) -> None:
        code, seen = refusal(tmp_path, package, "fails", port)
        assert code == "KE842" and "status 3" in seen and "KE210 error: refused" in seen

    def test_a_server_that_hangs(self, tmp_path: Path, package: dict[str, str], port: int) -> None:
        code, seen = refusal(tmp_path, package, "hangs", port)
        assert code == "KE842" and "not ready" in seen and "stand-in: hangs" in seen

    def test_a_server_that_dies_while_it_is_asked(
        self, tmp_path: Path, package: dict[str, str], port: int
    ) -> None:
        code, seen = refusal(tmp_path, package, "dies", port)
        assert code == "KE842" and "status 9" in seen

    def test_a_server_that_refuses(
        self, tmp_path: Path, package: dict[str, str], port: int
    ) -> None:
        code, seen = refusal(tmp_path, package, "refuses", port)
        assert code == "KE843" and "too long" in seen

    def test_something_that_is_no_sglang(
        self, tmp_path: Path, package: dict[str, str], port: int
    ) -> None:
        assert refusal(tmp_path, package, "chats", port)[0] == "KE843"

    @pytest.mark.usefixtures("short")
    def test_a_server_that_traces_nothing(
        self, tmp_path: Path, package: dict[str, str], port: int
    ) -> None:
        assert refusal(tmp_path, package, "answers", port)[0] == "KE844"

    def test_a_taken_port(self, tmp_path: Path, package: dict[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            code, seen = refusal(tmp_path, package, "answers", taken.getsockname()[1])
        assert code == "KE842" and "port" in seen

    def test_no_such_interpreter(self, tmp_path: Path, port: int) -> None:
        words = ["--port", str(port)]
        with (
            pytest.raises(ProbeRefused) as refused,
            running(words, "no-such-python", {}, tmp_path, keep=False),
        ):
            pass
        assert refused.value.findings[0].code == "KE842"


class TestEnding:
    def started(self, folder: Path, environ: dict[str, str], port: int, *, keep: bool) -> Server:
        words = ["answers", "--port", str(port)]
        with running(words, sys.executable, environ, folder, keep=keep) as server:
            server.wait(60.0, lambda _passed: None)
        return server

    def test_every_process_of_the_group_goes(
        self, tmp_path: Path, package: dict[str, str], port: int
    ) -> None:
        server = self.started(tmp_path, package, port, keep=False)
        assert server.process.poll() is not None and gone(child_of(server.log))

    def test_a_kept_server_stays(self, tmp_path: Path, package: dict[str, str], port: int) -> None:
        server = self.started(tmp_path, package, port, keep=True)
        try:
            assert server.process.poll() is None and server.client.healthy()
        finally:
            server.end()
        assert gone(child_of(server.log))

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupted_probe_ends_it(
        self, tmp_path: Path, package: dict[str, str], port: int, number: int
    ) -> None:
        code = (
            "import signal, sys; from pathlib import Path\n"
            "from sglang_kimi_eagle.probing.serving import running\n"
            # Ignored where the tests run in the background of a shell; children inherit that.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            f"words = ['answers', '--port', '{port}']\n"
            f"with running(words, sys.executable, {package!r}, Path({str(tmp_path)!r}), keep=True)"
            " as server:\n"
            "    server.wait(60.0, lambda passed: None)\n"
            "    print('ready', flush=True)\n"
            "    server.process.wait()\n"
        )
        probe = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        try:
            assert probe.stdout is not None and probe.stdout.readline() == b"ready\n"
            probe.send_signal(number)
            assert probe.wait(60) != 0
            assert gone(child_of(tmp_path / "server.log"))
        finally:
            if probe.poll() is None:
                # It ends its server on this one too.
                probe.terminate()
                probe.wait(60)


class TestAddress:
    def test_defaults_are_sglangs(self) -> None:
        found = address_of(["--model-path", "kimi"])
        assert found.client().url == "http://127.0.0.1:30000"

    def test_a_server_for_everyone_is_reached_here(self) -> None:
        words = ["--host", "0.0.0.0", "--port=31000", "--api-key", "secret"]
        client = address_of(words).client()
        assert client.url == "http://127.0.0.1:31000" and client.api_key == "secret"
        assert "secret" not in repr(client)

    def test_a_config_file_counts(self, tmp_path: Path) -> None:
        config = tmp_path / "launch.yaml"
        config.write_text("port: 31001\nhost: ::1\n")
        assert address_of(["--config", str(config)]).client().url == "http://[::1]:31001"

    def test_a_port_that_is_none(self) -> None:
        with pytest.raises(BadCommandLine):
            address_of(["--port", "http"])


class TestPlan:
    def test_there_are_several_kinds_in_several_languages(self) -> None:
        assert 16 <= len(PROMPTS) <= 24
        assert len({prompt.kind for prompt in PROMPTS}) >= 8
        assert len({prompt.messages for prompt in map(_frozen, PROMPTS)}) == len(PROMPTS)
        for prompt in PROMPTS:
            assert prompt.messages[-1]["role"] == "user"

    def test_what_would_not_fit_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import drafter_files

        target = target_of(drafter_files.KIMI, "kimi")
        check_room(tmp_path, Plan(PROMPTS[:1], 1), target, (2, 30, 58))
        monkeypatch.setattr(recording.shutil, "disk_usage", lambda _path: _Usage())
        with pytest.raises(ProbeRefused) as refused:
            check_room(tmp_path, Plan(), target, None)
        assert refused.value.findings[0].code == "KE848"


class _Usage:
    free = 10**9


def _frozen(prompt: Prompt) -> Prompt:
    texts = tuple(message["content"] for message in prompt.messages)
    return Prompt(prompt.kind, texts)  # type: ignore[arg-type]
