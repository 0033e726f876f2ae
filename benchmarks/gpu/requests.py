"""Requests to a running server, as token ids."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from typing import Any


def generate(url: str, prompts: Sequence[Sequence[int]], tokens: int) -> list[dict[str, Any]]:
    """Continue each prompt greedily by ``tokens``, past the end token; SGLang's ``/generate``."""
    body = {
        "input_ids": [list(prompt) for prompt in prompts],
        "sampling_params": {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True},
    }
    answers: list[dict[str, Any]] = json.loads(_post(url + "/generate", body))
    return answers


def flush(url: str) -> None:
    """Empty the prefix cache, so that the next prompts are prefilled as a whole."""
    _post(url + "/flush_cache", {})


def continued(
    prompts: Sequence[Sequence[int]], answers: Sequence[dict[str, Any]]
) -> list[list[int]]:
    """Return each prompt with what was generated after it."""
    return [
        [*prompt, *answer["output_ids"]] for prompt, answer in zip(prompts, answers, strict=True)
    ]


def _post(url: str, body: object) -> bytes:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        data: bytes = answer.read()
    return data
