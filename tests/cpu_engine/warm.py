"""Servers that start in seconds: forked from a process that has SGLang imported already."""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cpu_engine.environments import Environment
from cpu_engine.launch import launch_environ

_SCRIPT = Path(__file__).resolve().parent / "warm_process.py"


class WarmEngine:
    """One environment's warm process, inside a ``with`` block.

    What a server is given by ``environ`` must matter only after SGLang's import: the plugin's
    off switch, for one, would come too late.
    """

    def __init__(
        self, environment: Environment, *, log: Path, environ: Mapping[str, str] = {}
    ) -> None:
        self.environment = environment
        self._log = log
        self._environ = launch_environ(environment, environ)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(self.environment.python), str(_SCRIPT)],
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def start(self, argv: Sequence[str], environ: Mapping[str, str], log: Path) -> "WarmServer":
        """Fork a server; ``environ`` is added to the warm process's own variables."""
        answer = self.ask(
            {"start": {"argv": list(argv), "environ": dict(environ), "log": str(log)}}
        )
        return WarmServer(self, answer["pid"])

    def ask(self, request: object) -> dict[str, Any]:
        """Send one request to the warm process and return its answer."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the warm process ended:\n{self._log.read_text()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class WarmServer:
    """A forked server, with as much of `subprocess.Popen` as a `Server` uses."""

    def __init__(self, engine: WarmEngine, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._engine = engine

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        if self.returncode is None:
            self.returncode = self._engine.ask({"poll": self.pid})["returncode"]
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        """Wait until it has ended; return its exit status."""
        end = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"process {self.pid} is still running")
            time.sleep(0.05)
        return status
