"""What a user asks to be traced: ``SGLANG_KIMI_EAGLE_TRACE``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from sglang_kimi_eagle.settings import TRACE
from sglang_kimi_eagle.states import MAX_STATES, States

VARIABLE = TRACE
DEFAULT_TOKENS = 4096
_MOST_TOKENS = 1 << 20


class BadRequest(ValueError):
    """The variable's value cannot be read; the message says what is wrong with it."""


@dataclass(frozen=True)
class TraceRequest:
    """``FOLDER?states=2,3,30&tokens=4096&ranks=all``; everything after the folder is optional."""

    folder: Path
    states: States | None = ()
    """States to record beside those that the drafter gets; None for all that there are."""
    tokens: int = DEFAULT_TOKENS
    """Prompt tokens after which each rank records nothing more."""
    every_rank: bool = False
    """Record on every tensor-parallel rank, not on rank 0 alone."""

    def encode(self) -> str:
        """Return the variable's value for this request; inverse of `parse_request`."""
        states = "all" if self.states is None else ",".join(map(str, self.states))
        ranks = "all" if self.every_rank else "0"
        return f"{self.folder}?states={states}&tokens={self.tokens}&ranks={ranks}"


def parse_request(text: str) -> TraceRequest:
    """Parse the variable's value.

    Raises:
        BadRequest: with what is wrong.
    """
    folder, _, query = text.strip().rpartition("?") if "?" in text else (text.strip(), "", "")
    if not folder or "\0" in folder:
        raise BadRequest("no folder is named")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(options.keys() - {"states", "tokens", "ranks"})
    if unknown or (query and not options):
        raise BadRequest(f"{(unknown or [query])[0]!r} is none of states, tokens and ranks")
    return TraceRequest(
        Path(folder).absolute(),
        _states(options.get("states", "")),
        _tokens(options.get("tokens", str(DEFAULT_TOKENS))),
        _every_rank(options.get("ranks", "0")),
    )


def _states(text: str) -> States | None:
    if text == "all":
        return None
    if not re.fullmatch(r"(\d{1,6}(,\d{1,6})*)?", text, re.ASCII):
        raise BadRequest(f"states={text[:80]!r} is neither all nor numbers like 2,3,30")
    states = tuple(sorted({int(part) for part in text.split(",") if part}))
    if len(states) > MAX_STATES:
        raise BadRequest(f"states names {len(states)}, more than {MAX_STATES}; all takes every one")
    return states


def _tokens(text: str) -> int:
    if not re.fullmatch(r"\d{1,7}", text, re.ASCII) or not 0 < int(text) <= _MOST_TOKENS:
        raise BadRequest(f"tokens={text[:80]!r} is no number from 1 to {_MOST_TOKENS}")
    return int(text)


def _every_rank(text: str) -> bool:
    if text not in ("0", "all"):
        raise BadRequest(f"ranks={text[:80]!r} is neither 0 nor all")
    return text == "all"
