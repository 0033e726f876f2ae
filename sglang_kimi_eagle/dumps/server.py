"""Send the tokens of a dump to a server that writes a trace, and wait for that trace."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.dumps.files import Budget, list_files
from sglang_kimi_eagle.dumps.findings import SERVER, SHAPES, DumpRefused
from sglang_kimi_eagle.dumps.matching import agreement
from sglang_kimi_eagle.dumps.samples import read_tokens
from sglang_kimi_eagle.tracing.request import VARIABLE
from sglang_kimi_eagle.tracing.trace_file import Trace, UnreadableTrace, read_trace
from sglang_kimi_eagle.watching.address import parse_address, shown_address
from sglang_kimi_eagle.watching.findings import WatchFailed

MOST_PROMPTS = 8
MOST_TOKENS = 512
"""Of each prompt: a server traces a bounded number of tokens in all."""
ANSWER_SECONDS = 300.0
TRACE_SECONDS = 20.0
_POLL_SECONDS = 0.25
_MAX_ANSWER = 16 << 20
_MOST_FILES = 100


def send(url: str, dump: Path) -> list[tuple[int, ...]]:
    """Send the first tokens of some samples of a dump as prompts; return what was sent.

    SGLang 0.5.9 - 0.5.23, ``/generate`` with ``input_ids``; one token is generated.

    Raises:
        DumpRefused: ``url`` is no address, the dump has no tokens, or the server does not answer or
            refuses.
    """
    try:
        url = str(parse_address(url))
    except WatchFailed as problem:
        raise DumpRefused(
            _failed(
                "The server has no such address.",
                shown_address(url),
                problem.finding.message,
                "Give the address that the server was started with: http://127.0.0.1:30000.",
            )
        ) from None
    prompts: list[tuple[int, ...]] = []
    refused: list[Diagnostic] = []
    budget, root = Budget(), dump if dump.is_dir() else None
    for path in list_files(dump)[:_MOST_FILES]:
        try:
            prompts += [tokens[:MOST_TOKENS] for tokens in read_tokens(path, root, budget)]
        except DumpRefused as refusal:
            refused += refusal.findings
        if len(prompts) >= MOST_PROMPTS:
            break
    if not prompts:
        raise DumpRefused(*(refused[:3] or [_nothing_to_send(dump)]))
    for prompt in prompts[:MOST_PROMPTS]:
        _generate(url, prompt)
    return prompts[:MOST_PROMPTS]


def _generate(url: str, prompt: Sequence[int]) -> None:
    body = {
        "input_ids": list(prompt),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
    }
    try:
        request = urllib.request.Request(
            f"{url.rstrip('/')}/generate",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(request, timeout=ANSWER_SECONDS) as answer:
            decoded: Any = json.loads(answer.read(_MAX_ANSWER))
    except urllib.error.HTTPError as error:
        with error:
            text = error.read(400).decode("utf-8", "replace")
        seen = f"{error.code} {error.reason}: {text}"
        raise DumpRefused(
            _failed(
                "The server refuses the tokens of the dump.",
                url,
                seen,
                "See that the dump's tokens are those of the served model: ids beyond its "
                "vocabulary are of another tokenizer.",
            )
        ) from None
    except (OSError, ValueError, HTTPException, RecursionError) as error:
        raise DumpRefused(
            _failed(
                "The server does not answer as an SGLang server does.",
                url,
                str(getattr(error, "reason", None) or error),
                "Give the address that the server was started with: http://127.0.0.1:30000.",
            )
        ) from None
    if not isinstance(decoded, dict) or "meta_info" not in decoded:
        raise DumpRefused(
            _failed(
                "The server does not answer as an SGLang server does.",
                url,
                str(decoded)[:200],
                "Give the address of an SGLang server itself, not of a gateway before it.",
            )
        )


def wait_for_trace(url: str, prompts: Sequence[tuple[int, ...]], folder: Path, rank: int) -> Trace:
    """Wait until every prompt is traced as a whole, or no more comes; return the trace.

    Raises:
        DumpRefused: nothing of the prompts was traced.
    """
    end = time.monotonic() + TRACE_SECONDS
    seen = "no file"
    trace = None
    while True:
        try:
            trace = read_trace(folder, rank)
        except UnreadableTrace as error:
            # A file that is being written, or none yet.
            seen = f"{error.finding.message} {error.finding.seen}"
        else:
            if all(_is_traced(prompt, trace) for prompt in prompts):
                return trace
            seen = f"{trace.token_count} traced tokens, not all those of the prompts"
        if time.monotonic() > end:
            break
        time.sleep(_POLL_SECONDS)
    if trace is not None and any(
        agreement(prompt, sequence) for prompt in prompts for sequence in trace.sequences
    ):
        # Its bound of tokens was reached, or the beginning came from the prefix cache.
        return trace
    raise DumpRefused(
        _failed(
            "The server answered, and its trace of what it was asked did not come.",
            f"{url}, {folder}",
            seen,
            f"Start the server with {VARIABLE}='{folder}?states=all', name that folder as --trace, "
            "and see that its bound of tokens was not used up before.",
        )
    )


def _is_traced(prompt: tuple[int, ...], trace: Trace) -> bool:
    return any(
        sequence.start + agreement(prompt, sequence) >= len(prompt) for sequence in trace.sequences
    )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The tokens go to the server that was named, and nowhere else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _failed(message: str, where: str, seen: str, mend: str) -> Diagnostic:
    return SERVER.found(message, where=where, seen=seen, mend=mend)


def _nothing_to_send(dump: Path) -> Diagnostic:
    return SHAPES.found(
        "No sample of the dump has token ids that could be sent to a server.",
        where=str(dump),
        seen="no input_ids or token_ids",
        mend="Without --server, a trace of the dumped texts is compared by the states alone.",
    )
