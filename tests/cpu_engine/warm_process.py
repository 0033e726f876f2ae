"""Run by an environment's own Python: imports SGLang once, then forks servers on request.

Each line on stdin is a request, each line on stdout its answer:

    {"start": {"argv": [...], "environ": {...}, "log": PATH}} -> {"pid": N}
    {"poll": N} -> {"returncode": null | N}

A forked server runs ``sglang.launch_server`` as ``python -m`` does, with SGLang's modules
imported already; its own children are forked as well.
"""

import contextlib
import importlib
import json
import multiprocessing
import os
import runpy
import signal
import sys
from typing import Any

# What the server's processes import by themselves; those that a release lacks are passed over.
_IMPORTED_AHEAD = (
    "sglang.srt.server_args",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.scheduler",
    "sglang.srt.models.registry",
    "sglang.srt.models.kimi_k25",
    "sglang.srt.models.kimi_k25_eagle3",
    "sglang.srt.models.llama_eagle3",
    "sglang.srt.multimodal.processors.kimi_k25",
)


def main() -> None:
    """Answer requests until stdin ends."""
    # Keep stdout for the answers: SGLang prints while it is imported.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # SGLang asks for "spawn", which would import everything again in every process.
    multiprocessing.set_start_method("fork")
    multiprocessing.set_start_method = lambda *_args, **_kwargs: None  # type: ignore[assignment]
    for module in _IMPORTED_AHEAD:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            continue
    running: set[int] = set()
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line), running)) + "\n")
        answers.flush()
    # The test run is gone; its servers go too.
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    # Nothing is left to tidy up; tearing down what was imported takes seconds.
    os._exit(0)


def _answer(request: dict[str, Any], running: set[int]) -> dict[str, Any]:
    if "start" in request:
        pid = os.fork()
        if pid == 0:
            _serve(**request["start"])
        running.add(pid)
        return {"pid": pid}
    pid, status = os.waitpid(request["poll"], os.WNOHANG)
    running.discard(pid)
    return {"returncode": os.waitstatus_to_exitcode(status) if pid else None}


def _serve(argv: list[str], environ: dict[str, str], log: str) -> None:
    """Become a server: never returns."""
    status = 1
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(environ)
        sys.argv = ["sglang.launch_server", *argv]
        runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as error:
        status = _status(error)
    except BaseException:
        # As the interpreter does; a hook may end it with a status of its own.
        try:
            sys.excepthook(*sys.exc_info())
        except SystemExit as error:
            status = _status(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _status(error: SystemExit) -> int:
    return error.code if isinstance(error.code, int) else 0 if error.code is None else 1


if __name__ == "__main__":
    main()
