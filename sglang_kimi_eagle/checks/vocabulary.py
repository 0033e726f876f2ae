"""KE4xx: the drafter's vocabulary: its head, ``d2t`` and ``t2d``.

SGLang turns draft id i into target id ``i + d2t[i]`` and never looks at ``t2d``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import islice

from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.checks.layout import canonical, is_vocabulary_map, ties_head
from sglang_kimi_eagle.checks.tensors import HEAD_DROPPED
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.drafter.document import brief
from sglang_kimi_eagle.drafter.values import whole

NO_KEY = rule(
    "KE401",
    "draft-vocab-size-missing",
    Severity.ERROR,
    "SGLang's Llama drafter reads `draft_vocab_size` without a default: without the key the launch "
    "fails with an AttributeError after the target is loaded. null is allowed, and means the "
    "target's own head.",
    example='{"architectures": ["LlamaForCausalLMEagle3"], "vocab_size": 163840}',
)
VOCAB_VALUE = rule(
    "KE402",
    "draft-vocab-size-value",
    Severity.ERROR,
    "`draft_vocab_size` is no positive whole number, or larger than the vocabulary.",
    example='{"vocab_size": 163840, "draft_vocab_size": 200000}',
)
HEAD = rule(
    "KE403",
    "head-shape",
    Severity.ERROR,
    "`lm_head` has another number of rows than the config says, or another width than the "
    "drafter. The launch fails after the target is loaded.",
    example='`lm_head.weight` [32000, 7168] with {"draft_vocab_size": 163840}',
)
NO_MAP = rule(
    "KE404",
    "d2t-missing",
    Severity.ERROR,
    "The drafter has a vocabulary of its own and no `d2t` that maps it to the target's. SGLang "
    "takes draft ids for target ids without a word: acceptance collapses.",
    example='{"vocab_size": 163840, "draft_vocab_size": 32000} without the tensor `d2t`',
)
MAP_TYPE = rule(
    "KE405",
    "d2t-type",
    Severity.ERROR,
    "`d2t` is not one row of whole numbers.",
    example="`d2t` of dtype F32, or of shape [1, 32000]",
)
MAP_LENGTH = rule(
    "KE406",
    "d2t-length",
    Severity.ERROR,
    "`d2t` has more or fewer entries than the drafter's head has rows: draft ids are mapped wrong, "
    "or the server fails with an index out of range.",
    example='`d2t` [6054] with {"draft_vocab_size": 32000}',
)
MAP_RANGE = rule(
    "KE407",
    "d2t-range",
    Severity.ERROR,
    "`d2t` leads out of the target's vocabulary. SGLang adds it to the draft id; a map that holds "
    "target ids themselves instead of differences ends here.",
    example="d2t[31999] = 163000 with a vocabulary of 163840",
)
MAP_TWICE = rule(
    "KE408",
    "d2t-repeated",
    Severity.ERROR,
    "`d2t` leads from two draft ids to the same target id.",
    example="d2t = [0, -1, ...]",
)
MAP_ORDER = rule(
    "KE409",
    "d2t-unordered",
    Severity.WARNING,
    "The target ids that `d2t` leads to do not ascend. Every known trainer numbers the draft "
    "vocabulary in ascending order, so the map may belong to another head.",
    example="d2t = [5, 0, ...]",
)
MAP_ZERO = rule(
    "KE410",
    "d2t-unset",
    Severity.WARNING,
    "`d2t` is zero everywhere although the vocabulary is reduced: it maps to the first ids of the "
    "target's vocabulary. That is hardly what the drafter was trained on.",
    example="d2t = [0, 0, 0, ...] with 32000 of 163840 tokens",
)
MASK = rule(
    "KE411",
    "t2d-disagrees",
    Severity.WARNING,
    "`t2d` marks other tokens than `d2t` leads to, so they are of different vocabularies. SGLang "
    "uses `d2t` alone.",
    example="`t2d` with 31999 marks and `d2t` of 32000 entries",
)
MAP_USELESS = rule(
    "KE412",
    "d2t-without-vocabulary",
    Severity.ERROR,
    "`d2t` moves ids although the drafter has the whole vocabulary, or the target's head: draft "
    "ids are target ids already, and SGLang maps them once more.",
    example='`d2t` with {"draft_vocab_size": null}',
)

TIED = rule(
    "KE413",
    "head-tied-reduced",
    Severity.ERROR,
    "`tie_word_embeddings` makes the embedding the drafter's head, which has a row for every token "
    "of the target: with a reduced vocabulary its first rows are taken for the draft ids.",
    example='{"tie_word_embeddings": true, "vocab_size": 163840, "draft_vocab_size": 32000}',
)

_MASKS = ("BOOL", "U8", "I8")
"""Types of one byte: 0 and 1 for each token of the target's vocabulary."""


