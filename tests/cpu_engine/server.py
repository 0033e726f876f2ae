"""A running ``sglang.launch_server`` and requests to it."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cpu_engine.environments import Environment
from cpu_engine.launch import launch_command, launch_environ
from cpu_engine.warm import WarmEngine, WarmServer

_START_SECONDS = 300.0
_REPORT_SECONDS = 10.0


class ServerFailed(RuntimeError):
    """The server ended, or was ended, before it answered."""

    def __init__(self, summary: str, returncode: int | None, log: str) -> None:
        super().__init__(f"{summary}; end of its log:\n{log[-4000:]}")
        self.returncode = returncode
        self.log = log


@dataclass(frozen=True)
class Completion:
    """What came back for one prompt."""

    output_ids: list[int]
    meta: dict[str, Any]

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a verify step, the target's own included; None without speculation."""
        verified = self.meta.get("spec_verify_ct")
        return self.meta["completion_tokens"] / verified if verified else None


class Server:
    """Serves ``target``, speculating with ``draft`` where given, inside a ``with`` block.

    ``args`` are further arguments of ``sglang.launch_server``, ``environ`` further
    environment variables; both override the engine's.  Output goes to the file ``log``.
    With ``warm`` the server is forked from that process instead of started anew.
    """

    def __init__(
        self,
        environment: Environment,
        target: Path,
        draft: Path | None = None,
        *,
        log: Path,
        tp_size: int = 1,
        args: Sequence[str] = (),
        environ: Mapping[str, str] = {},
        progress: Callable[[str], None] | None = None,
        start_seconds: float = _START_SECONDS,
        warm: WarmEngine | None = None,
    ) -> None:
        self.environment = environment
        self.port = free_port()
        self.command = launch_command(
            environment, target, draft, port=self.port, tp_size=tp_size, args=args
        )
        self.environ = launch_environ(environment, environ, tp_size=tp_size)
        self._warm = warm
        self._log = log
        self._progress = progress or (lambda _line: None)
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | WarmServer | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process that was started; every process of the server is in its group."""
        assert self._process is not None
        return self._process.pid

    @property
    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server in a process group of its own and wait until it answers."""
        if self._warm is None:
            with self._log.open("wb") as output:
                self._process = subprocess.Popen(
                    self.command,
                    env={**self.environ, "CPU_ENGINE_PARENT": str(os.getpid())},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        else:
            self._process = self._warm.start(self.command[3:], self.environ, self._log)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of the group."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def generate(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, **sampling: Any
    ) -> list[Completion]:
        """Complete the prompts as one batch: greedily and past the end token by default."""
        params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": max_new_tokens}
        answers = self.post(
            "/generate",
            {
                "input_ids": [list(prompt) for prompt in prompts],
                "sampling_params": params | sampling,
            },
        )
        return [Completion(answer["output_ids"], answer["meta_info"]) for answer in answers]

    def post(self, path: str, body: object, timeout: float = 300.0) -> Any:
        """The JSON answer to a JSON request."""
        request = urllib.request.Request(
            self.base_url + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)

    def get(self, path: str, timeout: float = 30.0) -> Any:
        """The JSON answer to a GET request."""
        with urllib.request.urlopen(self.base_url + path, timeout=timeout) as answer:
            return json.load(answer)

    def _wait(self) -> None:
        assert self._process is not None
        begun = reported = time.monotonic()
        name = f"SGLang {self.environment.release}"
        while not self._answers():
            now = time.monotonic()
            returncode = self._process.poll()
            if returncode is not None:
                raise ServerFailed(f"{name} exited with {returncode}", returncode, self.log_text)
            if now - begun > self._start_seconds:
                summary = f"{name} did not answer within {self._start_seconds:.0f} s"
                raise ServerFailed(summary, None, self.log_text)
            if now - reported >= _REPORT_SECONDS:
                reported = now
                self._progress(f"{name} starting, {now - begun:.0f} s")
            time.sleep(0.25)
        self._progress(f"{name} answers after {time.monotonic() - begun:.0f} s")

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.base_url + "/health", timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def free_port() -> int:
    """Find a port below those that systems hand out: SGLang adds 10000 to it for gRPC."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
