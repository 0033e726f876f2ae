"""``prompts.json`` beside a trace: what was asked, and which tokens the target chose itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from sglang_kimi_eagle.ordinary_files import read_ordinary
from sglang_kimi_eagle.probing.findings import BAD_PROMPTS, ProbeRefused

FILE = "prompts.json"
SCHEMA = 1
_MAX_BYTES = 64 * 1024 * 1024


class Asked(msgspec.Struct, frozen=True):
    """One traced sequence: a prompt and the target's greedy continuation of it."""

    kind: str
    """What kind of text it is, for people."""
    prompt: int
    """How many of the tokens are prompt."""
    tokens: tuple[int, ...]
    """All of them."""
    verifies: Annotated[int, Meta(ge=1)] | None = None
    """Verify steps of the server's own generation; None where it did not speculate."""


class _Document(msgspec.Struct, frozen=True):
    sequences: tuple[Asked, ...]
    schema: int = SCHEMA


def write_prompts(folder: Path, sequences: Sequence[Asked]) -> None:
    """Write the file, whole or not at all.

    Raises:
        OSError: the folder cannot be written to.
    """
    unfinished = folder / f".{FILE}"
    unfinished.write_bytes(msgspec.json.encode(_Document(tuple(sequences))) + b"\n")
    unfinished.replace(folder / FILE)


def read_prompts(folder: Path) -> tuple[Asked, ...] | None:
    """Read the file; None when there is none.

    Raises:
        ProbeRefused: it is not such a file.
    """
    path = folder / FILE
    try:
        data = read_ordinary(path, _MAX_BYTES)
        document: _Document = msgspec.json.decode(data, type=_Document)
        if document.schema != SCHEMA:
            raise ValueError(f"schema {document.schema}, and {SCHEMA} is read here")
        for asked in document.sequences:
            if not 0 < asked.prompt <= len(asked.tokens):
                raise ValueError(f"prompt {asked.prompt} of {len(asked.tokens)} tokens")
        return document.sequences
    except FileNotFoundError:
        return None
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise ProbeRefused(
            BAD_PROMPTS.found(
                f"{FILE} cannot be read.",
                where=str(path),
                seen=str(error),
                leads_to="It is not known which tokens the target chose itself.",
                mend="Record the trace again with `probe --launch`, or move the file away to "
                "score all tokens.",
            )
        ) from None
