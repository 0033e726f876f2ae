"""Requests to the server that a probe has started: `/generate` and a few others.

SGLang 0.5.9 - 0.5.23, ``srt/entrypoints/http_server.py``.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_kimi_eagle.probing.calibration import Message
from sglang_kimi_eagle.probing.findings import REQUEST_FAILED, ProbeRefused

_MAX_BODY = 64 << 20
_FLUSH_SECONDS = 20.0
_HEALTH_SECONDS = 30.0


@dataclass(frozen=True)
class Completion:
    """What came back for a prompt."""

    tokens: tuple[int, ...]
    verifies: int
    """Verify steps that they took; 0 where the server does not speculate."""


class Rejected(Exception):
    """The server answered with an error status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"status {status}: {text}")
        self.status = status


@dataclass(frozen=True)
class Client:
    """One server."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    admin_key: str | None = field(default=None, repr=False)
    """For flushing the cache, where it differs."""
    seconds: float = 1800.0
    """For one answer."""

    def healthy(self) -> bool:
        """Tell whether the server is ready."""
        try:
            self._open("/health", None, _HEALTH_SECONDS)
        except (OSError, http.client.HTTPException, Rejected):
            return False
        return True

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[Completion]:
        """Complete prompts greedily, as one batch.

        Raises:
            ProbeRefused: the server refuses, or does not answer so.
        """
        answers = self._post(
            "/generate",
            {
                "input_ids": [list(prompt) for prompt in prompts],
                "sampling_params": {"temperature": 0.0, "max_new_tokens": new_tokens},
            },
        )
        try:
            found = [
                Completion(
                    tuple(map(int, answer["output_ids"])),
                    int(answer["meta_info"].get("spec_verify_ct") or 0),
                )
                for answer in answers
            ]
        except (TypeError, ValueError, KeyError, AttributeError):
            raise self._failed("/generate", str(answers)[:200]) from None
        if len(found) != len(prompts):
            raise self._failed("/generate", f"{len(found)} answers to {len(prompts)} prompts")
        return found

    def tokenize(self, messages: Sequence[Message]) -> tuple[int, ...] | None:
        """Return the tokens of a templated conversation; None where the release cannot (0.5.9).

        0.5.12 and later: ``/tokenize`` takes messages.

        Raises:
            ProbeRefused: the server does not answer.
        """
        try:
            answer = self._call("/tokenize", {"messages": list(messages)})
            return tuple(map(int, answer["tokens"]))
        except Rejected:
            return None
        except (TypeError, ValueError, KeyError):
            raise self._failed("/tokenize", "no list of tokens") from None

    def chat(self, messages: Sequence[Message]) -> None:
        """Have one token generated after a conversation, so that its prompt is run.

        Raises:
            ProbeRefused: the server refuses.
        """
        self._post(
            "/v1/chat/completions",
            {"model": "default", "messages": list(messages), "temperature": 0.0, "max_tokens": 1},
        )

    def flush(self) -> None:
        """Empty the prefix cache, once the server is idle.

        Raises:
            ProbeRefused: it stays full.
        """
        end = time.monotonic() + _FLUSH_SECONDS
        while True:
            try:
                self._open("/flush_cache", {}, _HEALTH_SECONDS, self.admin_key or self.api_key)
                return
            except Rejected as error:
                # Refused while a request is being tidied up.
                if time.monotonic() > end:
                    raise self._failed("/flush_cache", str(error)) from None
                time.sleep(0.05)
            except (OSError, http.client.HTTPException) as error:
                raise self._failed("/flush_cache", str(error)) from None

    def _post(self, path: str, body: Any) -> Any:
        try:
            return self._call(path, body)
        except Rejected as error:
            raise self._failed(path, str(error)) from None

    def _call(self, path: str, body: Any) -> Any:
        try:
            return json.loads(self._open(path, body, self.seconds, self.api_key))
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise self._failed(path, str(error)) from None

    def _open(self, path: str, body: Any, seconds: float, key: str | None = None) -> bytes:
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        # The server is this machine's own: no proxy is between.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=seconds) as answer:
                content: bytes = answer.read(_MAX_BODY + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise Rejected(error.code, error.read(300).decode("utf-8", "replace")) from None
        if len(content) > _MAX_BODY:
            raise OSError(f"an answer of more than {_MAX_BODY >> 20} MiB")
        return content

    def _failed(self, path: str, seen: str) -> ProbeRefused:
        return ProbeRefused(
            REQUEST_FAILED.found(
                "The server did not answer a calibration request.",
                where=self.url + path,
                seen=seen,
                leads_to="Nothing can be scored.",
                mend="Look at the server's log; see that its context and its memory take prompts "
                "of some hundred tokens.",
            )
        )
