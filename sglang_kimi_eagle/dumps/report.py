"""Words for what was found of a dump: findings, the verdict, and the JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.dumps.findings import (
    AMBIGUOUS,
    NO_TOKENS,
    NOISY,
    NOT_FINITE,
    NOT_IDENTIFIED,
    NOT_SERVABLE,
    NOTHING_FITS,
    PARTLY_READ,
    TOKENS_DIFFER,
    TOO_FEW_ROWS,
    WIRED_OTHERWISE,
)
from sglang_kimi_eagle.dumps.matching import Closest, How, closest
from sglang_kimi_eagle.dumps.scoring import Candidate, Kind, Measured, Score, has_numbers
from sglang_kimi_eagle.dumps.traced import traced_states, untraced_states
from sglang_kimi_eagle.dumps.verdict import (
    FLOOR,
    LOOSE,
    MIN_ROWS,
    Decision,
    Naming,
    Outcome,
    name_states,
)
from sglang_kimi_eagle.releases import NEWEST, RELEASES, spans
from sglang_kimi_eagle.states import State, States, show
from sglang_kimi_eagle.tracing.finite import not_finite
from sglang_kimi_eagle.tracing.request import VARIABLE
from sglang_kimi_eagle.tracing.trace_file import Trace

if TYPE_CHECKING:
    from sglang_kimi_eagle.dumps.identify import DumpedSlot, Identification, Reading

SCHEMA = 1
"""Of the JSON output; described in docs/identify.md."""
_KIMI_LAYERS = 61
_UNUSABLE_PART = 0.1
_LOOKED_AT = 2048
"""First rows of a sample without tokens in which numbers are looked for."""


def name_candidate(candidate: Candidate, num_layers: int) -> str:
    """Format what a tensor is: ``h[3]``, ``final norm of h[61]``."""
    if candidate.kind is Kind.STATE:
        embedding = " (embedding)" if candidate.state == 0 else ""
        return f"h[{candidate.state}]{embedding}"
    if candidate.state == num_layers:
        return f"final norm of h[{candidate.state}]"
    return f"a norm of h[{candidate.state}]"


def inputs_of(found: Identification) -> list[DumpedSlot]:
    """Return the tensors that a drafter gets as aux hidden states, in the dump's order.

    Those that are called so; without such names all but the last state before or after the final
    norm, which a training predicts from or compares with.
    """
    called = [slot for slot in found.slots if slot.name.rpartition(".")[2].startswith("aux")]
    if called:
        return called
    last = found.trace.facts.num_layers
    kept = []
    for slot in found.slots:
        decision = slot.decision
        known = decision is not None and decision.outcome is Outcome.IDENTIFIED
        if not (known and decision is not None and decision.candidate.state == last):
            kept.append(slot)
    # A last tensor that could not be told is the last state if anything.
    if len(kept) == len(found.slots) > 1 and not _is_identified(kept[-1]):
        kept.pop()
    return kept


def states_of_dump(found: Identification) -> States | None:
    """Return the states of `inputs_of` in the dump's order; None unless all are states."""
    states: list[State] = []
    for slot in inputs_of(found):
        if slot.decision is None or not slot.decision.is_state:
            return None
        states.append(slot.decision.candidate.state)
    return tuple(states) or None


def naming_of(found: Identification) -> Naming | None:
    """Return the ids for the dump's states; None where there are none to give."""
    states = states_of_dump(found)
    if states is None or list(states) != sorted(set(states)):
        return None
    return name_states(states, found.trace.facts.num_layers)


def pin_command(states: States, num_layers: int) -> str:
    """Return the command that writes the states into a drafter's config."""
    target = "" if num_layers == _KIMI_LAYERS else " --target TARGET"
    return (
        f"sglang-kimi-eagle pin DRAFTER --states {','.join(map(str, states))} --output COPY{target}"
    )


