"""The drafter's tokenizer, where it ships one, against the target's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule

# Vocabularies that are copied byte for byte; tokenizer.json is written anew by every library.
_VOCABULARIES = ("tiktoken.model", "tokenizer.model")

TOKENIZER = rule(
    "KE623",
    "tokenizer-differs",
    Severity.WARNING,
    "The drafter ships a tokenizer vocabulary of another size than the target's: its token ids "
    "stand for other pieces of text. SGLang uses the target's tokenizer and says nothing.",
    example="A `tiktoken.model` beside the drafter that is not the target's.",
)


def check_tokenizer(context: Context) -> Iterator[Diagnostic]:
    """Compare the sizes of the vocabulary files; neither is opened."""
    if context.drafter is None or context.target is None:
        return
    for name in _VOCABULARIES:
        own = _size(context.drafter.folder / name)
        others = _size(Path(context.target.location) / name)
        if own is not None and others is not None and own != others:
            yield TOKENIZER.found(
                f"The drafter's {name} is not the target's.",
                where=str(context.drafter.folder / name),
                seen=f"{own} bytes; the target's has {others}",
                leads_to="A drafter trained with another tokenizer is accepted at random: "
                "acceptance length 1.",
                mend="Serve a drafter that was trained for this target; if it was, delete the "
                "file or replace it by the target's.",
            )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return None
