"""JSON read without doubt: strict UTF-8, no NaN, no key twice."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


class NotADocument(ValueError):
    """The bytes are no JSON that every reader would understand alike."""


def decode(data: bytes) -> Any:
    """Decode JSON.

    Raises:
        NotADocument: with the reason.
    """
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
        )
        if b"\\ud" in data.lower():
            # Half of an escaped surrogate pair is a string that can be neither shown nor written.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except UnicodeEncodeError as problem:
        raise NotADocument("half of a surrogate pair in a string") from problem
    except UnicodeDecodeError as problem:
        raise NotADocument(f"not UTF-8 at byte {problem.start}") from problem
    except json.JSONDecodeError as problem:
        reason = f"not JSON at line {problem.lineno}, column {problem.colno}: {problem.msg}"
        raise NotADocument(reason) from problem
    except RecursionError as problem:
        raise NotADocument("nested too deeply") from problem
    except NotADocument:
        raise
    except ValueError as problem:
        # Python refuses to convert integers of more than some thousand digits.
        raise NotADocument("a number of too many digits") from problem


def brief(value: object, limit: int = 120) -> str:
    """Format a decoded value for people, cut to ``limit`` characters."""
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return clip(text, limit)


def clip(text: str, limit: int = 120) -> str:
    """Cut a text to ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise NotADocument(f"the key {brief(twice)} is there twice")
    return result


def _constant(text: str) -> NoReturn:
    raise NotADocument(f"{text} is no JSON number")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise NotADocument(f"the number {text[:40]} is out of range")
    return value