def findings_of(found: Identification, reading: Reading) -> Iterator[Diagnostic]:
    """Yield what is to be said beside the verdict."""
    facts = found.trace.facts
    decided = [slot for slot in found.slots if slot.decision is not None]
    bad = {k: n for k, n in found.not_finite.items() if n > _UNUSABLE_PART * found.paired}
    if bad:
        yield not_finite(found.trace, bad, found.paired)
    known = any(slot.decision.outcome is not Outcome.UNKNOWN for slot in decided if slot.decision)
    if not known and not bad:
        yield _nothing_fits(found)
    else:
        for slot in found.slots:
            yield from _slot_findings(slot, found)
        yield from _not_servable(found)
        states = states_of_dump(found)
        if states is not None and facts.wired and states != facts.wired:
            yield WIRED_OTHERWISE.found(
                "The traced server feeds its drafter other states than the dump holds.",
                where=facts.drafter,
                seen=f"the dump holds {show(states)}; SGLang {facts.sglang} fed "
                f"{show(facts.wired)} ({facts.reason})",
                leads_to="If that drafter was trained on this dump, it drafts from states it "
                "never saw.",
                mend=f"If so: {pin_command(states, facts.num_layers)}",
            )
    if How.NEAREST in found.how:
        yield NO_TOKENS.found(
            "The dump has no token ids; its rows were found by the states themselves.",
            where=found.dump,
            seen=f"{_rows(found)} rows are as near to rows of the trace as states of the same "
            "tokens",
        )
    if reading.refused:
        first = reading.refused[0]
        yield PARTLY_READ.found(
            f"{len(reading.refused)} files of the dump could not be used.",
            where=first.where,
            seen=f"{first.code}: {first.message} {first.seen}",
            leads_to=f"The verdict is about {found.used} of {reading.files} samples.",
            mend="See that the others are whole before they are trained on.",
        )


def nothing_matches(
    dump: Path, trace: Trace, reading: Reading, bad: Mapping[State, int]
) -> list[Diagnostic]:
    """Return why no sample could be compared; ``bad`` are states that are not finite."""
    if not reading.files:
        distinct = {finding.code: finding for finding in reversed(reading.refused)}
        return [distinct[code] for code in sorted(distinct)]
    without = [sample for sample in reading.apart if sample.tokens is None]
    if without and len(without) == len(reading.apart):
        if not has_numbers(without, _LOOKED_AT):
            return [_no_numbers(dump, f"{len(without)} samples without token ids")]
        if bad:
            return [not_finite(trace, bad, trace.token_count)]
        return [
            TOKENS_DIFFER.found(
                "The dump has no token ids, and its states are not in the trace.",
                where=str(dump),
                seen=f"{len(without)} samples, none of whose rows are near to a traced state",
                leads_to="It is a dump of other texts, of another model, or of something else "
                "than states.",
                mend="Trace a text that is in the dump: keep its token ids beside the states.",
            )
        ]
    near = closest(reading.apart, trace)
    return [
        TOKENS_DIFFER.found(
            "No sample of the dump has the tokens of a traced prompt.",
            where=str(dump),
            seen=f"{reading.unmatched} samples, {len(trace.sequences)} traced prompts. "
            + (_say_closest(near) if near else ""),
            leads_to="Their states cannot be compared.",
            mend="Send the dump's own tokens to the server (--server URL), or trace the texts that "
            "were dumped, with the same tokenizer and chat template.",
        )
    ]


def no_states(trace: Trace) -> Diagnostic:
    """Build the finding of a trace that has tokens and no states."""
    return TOO_FEW_ROWS.found(
        "The trace has no states to compare with.",
        where=str(trace.folder),
        seen=f"{trace.token_count} traced tokens, no h[k] of them",
        leads_to="Cannot tell.",
        mend=_mend_trace(trace),
    )