def check_head(context: Context) -> Iterator[Diagnostic]:
    """Check ``draft_vocab_size`` and the head."""
    drafter = context.drafter
    if drafter is None or not context.served:
        return
    config, where = context.config, f"{context.where}, draft_vocab_size"
    tied = ties_head(context)
    given = config.get("draft_vocab_size")
    if _lacks_key(context):
        yield NO_KEY.found(
            "draft_vocab_size is missing.",
            where=where,
            seen="no such key",
            leads_to=f"{context.running} fails with an AttributeError after the target is loaded.",
            mend=f"Set draft_vocab_size to the rows of lm_head{_rows(context)}.",
        )
        return
    vocab = whole(config, "vocab_size")
    if given is not None:
        size = whole(config, "draft_vocab_size")
        if size is None or (vocab is not None and size > vocab):
            yield VOCAB_VALUE.found(
                "draft_vocab_size must be a positive whole number, at most vocab_size.",
                where=where,
                seen=f"{brief(given)}, vocab_size {brief(config.get('vocab_size'))}",
                leads_to=f"{context.running} fails while it builds the drafter's head.",
                mend=f"Set draft_vocab_size to the rows of lm_head{_rows(context)}.",
            )
            return
    if tied and vocab is not None and context.draft_vocab_size not in (None, vocab):
        yield TIED.found(
            "The head is tied to the embedding, and the vocabulary is reduced.",
            where=f"{context.where}, tie_word_embeddings",
            seen=f"true, with draft_vocab_size {given}, vocab_size {vocab}",
            leads_to="SGLang takes the first rows of the target's embedding for the draft ids: "
            "acceptance length about 1.",
            mend="Set tie_word_embeddings to false, and export the drafter with its lm_head.",
        )
        return
    head = _find(context, "lm_head.weight")
    if head is None:
        return
    header, place = drafter.tensors[head], context.place(head)
    if tied or given is None:
        yield HEAD_DROPPED.found(
            "The drafter's own head is not used.",
            where=place,
            seen="tie_word_embeddings true" if tied else "draft_vocab_size null",
            leads_to="SGLang takes the "
            + ("embedding" if tied else "target's head")
            + " in its place.",
            mend="Set tie_word_embeddings to false."
            if tied
            else f"Set draft_vocab_size to {header.shape[0] if header.shape else 'its rows'} if "
            "the head was trained.",
        )
    elif header.dtype.startswith(("F", "BF")) and not _packed(context, header.dtype):
        wanted = (context.draft_vocab_size, whole(config, "hidden_size"))
        if len(header.shape) != 2 or any(
            size is not None and size != actual
            for size, actual in zip(wanted, header.shape, strict=True)
        ):
            yield HEAD.found(
                "lm_head does not have the shape that the config says.",
                where=place,
                seen=f"{header}; by config.json {brief(wanted)}",
                leads_to=f"{context.running} fails on it after the target is loaded.",
                mend="Set draft_vocab_size and hidden_size to the shape of lm_head.",
            )


def check_maps(context: Context) -> Iterator[Diagnostic]:
    """Check ``d2t`` and ``t2d`` against each other, the config and the vocabulary."""
    drafter = context.drafter
    if drafter is None or not context.served:
        return
    vocab, size = whole(context.config, "vocab_size"), context.draft_vocab_size
    if vocab is None or size is None or size > vocab or _lacks_key(context):
        return
    d2t, t2d = (_map(context, kind) for kind in ("d2t", "t2d"))
    if d2t is None:
        if size < vocab:
            yield NO_MAP.found(
                "The drafter's vocabulary is reduced, and there is no d2t.",
                where=f"{drafter.folder}, tensor d2t",
                seen=f"draft_vocab_size {size}, vocab_size {vocab}",
                leads_to="SGLang takes draft ids for target ids: acceptance length about 1.",
                mend="Export the drafter with its d2t.",
            )
        return
    header = drafter.tensors[d2t]
    place = context.place(d2t)
    if not header.dtype.startswith(("I", "U")) or len(header.shape) != 1:
        yield MAP_TYPE.found(
            "d2t must be one row of whole numbers.",
            where=place,
            seen=str(header),
            leads_to="SGLang fails when it maps the first draft token.",
            mend="Export d2t as int64 of shape [draft_vocab_size].",
        )
        return
    if header.shape[0] != size and context.config.get("draft_vocab_size") is None:
        yield _useless(place, f"{header.shape[0]} entries, draft_vocab_size null")
        return
    if header.shape[0] != size:
        yield MAP_LENGTH.found(
            "d2t is not as long as the drafter's vocabulary.",
            where=place,
            seen=f"{header.shape[0]} entries, draft_vocab_size {size}",
            leads_to="Draft ids are mapped by another vocabulary's map, or out of range.",
            mend="Export d2t, lm_head and draft_vocab_size of the same training run.",
        )
        return
    if drafter.can_read(d2t):
        yield from _entries(context, drafter.read_tensor(d2t), vocab, place, t2d)


