"""Trace files for tests: written and read with numpy, so that no torch is needed."""

from __future__ import annotations

from collections.abc import Sequence as Many
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from sglang_kimi_eagle.tracing.trace_file import FACTS_KEY, SUFFIX, Facts, Piece, Sequence

HIDDEN = 4
WIRED = (3, 5, 7)


def facts(**changes: Any) -> Facts:
    """The facts of an eight-layer target, with ``changes``."""
    known: dict[str, Any] = {
        "plugin": "0.1.0",
        "sglang": "0.5.23",
        "mode": "EXTEND",
        "rank": 0,
        "tp_size": 1,
        "order": 0,
        "target": "kimi",
        "drafter": "eagle",
        "num_layers": 8,
        "hidden_size": HIDDEN,
        "wired": WIRED,
        "reason": "h[3], h[5], h[7] (override: states given by the user)",
        "pieces": (),
    }
    return Facts(**known | changes)


def tensors(tokens: Many[int], start: int = 0, states: Many[int] = WIRED) -> dict[str, Any]:
    """What a forward of one prompt leaves: h[k] of the token t at position p is t + p + k."""
    ids = np.array(tokens, dtype=np.int64)
    positions = np.arange(start, start + len(tokens), dtype=np.int64)
    h = {
        k: np.repeat((ids + positions + k)[:, None], HIDDEN, axis=1).astype(np.float32)
        for k in {*states, *WIRED}
    }
    return {
        "tokens": ids,
        "positions": positions,
        "fed": np.concatenate([h[k] for k in WIRED], axis=1),
        "fed_tokens": np.append(ids[1:], 0),
        **{f"h.{k}": h[k] for k in states},
    }


def write(
    folder: Path, order: int, content: dict[str, Any], *pieces: Piece, **changes: Any
) -> Path:
    """Write one file; without pieces it holds one sequence named a."""
    named = pieces or (Piece("a", 0, len(content["tokens"])),)
    about = facts(order=order, pieces=named, **changes)
    path = folder / f"{order:05}-rank{about.rank}{SUFFIX}"
    save_file(content, path, {FACTS_KEY: msgspec.json.encode(about).decode()})
    return path


def rows_of(sequence: Sequence, name: str) -> list[bytes]:
    """Return the rows of a tensor of a traced sequence, as bytes."""
    rows: list[bytes] = []
    for path, piece in sequence.pieces:
        with safe_open(path, framework="numpy") as file:
            part = file.get_tensor(name)[piece.row : piece.row + piece.rows]
        rows += [row.tobytes() for row in part]
    return rows