def too_few_rows(
    dump: Path, trace: Trace, reading: Reading, measured: Measured
) -> list[Diagnostic]:
    """Return why too little could be compared: the dump's fault, the trace's, or both."""
    paired = sum(len(match.rows) for match in reading.matches)
    if paired >= MIN_ROWS:
        sound = max((paired - rows.unusable for rows in measured.slots.values()), default=0)
        found = []
        if sound < MIN_ROWS:
            found.append(_no_numbers(dump, f"{paired} rows, {sound} of them with numbers"))
        if measured.not_finite:
            found.append(not_finite(trace, measured.not_finite, paired))
        return found or [_no_common_numbers(trace, paired)]
    near = closest((match.sample for match in reading.matches), trace)
    few = TOO_FEW_ROWS.found(
        f"{paired} rows of the dump are in the trace; {MIN_ROWS} are needed.",
        where=str(dump),
        seen=f"{trace.token_count} traced tokens in {len(trace.sequences)} prompts. "
        + (_say_closest(near) if near else ""),
        leads_to="Cannot tell.",
        mend="Trace texts that are in the dump, from their beginning: --server URL sends them. A "
        "server that has them in its prefix cache does not run them again: restart it.",
    )
    return [few]


def _no_numbers(dump: Path, seen: str) -> Diagnostic:
    return TOO_FEW_ROWS.found(
        "Nearly all rows of the dump that are looked at are not finite, or zeros.",
        where=str(dump),
        seen=seen,
        leads_to="Nothing can be said about them.",
        mend="See how the dump was written: float16 overflows on large activations.",
    )


def _no_common_numbers(trace: Trace, paired: int) -> Diagnostic:
    return TOO_FEW_ROWS.found(
        "Nearly all rows of the trace that belong to the dump's are zeros.",
        where=str(trace.folder),
        seen=f"{paired} rows",
        leads_to="Nothing can be compared with them.",
        mend="See that the traced server answers sensibly, then record again.",
    )


def as_dict(found: Identification) -> dict[str, Any]:
    """Return an identification in the shape of the JSON output."""
    facts = found.trace.facts
    naming = naming_of(found)
    return {
        "schema": SCHEMA,
        "dump": found.dump,
        "written_by": found.written_by,
        "trace": {
            "folder": str(found.trace.folder),
            "rank": facts.rank,
            "sglang": facts.sglang,
            "target": facts.target,
            "num_layers": facts.num_layers,
            "hidden_size": facts.hidden_size,
            "states": list(traced_states(found.trace)),
            "wired": list(facts.wired),
        },
        "matched_by": [how.value for how in found.how],
        "samples": found.used,
        "samples_not_traced": found.unmatched,
        "tensors": [_slot_dict(slot, facts.num_layers) for slot in found.slots],
        "verdict": None if naming is None else _naming_dict(naming, facts.num_layers),
        "findings": [finding.as_dict() for finding in found.findings],
    }


def _slot_dict(slot: DumpedSlot, num_layers: int) -> dict[str, Any]:
    decision = slot.decision
    result: dict[str, Any] = {
        "name": slot.name,
        "dtype": slot.rows.dtype,
        "rows": slot.rows.rows,
        "rows_left_out": slot.rows.unusable,
        "outcome": Outcome.UNKNOWN.value if decision is None else decision.outcome.value,
        "is": None,
        "state": None,
        "nearest": None,
        "runner_up": None,
        "margin": None,
        "noise": None,
    }
    if decision is None:
        return result
    if decision.outcome is Outcome.IDENTIFIED:
        result["is"] = name_candidate(decision.candidate, num_layers)
        result["state"] = decision.candidate.state if decision.is_state else None
    result["nearest"] = _score_dict(decision.best, num_layers)
    if decision.runner_up is not None:
        result["runner_up"] = _score_dict(decision.runner_up, num_layers)
        result["margin"] = decision.margin
    result["noise"] = decision.noise
    return result


def _score_dict(score: Score, num_layers: int) -> dict[str, Any]:
    return {
        "is": name_candidate(score.candidate, num_layers),
        "kind": score.candidate.kind.value,
        "state": score.candidate.state,
        "cosine": score.cosine,
        "error": score.error,
    }


def _naming_dict(naming: Naming, num_layers: int) -> dict[str, Any]:
    return {
        "states": list(naming.states),
        "ids": {c.value: list(ids) for c, ids in naming.by_convention.items()},
        "stock_sglang": [
            {"ids": None if group.ids is None else list(group.ids), "sglang": list(group.versions)}
            for group in naming.stock
        ],
        "default_states": naming.is_default,
        "pin": pin_command(naming.states, num_layers),
    }


