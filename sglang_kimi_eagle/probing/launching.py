"""A probe from one launch: start a traced server, record, and end it or leave it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sglang_kimi_eagle.launch import find_target
from sglang_kimi_eagle.probing.findings import NO_ROOM, ProbeRefused
from sglang_kimi_eagle.probing.probe import Progress
from sglang_kimi_eagle.probing.prompts import FILE
from sglang_kimi_eagle.probing.recording import Plan, check_room, record
from sglang_kimi_eagle.probing.serving import LOG, running
from sglang_kimi_eagle.server_arguments import ServerArguments
from sglang_kimi_eagle.states import States
from sglang_kimi_eagle.tracing.request import VARIABLE, TraceRequest
from sglang_kimi_eagle.tracing.trace_file import SUFFIX


@dataclass(frozen=True)
class LaunchOptions:
    """What a user asks of the launch."""

    words: Sequence[str]
    """Arguments of ``sglang.launch_server``."""
    variables: Mapping[str, str]
    """Set for the server, beside this process's own."""
    python: str
    """The interpreter that has SGLang."""
    states: States | None
    """States to trace; None for all."""
    keep: bool
    """Leave the server running."""
    seconds: float
    """That it may take to be ready."""
    plan: Plan


def record_launch(options: LaunchOptions, folder: Path, told: Progress) -> None:
    """Start the server with a trace into ``folder``, which exists, and record the plan.

    Raises:
        ProbeRefused: the server failed, or did not do what it was asked.
        BadCommandLine: the arguments cannot be read.
    """
    arguments = ServerArguments.from_command_line(options.words)
    target = find_target(arguments)
    if target is not None:
        check_room(folder, options.plan, target, options.states)
    request = TraceRequest(folder.absolute(), options.states, options.plan.limit)
    environ = {**options.variables, VARIABLE: request.encode()}
    with running(options.words, options.python, environ, folder, keep=options.keep) as server:
        told.begin("starting the server", int(options.seconds))
        server.wait(options.seconds, lambda passed: told.step(int(passed)))
        told.begin("recording", 2 * len(options.plan.prompts))
        try:
            record(server.client, folder, options.plan, told.step)
        except ProbeRefused as refused:
            raise server.check(refused) from None


@contextmanager
def trace_folder(given: Path | None, *, keep_log: bool) -> Iterator[Path]:
    """Yield the folder to trace to: the given one, or one whose trace is deleted afterwards.

    The server's log stays when it is still written to, or when a server failed and it tells why.

    Raises:
        ProbeRefused: it cannot be made.
    """
    try:
        if given is not None:
            given.mkdir(parents=True, exist_ok=True)
        folder = given or Path(tempfile.mkdtemp(prefix="kimi-eagle-trace-"))
    except OSError as error:
        raise ProbeRefused(
            NO_ROOM.found(
                "The folder for the trace cannot be made.",
                where=str(given or tempfile.gettempdir()),
                seen=str(error),
                mend="Name another one with --trace.",
            )
        ) from None
    if given is not None:
        yield folder
        return
    told = keep_log
    try:
        yield folder
    except ProbeRefused:
        told = True
        raise
    finally:
        for path in [*folder.glob(f"*{SUFFIX}"), *folder.glob("*.partial"), folder / FILE]:
            path.unlink(missing_ok=True)
        log = folder / LOG
        if not told or not log.exists() or not log.stat().st_size:
            log.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
