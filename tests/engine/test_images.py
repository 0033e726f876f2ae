"""Requests with pictures, through the tiny vision tower, with speculation on."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from typing import Any

import pytest

from engine_tools import RECORDS, Drafters, Engines, records_of, states_fed
from tiny_models.paths import LLAMA

pytestmark = pytest.mark.engine


def png(seed: int, side: int = 28) -> str:
    """Return a data URL of a picture of coloured noise."""
    noise = random.Random(seed)
    rows = b"".join(b"\0" + noise.randbytes(3 * side) for _ in range(side))

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    data += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def answers(server: Any, count: int = 3) -> list[str]:
    """Ask about pictures, one and two in a request."""
    texts = []
    for number in range(count):
        pictures = [png(seed) for seed in range(number, number + 1 + number % 2)]
        content: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": url}} for url in pictures
        ]
        content.append({"type": "text", "text": "What is the sum of 3 and 4?"})
        answer = server.post(
            "/v1/chat/completions",
            {
                "model": "kimi-tiny",
                "messages": [{"role": "user", "content": content}],
                "temperature": 0,
                "max_tokens": 32,
                "ignore_eos": True,
            },
        )
        texts.append(answer["choices"][0]["message"]["content"])
    return texts


@pytest.mark.parametrize("release", ["0.5.9", "0.5.12.post1", "0.5.23"])
def test_pictures_are_answered_as_without_speculation(
    engines: Engines, drafters: Drafters, release: str
) -> None:
    folder = engines.records_folder()
    with engines.server(release, drafters.pinned(LLAMA), environ={RECORDS: str(folder)}) as server:
        speculated = answers(server)
    with engines.server(release, plugin=False) as plain:
        assert answers(plain) == speculated
    assert all(speculated)
    records = records_of(folder)
    assert states_fed(records) == {LLAMA.trained_on}
    assert any(
        len(record.input_ids) > 16 and record.kind == "draft" and record.mode == "EXTEND"
        for record in records
    )