def verdict_lines(found: Identification) -> list[str]:
    """Return the verdict for people, a line each; empty without one."""
    naming = naming_of(found)
    if naming is None:
        return []
    facts = found.trace.facts
    names = ", ".join(slot.name for slot in inputs_of(found))
    lines = [f"The drafter's states: {show(naming.states)}  ({names})"]
    for convention, ids in naming.by_convention.items():
        lines.append(f"  as {convention.value} ids: {list(ids)}")
    if naming.is_default:
        lines.append("  SGLang captures these by default, when the config has no ids")
    for group in naming.stock:
        what = "no ids; serve with the plugin" if group.ids is None else f"ids {list(group.ids)}"
        lines.append(f"  stock SGLang {spans(group.versions)}: {what}")
    lines.append(
        f"  with the plugin, every release: {pin_command(naming.states, facts.num_layers)}"
    )
    return lines


def _slot_findings(slot: DumpedSlot, found: Identification) -> Iterator[Diagnostic]:
    facts = found.trace.facts
    where = f"{found.dump}, {slot.name}"
    total = slot.rows.rows + slot.rows.unusable
    if slot.rows.unusable > _UNUSABLE_PART * total:
        yield NOT_FINITE.found(
            "Rows of the dump are not finite, or all zeros.",
            where=where,
            seen=f"{slot.rows.unusable} of {total} rows",
            leads_to="They are left out here. In training they would spoil the drafter.",
            mend="Dump again in the target's own dtype, bfloat16.",
        )
    decision = slot.decision
    if decision is None or slot.rows.rows < MIN_ROWS:
        yield NOT_IDENTIFIED.found(
            "Too few rows of this tensor could be compared.",
            where=where,
            seen=f"{slot.rows.rows} rows",
            leads_to="Cannot tell what it is.",
            mend="See how the dump was written.",
        )
    elif decision.outcome is Outcome.UNKNOWN:
        yield NOT_IDENTIFIED.found(
            "This is none of the traced states.",
            where=where,
            seen=f"nearest: {_say_score(decision.best, facts.num_layers)}",
            leads_to="Cannot tell what it is." + _say_missing(found.trace),
            mend=_mend_trace(found.trace) or "See what the dump's code wrote there.",
        )
    elif decision.outcome is Outcome.AMBIGUOUS:
        yield _ambiguous(where, decision, found)
    elif decision.is_noisy:
        yield NOISY.found(
            f"{name_candidate(decision.candidate, facts.num_layers)} is found, with noise.",
            where=where,
            seen=f"{_say_score(decision.best, facts.num_layers)}; rounding to bfloat16 is about "
            f"{FLOOR:.1%}",
            leads_to="The dump was made with other numbers than the traced server's: quantised, or "
            "of a sibling of the model.",
            mend="Serve the model that was dumped, or dump the one that is served.",
        )


def _ambiguous(where: str, decision: Decision, found: Identification) -> Diagnostic:
    layers = found.trace.facts.num_layers
    seen = f"{_say_score(decision.best, layers)}"
    if decision.runner_up is not None:
        seen += f"; {_say_score(decision.runner_up, layers)}"
    if decision.untraced:
        return AMBIGUOUS.found(
            f"This may be h[{decision.candidate.state}], or a neighbour that was not traced.",
            where=where,
            seen=f"{seen}; not traced: {show(decision.untraced)}",
            leads_to="Cannot tell.",
            mend=_mend_trace(found.trace),
        )
    return AMBIGUOUS.found(
        "Two candidates are too alike to tell.",
        where=where,
        seen=f"{seen}; margin {decision.margin:.2%}, noise {decision.noise:.2%}",
        leads_to="Cannot tell.",
        mend="Trace and dump with the same weights, dtype and kernels, so that there is less noise "
        "than between the two.",
    )