def _entries(
    context: Context, d2t: Sequence[int], vocab: int, place: str, t2d: str | None
) -> Iterator[Diagnostic]:
    # Whole-list operations: the map may have as many entries as Kimi's vocabulary.
    targets = list(map(operator.add, range(len(d2t)), d2t))
    reduced = len(targets) < vocab
    moved = any(d2t)
    if min(targets) < 0 or max(targets) >= vocab:
        outside = next(i for i, target in enumerate(targets) if not 0 <= target < vocab)
        absolute = min(d2t) >= 0 and max(d2t) < vocab and d2t[0] <= d2t[-1]
        yield MAP_RANGE.found(
            "d2t leads out of the vocabulary.",
            where=f"{place}, entry {outside}",
            seen=f"{outside} + {d2t[outside]} = {targets[outside]}, vocab_size {vocab}",
            leads_to="The target is asked to verify tokens that do not exist: an index error, or "
            "acceptance length 1.",
            mend="Store differences, d2t[i] = target id - i, not target ids."
            if absolute
            else "Export d2t with the vocabulary the drafter was trained on.",
        )
        return
    ascending = all(map(operator.lt, targets, islice(targets, 1, None)))
    distinct = len(targets if ascending else set(targets))
    if distinct != len(targets):
        second = _first_repeated(targets)
        yield MAP_TWICE.found(
            "d2t leads to one target id twice.",
            where=f"{place}, entry {second}",
            seen=f"target id {targets[second]}; {len(targets) - distinct} repeated",
            leads_to="Rows of the head stand for the wrong tokens: acceptance falls.",
            mend="Export d2t again; d2t[i] = target id - i for ascending target ids.",
        )
        return
    if not reduced:
        if moved:
            yield _useless(place, f"{sum(map(bool, d2t))} entries are not 0")
        return
    if not moved:
        yield MAP_ZERO.found(
            "d2t is zero everywhere.",
            where=place,
            seen=f"{len(targets)} zeros for {vocab} tokens",
            leads_to="Draft ids are taken for the first ids of the vocabulary.",
            mend="Export d2t with the vocabulary the drafter was trained on.",
        )
    elif not ascending:
        yield MAP_ORDER.found(
            "The target ids of d2t do not ascend.",
            where=place,
            seen=brief(targets[:12]),
            leads_to="If the map belongs to another head, acceptance collapses.",
            mend="See that d2t and lm_head are of the same training run.",
        )
    if t2d is not None:
        yield from _mask(context, t2d, targets, vocab)


def _lacks_key(context: Context) -> bool:
    """Tell whether the class fails for want of the key."""
    return context.is_llama and "draft_vocab_size" not in context.config


def _useless(place: str, seen: str) -> Diagnostic:
    return MAP_USELESS.found(
        "d2t moves ids, but the drafter has the whole vocabulary.",
        where=place,
        seen=seen,
        leads_to="Right draft tokens are turned into others: acceptance length about 1.",
        mend="Remove d2t, or set draft_vocab_size to the size it was trained with.",
    )


def _first_repeated(targets: Sequence[int]) -> int:
    seen: set[int] = set()
    for index, target in enumerate(targets):
        if target in seen:
            return index
        seen.add(target)
    raise ValueError("nothing is repeated")


def _mask(context: Context, t2d: str, targets: Sequence[int], vocab: int) -> Iterator[Diagnostic]:
    drafter = context.drafter
    assert drafter is not None
    header = drafter.tensors[t2d]
    seen = ""
    if header.dtype not in _MASKS:
        # Some trainers store a map of indices; only a mask can be compared.
        if not header.dtype.startswith(("I", "U")) or len(header.shape) != 1:
            seen = f"{header}, neither a mask nor a map"
    elif header.shape != (vocab,):
        seen = f"{header}, vocab_size {vocab}"
    elif drafter.can_read(t2d):
        marks = drafter.read_tensor(t2d).tobytes()
        marked = len(marks) - marks.count(0)
        wrong = bytes(map(marks.__getitem__, targets)).count(0)
        if wrong or marked != len(targets):
            seen = f"{marked} tokens marked, {len(targets)} in d2t, {wrong} of these not marked"
    if seen:
        yield MASK.found(
            "t2d and d2t are of different vocabularies.",
            where=context.place(t2d),
            seen=seen,
            leads_to="If d2t is the wrong one, acceptance collapses.",
            mend="Export both of the same training run.",
        )


def _map(context: Context, kind: str) -> str | None:
    assert context.drafter is not None
    names = (name for name in context.drafter.tensors if is_vocabulary_map(name, context) == kind)
    return next(names, None)


def _find(context: Context, parameter: str) -> str | None:
    assert context.drafter is not None
    names = (name for name in context.drafter.tensors if canonical(name, context) == parameter)
    return next(names, None)


def _rows(context: Context) -> str:
    name = _find(context, "lm_head.weight")
    assert context.drafter is not None
    shape = context.drafter.tensors[name].shape if name is not None else ()
    return f", {shape[0]}" if shape else ""


def _packed(context: Context, dtype: str) -> bool:
    return context.quantisation is not None and dtype not in ("F32", "F16", "BF16")
