"""The drafter's tokenizer, where it ships one, against the target's."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.drafter import UnreadableDrafter
from sglang_kimi_eagle.drafter.config import read_object
from sglang_kimi_eagle.drafter.document import brief
from sglang_kimi_eagle.drafter.folder import Folder
from sglang_kimi_eagle.drafter.location import locate

# Vocabularies that are copied byte for byte.
_VOCABULARIES = ("tiktoken.model", "tokenizer.model")
MAX_VOCABULARY = 8 * 1024 * 1024
"""Bytes of a vocabulary that is compared; Kimi-K2.5's has about 2.8 MB."""
# tokenizer.json is written anew by every library, and as large: of it nothing is said.
_DECODER = "added_tokens_decoder"
_CONFIG = "tokenizer_config.json"
_MAX_CONFIG = 1024 * 1024

TOKENIZER = rule(
    "KE623",
    "tokenizer-differs",
    Severity.WARNING,
    "The drafter ships a tokenizer that is not the target's: its token ids stand for other pieces "
    "of text. SGLang uses the target's tokenizer and says nothing. Compared are `tiktoken.model` "
    "and `tokenizer.model`, to the byte; without them, the tokens that `tokenizer_config.json` "
    "names by id.",
    example="A `tiktoken.model` beside the drafter that is not the target's.",
)


def check_tokenizer(context: Context) -> Iterator[Diagnostic]:
    """Compare the vocabulary files, and the special tokens, of drafter and target."""
    if context.drafter is None or context.target is None:
        return
    own = Folder(context.drafter.location, context.drafter.folder)
    try:
        others = locate(context.target.location, context.target.revision)
    except UnreadableDrafter:
        # The target is not on this machine.
        return
    if own.path == others.path:
        return
    compared = False
    for name in _VOCABULARIES:
        seen = _differ(own, others, name)
        compared = compared or seen is not None
        if seen:
            yield _found(own, name, seen)
    if not compared:
        seen = _special_tokens(own, others)
        if seen:
            yield _found(own, _CONFIG, seen)


def _found(own: Folder, name: str, seen: str) -> Diagnostic:
    return TOKENIZER.found(
        f"The drafter's {name} is not the target's.",
        where=own.show(name),
        seen=seen,
        leads_to="A drafter trained with another tokenizer is accepted at random: acceptance "
        "length 1.",
        mend="Serve a drafter that was trained for this target; if it was, delete the file or "
        "replace it by the target's.",
    )


def _differ(own: Folder, others: Folder, name: str) -> str | None:
    """Say how two files differ; empty when they do not, None when they cannot be compared."""
    mine, theirs = _size(own, name), _size(others, name)
    if mine is None or theirs is None:
        return None
    if mine != theirs:
        return f"{mine} bytes; the target's has {theirs}"
    if mine > MAX_VOCABULARY:
        return None
    digests = _digest(own, name), _digest(others, name)
    if digests[0] is None or digests[1] is None:
        return None
    if digests[0] == digests[1]:
        return ""
    return f"sha256 {digests[0][:12]}...; the target's {digests[1][:12]}..."


def _special_tokens(own: Folder, others: Folder) -> str:
    """Say which token is named differently, if most are that both configs name by id.

    A few differ between versions of one model, which name reserved tokens one by one.
    """
    mine = _decoder(own)
    # The target's file is opened for a drafter that ships one.
    theirs = _decoder(others) if mine else {}
    shared = sorted(mine.keys() & theirs.keys())
    wrong = [token_id for token_id in shared if mine[token_id] != theirs[token_id]]
    if len(wrong) * 2 <= len(shared):
        return ""
    first = wrong[0]
    return (
        f"{len(wrong)} of {len(shared)} tokens have other names: {first} is "
        f"{brief(mine[first], 60)}, the target's {brief(theirs[first], 60)}"
    )


def _decoder(folder: Folder) -> dict[str, str]:
    try:
        if not folder.has(_CONFIG):
            return {}
        table = read_object(folder, _CONFIG, _MAX_CONFIG).get(_DECODER)
    except UnreadableDrafter:
        return {}
    if not isinstance(table, dict):
        return {}
    return {
        token_id: token["content"]
        for token_id, token in table.items()
        if len(token_id) < 10 and isinstance(token, dict) and isinstance(token.get("content"), str)
    }


def _size(folder: Folder, name: str) -> int | None:
    try:
        return folder.size(name) if folder.has(name) else None
    except UnreadableDrafter:
        return None


def _digest(folder: Folder, name: str) -> str | None:
    # Few drafters ship a vocabulary, and importing OpenSSL takes a while.
    import hashlib

    try:
        return hashlib.sha256(folder.read(name, MAX_VOCABULARY)).hexdigest()
    except UnreadableDrafter:
        return None