def _nothing_fits(found: Identification) -> Diagnostic:
    trace = found.trace
    layers = trace.facts.num_layers
    seen = [
        f"{slot.name}: nearest {_say_score(slot.decision.best, layers)}"
        for slot in found.slots[:6]
        if slot.decision is not None
    ]
    by = ", ".join(how.value for how in found.how)
    doubt = _say_missing(trace)
    if How.PREFIX not in found.how and How.NEAREST not in found.how:
        doubt += " Its texts begin unlike the traced ones, and states depend on all that is before."
    return NOTHING_FITS.found(
        "Nothing in the dump is a traced state of this target.",
        where=found.dump,
        seen=f"{'; '.join(seen)} ({_rows(found)} rows, matched by {by}); at most {LOOSE:.0%} is "
        "taken for the same state",
        leads_to="It is the dump of another model or of other weights." + doubt,
        mend=_mend_trace(trace) or "Trace the model that the dump was made with.",
    )


def _not_servable(found: Identification) -> Iterator[Diagnostic]:
    facts = found.trace.facts
    inputs = inputs_of(found)
    if not inputs or not all(_is_identified(slot) for slot in inputs):
        return
    where = f"{found.dump}, {', '.join(slot.name for slot in inputs)}"
    kinds = [slot.decision.candidate for slot in inputs if slot.decision]
    seen = ", ".join(name_candidate(candidate, facts.num_layers) for candidate in kinds)
    states = [candidate.state for candidate in kinds]
    newest = RELEASES[NEWEST].reachable(facts.num_layers)
    if any(candidate.kind is not Kind.STATE for candidate in kinds):
        reason = "What a norm makes of a state is captured by no release."
    elif any(state not in newest for state in states):
        reason = f"{show([s for s in states if s not in newest])} is captured by no release."
    elif len(set(states)) < len(states):
        reason = "A state is there twice, and SGLang captures it once."
    elif states != sorted(states):
        reason = f"SGLang concatenates them as {show(sorted(states))}."
    else:
        return
    yield NOT_SERVABLE.found(
        "SGLang cannot feed a drafter these states in this order.",
        where=where,
        seen=seen,
        leads_to=f"A drafter trained on them as they are would be fed something else. {reason}",
        mend="If the training took a part of them, or reordered them, pin those that it took; "
        "otherwise train on states that are captured, in ascending order.",
    )


def _is_identified(slot: DumpedSlot) -> bool:
    return slot.decision is not None and slot.decision.outcome is Outcome.IDENTIFIED


def _rows(found: Identification) -> int:
    return max((slot.rows.rows for slot in found.slots), default=0)


def _say_score(score: Score, num_layers: int) -> str:
    return (
        f"{name_candidate(score.candidate, num_layers)}, cosine {score.cosine:.4f}, "
        f"relative error {score.error:.2%}"
    )


def _say_missing(trace: Trace) -> str:
    said = ""
    missing = untraced_states(trace)
    if missing:
        said = f" Or a state that was not traced: {_some(missing)}."
    if trace.facts.partial:
        said += f" (In the trace {_some(trace.facts.partial)} may be one rank's share of a sum.)"
    return said


def _mend_trace(trace: Trace) -> str:
    if not untraced_states(trace):
        return ""
    return f"Record every state: {VARIABLE}='FOLDER?states=all'."


def _some(states: Iterable[State]) -> str:
    listed = list(states)
    return show(listed[:6]) + (f" and {len(listed) - 6} more" if len(listed) > 6 else "")


def _say_closest(near: Closest) -> str:
    tokens, traced = near.sample.tokens or (), near.sequence.tokens
    said = (
        f"Closest: {near.sample.name} begins with {_ids(tokens)}, a traced prompt with "
        f"{_ids(traced)}; they agree on {near.agreed} tokens."
    )
    if near.lag is not None:
        more = "more" if near.lag > 0 else "fewer"
        said += (
            f" The dump's text is the same but for {abs(near.lag)} tokens {more} at its beginning: "
            "another chat template, or a token that begins every text."
        )
    return said


def _ids(tokens: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, tokens[:8]))}{', ...' if len(tokens) > 8 else ''}]"
