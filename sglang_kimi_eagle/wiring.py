"""Decide which states a drafter gets, and say why.

Resolution goes from the strongest evidence to the weakest: an override by the user, the drafter's
own declaration, the catalogue of known drafters, a mark left by the trainer, the one reading that
every SGLang release shares.  What is left is ambiguous, and says so.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.releases import RELEASES, Release, spans
from sglang_kimi_eagle.states import (
    IDS_KEY,
    MAX_STATES,
    Convention,
    LayerId,
    States,
    default_states,
    show,
    states_of,
)

DECLARATION_KEY = "layer_id_convention"
NESTED = f"eagle_config.{IDS_KEY}"

IDS_TYPE = rule(
    "KE201",
    "layer-ids-type",
    Severity.ERROR,
    "The layer ids are not a list of whole numbers. SGLang swallows what goes wrong while it reads "
    "them and captures its default states, or fails after all weights are loaded.",
    example='{"eagle_config": {"eagle_aux_hidden_state_layer_ids": "2,30,58"}}',
)
IDS_EMPTY = rule(
    "KE202",
    "layer-ids-empty",
    Severity.ERROR,
    "The list of layer ids is empty, so the target would hand nothing to the drafter. Empty does "
    "not mean default: for SGLang's default states the key is left out.",
    example='{"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}',
)
IDS_NEGATIVE = rule(
    "KE203",
    "layer-ids-negative",
    Severity.ERROR,
    "A negative id is no layer. `[-1, 2, 30]` is the famous wrong fix for a drafter that was "
    "trained on h[3], h[31], h[59]: the embedding had never been captured in training, and the "
    "drafter accepted 19 % of its tokens until its ids were `[2, 30, 58]` again.",
    example='{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 2, 30]}}',
)
IDS_REPEATED = rule(
    "KE204",
    "layer-ids-repeated",
    Severity.ERROR,
    "An id stands in the list twice. SGLang captures each layer once, so that the drafter gets "
    "fewer states than its `fc` expects.",
    example='{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 2, 58]}}',
)
IDS_UNSORTED = rule(
    "KE205",
    "layer-ids-unsorted",
    Severity.ERROR,
    "The engine concatenates the captured states in ascending layer order, whatever the order of "
    "the list. A drafter trained on another order would be fed its states in the wrong slots.",
    example='{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [58, 30, 2]}}',
)
UNREACHABLE = rule(
    "KE206",
    "state-unreachable",
    Severity.ERROR,
    "The running release cannot capture one of the states. SGLang itself skips it without a word "
    "and fails later on the shape of `fc`, or not at all.",
    example='{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 61]}}',
)
STATE_COUNT = rule(
    "KE207",
    "state-count",
    Severity.ERROR,
    "The override names more or fewer states than the drafter was built for.",
    example="SGLANG_KIMI_EAGLE_STATES=3,31 with a drafter of three states",
)
NOT_CAPTURED = rule(
    "KE208",
    "states-not-used",
    Severity.WARNING,
    "`use_aux_hidden_state` is false, so SGLang captures no intermediate states at all and feeds "
    "the drafter the target's last hidden state. Ids beside it have no effect.",
    example='{"eagle_config": {"use_aux_hidden_state": false, '
    '"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}}',
)
OVERRIDE_UNUSED = rule(
    "KE209",
    "override-unused",
    Severity.ERROR,
    "States were asked for by environment variable, but the drafter's `use_aux_hidden_state` is "
    "false: SGLang never asks the target to capture anything.",
    example="SGLANG_KIMI_EAGLE_STATES=3,31,59 with use_aux_hidden_state: false",
)
AMBIGUOUS = rule(
    "KE210",
    "wiring-ambiguous",
    Severity.WARNING,
    "The ids name different hidden states to different SGLang releases and trainers, and nothing "
    "in the drafter says which are meant. The release's own reading is kept; if it is the wrong "
    "one, the drafter drafts from states that it never saw in training.",
    example='{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}}',
)
TOP_LEVEL_ONLY = rule(
    "KE211",
    "layer-ids-top-level-only",
    Severity.WARNING,
    "SGLang reads layer ids below `eagle_config` only. Ids at the top level of the config (where "
    "other engines read them, as h[k]) are ignored, and the default states are captured.",
    example='{"eagle_aux_hidden_state_layer_ids": [3, 31, 59]}',
)
LEVELS_DIFFER = rule(
    "KE212",
    "layer-ids-differ",
    Severity.WARNING,
    "The config holds two lists of layer ids that differ. SGLang reads the one below "
    "`eagle_config`; other engines read the one at the top level.",
    example='{"eagle_aux_hidden_state_layer_ids": [3, 31, 59], '
    '"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}}',
)
BAD_DECLARATION = rule(
    "KE213",
    "declaration-unknown",
    Severity.ERROR,
    "`eagle_config.layer_id_convention` has a value that is no convention, so that it declares "
    "nothing.",
    example='{"eagle_config": {"layer_id_convention": "output"}}',
)
OVERRIDDEN = rule(
    "KE214",
    "declaration-overridden",
    Severity.NOTE,
    "The states given by environment variable are not those that the drafter's config asks for.",
    example="SGLANG_KIMI_EAGLE_STATES=2,30,58 with a drafter that declares h[3], h[31], h[59]",
)
UNDECLARED = rule(
    "KE215",
    "wiring-undeclared",
    Severity.NOTE,
    "The drafter declares no convention, but every SGLang release reads its ids as the same "
    "states. One trainer is known to mean other states by such a list "
    "(Model-Optimizer's vLLM dump, Model-Optimizer#2410): declare the convention to be sure.",
    example='{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57]}}',
)


IDS_TOO_MANY = rule(
    "KE216",
    "layer-ids-too-many",
    Severity.ERROR,
    f"The list has more than {MAX_STATES} ids. An EAGLE-3 drafter takes a few states, mostly "
    "three: such a list is a mistake, and every state costs its width in `fc` and in memory.",
    example='{"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2, 3, ...]}}',
)


_NO_LAYER = 1_000_000
"""A number that no model has a layer of: such ids are not numbers of layers at all."""


class Reason(str, enum.Enum):
    """The evidence that decided a wiring."""

    OVERRIDE = "override"
    DECLARATION = "declaration"
    KNOWN = "known drafter"
    PROVENANCE = "provenance"
    DEFAULT = "engine default"
    AGREED = "every release agrees"
    AMBIGUOUS = "ambiguous"
    NOT_CAPTURED = "use_aux_hidden_state is false"
    REFUSED = "refused"


class Evidence(NamedTuple):
    """What somebody knows about the meaning of a drafter's ids."""

    convention: Convention
    source: str
    """Where it is known from, for the log."""


class Wiring(NamedTuple):
    """The states that a drafter gets on one release, with the reason."""

    states: States | None
    """What is captured with the plugin; None when nothing is captured or the drafter is refused."""
    stock: States | None
    """What the unmodified release captures; None when it captures nothing."""
    reason: Reason
    explanation: str
    findings: tuple[Diagnostic, ...] = ()

    @property
    def label(self) -> str:
        """The states and the reason in one line."""
        states = show(self.states) if self.states else "no states"
        return f"{states} ({self.reason.value}: {self.explanation})"


class DeclaredIds(NamedTuple):
    """What a drafter's config says about its states, as far as SGLang would read it."""

    ids: tuple[LayerId, ...] | None
    """The ids below ``eagle_config``; None when missing, null or unreadable."""
    top_level: tuple[LayerId, ...] | None
    use_states: bool
    convention: Convention | None
    findings: tuple[Diagnostic, ...]

    @property
    def effective(self) -> tuple[LayerId, ...] | None:
        """The ids a declaration speaks of: the nested ones, else those at the top level."""
        return self.ids if self.ids is not None else self.top_level


def read_ids(config: Mapping[str, Any], where: str = "config.json") -> DeclaredIds:
    """Read ids, ``use_aux_hidden_state`` and the declaration out of a drafter's config."""
    eagle_config = config.get("eagle_config")
    nested: Mapping[str, Any] = eagle_config if isinstance(eagle_config, Mapping) else {}
    findings: list[Diagnostic] = []
    ids = _parse_ids(nested.get(IDS_KEY), f"{where}, {NESTED}", findings)
    top_level = _parse_ids(config.get(IDS_KEY), f"{where}, {IDS_KEY}", findings)
    convention: Convention | None = None
    declared = nested.get(DECLARATION_KEY)
    if declared is not None:
        try:
            convention = Convention(declared)
        except ValueError:
            names = " or ".join(repr(known.value) for known in Convention)
            findings.append(
                BAD_DECLARATION.found(
                    f"eagle_config.{DECLARATION_KEY} must be {names}.",
                    where=f"{where}, eagle_config.{DECLARATION_KEY}",
                    seen=_clip(declared),
                    leads_to="The ids would be read as if nothing were declared.",
                    mend='"layer_output" when id k is the output of layer k, h[k+1]; '
                    '"layer_input" when it is the input of layer k, h[k].',
                )
            )
    if convention is None and None not in (ids, top_level) and ids != top_level:
        findings.append(
            LEVELS_DIFFER.found(
                f"{IDS_KEY} differs between the top level and eagle_config.",
                where=where,
                seen=f"top level {list(top_level or ())}, eagle_config {list(ids or ())}",
                leads_to="SGLang takes those of eagle_config; another engine takes the others.",
                mend=f"Say what SGLang's are: {_pin('layer_output')} (or layer_input).",
            )
        )
    return DeclaredIds(
        ids=ids,
        top_level=top_level,
        # SGLang takes any truthy value (``eagle_config.get("use_aux_hidden_state", True)``).
        use_states=bool(nested.get("use_aux_hidden_state", True)),
        convention=convention,
        findings=tuple(findings),
    )


def resolve(
    config: Mapping[str, Any],
    *,
    num_layers: int,
    release: Release,
    override: States | None = None,
    known: Evidence | None = None,
    provenance: Evidence | None = None,
    readings: Mapping[str, Release] = RELEASES,
    where: str = "config.json",
) -> Wiring:
    """Resolve the states that the drafter of ``config`` gets on ``release``.

    Args:
        config: the drafter's decoded ``config.json``.
        num_layers: decoder layers of the target (61 for Kimi-K2.5).
        release: the behaviour of the SGLang that will serve it.
        override: states asked for by the user, in ascending order.
        known: what the catalogue knows of this very drafter.
        provenance: what a mark left by the trainer proves.
        readings: who reads such ids how: the releases of the table, or what an adapter says.
        where: the config's name in messages.
    """
    declared = read_ids(config, where)
    findings = list(declared.findings)
    stock = release.stock_states(declared.ids, num_layers) if declared.use_states else None
    if any(finding.severity is Severity.ERROR for finding in findings):
        if override is None:
            return Wiring(None, stock, Reason.REFUSED, findings[0].message, tuple(findings))
        # The override replaces whatever the config says about ids.
        findings = [finding for finding in findings if finding.severity is not Severity.ERROR]

    if not declared.use_states:
        return _not_captured(declared, override, findings, where)

    states, reason, explanation = _decide(
        declared, num_layers, release, override, known, provenance, readings, findings, where
    )
    expected = len(declared.effective) if declared.effective else 3
    if override is not None and len(override) != expected:
        findings.append(
            STATE_COUNT.found(
                f"States that were asked for: {len(override)}; the drafter takes {expected}.",
                where=f"override, {where}",
                seen=show(override),
                leads_to="The drafter's fc cannot take a tensor of that width.",
                mend=f"Name {expected} states.",
            )
        )
    findings += _shape_findings(states, num_layers, release, override is not None, where)
    if any(finding.severity is Severity.ERROR for finding in findings):
        first = next(finding for finding in findings if finding.severity is Severity.ERROR)
        return Wiring(None, stock, Reason.REFUSED, first.message, tuple(findings))
    return Wiring(states, stock, reason, explanation, tuple(findings))


def _decide(
    declared: DeclaredIds,
    num_layers: int,
    release: Release,
    override: States | None,
    known: Evidence | None,
    provenance: Evidence | None,
    readings: Mapping[str, Release],
    findings: list[Diagnostic],
    where: str,
) -> tuple[States, Reason, str]:
    """Walk down the evidence; append warnings and notes to ``findings``."""
    ids = declared.effective
    if override is not None:
        if declared.convention and ids and states_of(ids, declared.convention) != override:
            findings.append(
                OVERRIDDEN.found(
                    "The override replaces the states that the drafter declares.",
                    where=where,
                    seen=f"declared {show(states_of(ids, declared.convention))}, "
                    f"override {show(override)}",
                    leads_to=f"{show(override)} are captured.",
                    mend="Unset SGLANG_KIMI_EAGLE_STATES to follow the declaration.",
                )
            )
        return override, Reason.OVERRIDE, "states given by the user"
    if ids is None:
        return (
            default_states(num_layers),
            Reason.DEFAULT,
            f"no layer ids, so h[2], h[n // 2], h[n - 3] of n = {num_layers}",
        )
    for convention, reason, source in _evidence(declared.convention, known, provenance):
        return (
            states_of(ids, convention),
            reason,
            f"ids {list(ids)} are {convention.value}, {source}",
        )
    if declared.ids is None:
        findings.append(_top_level_only(ids, num_layers, where))
        return (
            default_states(num_layers),
            Reason.AMBIGUOUS,
            f"ids {list(ids)} stand at the top level only; this release's own reading is kept",
        )
    own = release.stock_states(ids, num_layers)
    if all(other.stock_states(ids, num_layers) == own for other in readings.values()):
        findings.append(
            UNDECLARED.found(
                f"ids {list(ids)} carry no declaration; every release reads them as {show(own)}.",
                where=f"{where}, {NESTED}",
                seen=str(list(ids)),
                leads_to=f"{show(own)} are captured.",
                mend=_pin("layer_output"),
            )
        )
        return own, Reason.AGREED, f"ids {list(ids)} are the same states to every release"
    findings.append(_ambiguous(ids, release, num_layers, readings, where))
    return own, Reason.AMBIGUOUS, f"ids {list(ids)}: this release's own reading is kept"


def _evidence(
    declared: Convention | None, known: Evidence | None, provenance: Evidence | None
) -> list[tuple[Convention, Reason, str]]:
    """List the evidence for a convention, strongest first."""
    found: list[tuple[Convention, Reason, str]] = []
    if declared:
        found.append((declared, Reason.DECLARATION, f"as eagle_config.{DECLARATION_KEY} says"))
    if known:
        found.append((known.convention, Reason.KNOWN, known.source))
    if provenance:
        found.append((provenance.convention, Reason.PROVENANCE, provenance.source))
    return found


def _not_captured(
    declared: DeclaredIds, override: States | None, findings: list[Diagnostic], where: str
) -> Wiring:
    location = f"{where}, eagle_config.use_aux_hidden_state"
    if override is not None:
        findings.append(
            OVERRIDE_UNUSED.found(
                "The override asks for states, the drafter for none.",
                where=location,
                seen=f"use_aux_hidden_state false, override {show(override)}",
                leads_to="SGLang never captures: the override would have no effect.",
                mend="Set eagle_config.use_aux_hidden_state to true, or unset the override.",
            )
        )
        return Wiring(None, None, Reason.REFUSED, findings[-1].message, tuple(findings))
    if declared.effective is not None:
        findings.append(
            NOT_CAPTURED.found(
                "Layer ids are given, but use_aux_hidden_state is false.",
                where=location,
                seen=f"ids {list(declared.effective)}",
                leads_to="No states are captured; the drafter gets the target's last hidden state.",
                mend="Set eagle_config.use_aux_hidden_state to true if the drafter was trained on "
                "intermediate states (fc takes several hidden sizes), else drop the ids.",
            )
        )
    return Wiring(None, None, Reason.NOT_CAPTURED, "the drafter takes no states", tuple(findings))


def _ambiguous(
    ids: Sequence[LayerId],
    release: Release,
    num_layers: int,
    readings: Mapping[str, Release],
    where: str,
) -> Diagnostic:
    own = release.stock_states(ids, num_layers)
    by_states: dict[States, list[str]] = {}
    for reader, other in readings.items():
        by_states.setdefault(other.stock_states(ids, num_layers), []).append(reader)
    of_the_table = all(reader in RELEASES for reader in readings)
    read = "; ".join(
        f"{spans(readers) if of_the_table else ', '.join(readers)} captures {show(states)}"
        for states, readers in by_states.items()
    )
    inputs, outputs = (states_of(ids, c) for c in (Convention.LAYER_INPUT, Convention.LAYER_OUTPUT))
    return AMBIGUOUS.found(
        f"ids {list(ids)} can mean {show(inputs)} or {show(outputs)}; the drafter does not say.",
        where=f"{where}, {NESTED}",
        seen=f"{list(ids)}, no eagle_config.{DECLARATION_KEY}; "
        f"{'stock SGLang ' if of_the_table else ''}{read}",
        leads_to=f"{show(own)} are captured, as "
        + (
            f"SGLang {release.version} would without the plugin"
            if of_the_table
            else "this package's adapter reads ids of this target"
        )
        + ". If the drafter was trained on the others, it drafts from states it never saw.",
        mend=f"{_pin('layer_output')}  (trained on {show(outputs)}) or with --convention "
        f"layer_input  (trained on {show(inputs)}); for a "
        "read-only checkpoint set SGLANG_KIMI_EAGLE_STATES to the states.",
    )


def _top_level_only(ids: Sequence[LayerId], num_layers: int, where: str) -> Diagnostic:
    inputs, outputs = (states_of(ids, c) for c in (Convention.LAYER_INPUT, Convention.LAYER_OUTPUT))
    return TOP_LEVEL_ONLY.found(
        f"{IDS_KEY} stands at the top level only, where SGLang does not read it.",
        where=f"{where}, {IDS_KEY}",
        seen=f"{list(ids)}; h[k] in vLLM and speculators ({show(inputs)}), "
        f"h[k+1] if copied from a trainer that counts outputs ({show(outputs)})",
        leads_to=f"Every SGLang release captures its default {show(default_states(num_layers))}.",
        mend=f"{_pin('layer_input')}  (or layer_output), which writes ids and declaration below "
        "eagle_config.",
    )


def _shape_findings(
    states: States, num_layers: int, release: Release, overridden: bool, where: str
) -> list[Diagnostic]:
    """Check order, repetition and range of resolved states."""
    location = "the states asked for" if overridden else f"{where}, {NESTED}"
    findings: list[Diagnostic] = []
    if len(set(states)) != len(states):
        findings.append(
            IDS_REPEATED.found(
                "A state is named twice.",
                where=location,
                seen=show(states),
                leads_to=f"Only {len(set(states))} states would be captured, and the drafter's fc "
                f"takes {len(states)}.",
                mend="Name each state once.",
            )
        )
    elif list(states) != sorted(states):
        findings.append(
            IDS_UNSORTED.found(
                "The states are not in ascending order.",
                where=location,
                seen=show(states),
                leads_to="SGLang concatenates them in ascending layer order, so that the drafter "
                f"would get {show(sorted(states))}.",
                mend="List them in ascending order if the drafter was trained so; otherwise the "
                "columns of fc.weight have to be reordered.",
            )
        )
    reachable = release.reachable(num_layers)
    lost = [state for state in states if state not in reachable]
    if lost:
        findings.append(
            UNREACHABLE.found(
                f"{show(lost)} cannot be captured by SGLang {release.version}.",
                where=location,
                seen=show(states),
                leads_to=f"Stock SGLang fails on it, or goes on with {len(states) - len(lost)} of "
                f"{len(states)} states: {_why_lost(lost[0], num_layers)}.",
                mend=f"Use states between h[{reachable.start}] and h[{reachable.stop - 1}], or a "
                "drafter trained on such states.",
            )
        )
    return findings


def _why_lost(state: int, num_layers: int) -> str:
    if state == 0:
        return "the embedding can be captured from 0.5.14 on"
    if state == num_layers:
        return (
            "SGLang captures the input of a layer, and nothing follows the last layer: its output "
            "is never captured, on any release"
        )
    return f"the target has {num_layers} layers, so states end at h[{num_layers}]"


def _parse_ids(value: object, where: str, findings: list[Diagnostic]) -> tuple[LayerId, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(
        isinstance(item, int) and not isinstance(item, bool) and abs(item) < _NO_LAYER
        for item in value
    ):
        findings.append(
            IDS_TYPE.found(
                "Layer ids must be a list of whole numbers of layers.",
                where=where,
                seen=_clip(value),
                leads_to="SGLang fails after loading all weights, or swallows the error and "
                "captures its default states.",
                mend="Write them as a JSON list, for example [2, 30, 58].",
            )
        )
        return None
    if len(value) > MAX_STATES:
        findings.append(
            IDS_TOO_MANY.found(
                f"{len(value)} layer ids are too many.",
                where=where,
                seen=_clip(value),
                leads_to="The drafter's fc would have to be as many times as wide as the target.",
                mend="List the ids that the drafter was trained with.",
            )
        )
        return None
    if not value:
        findings.append(
            IDS_EMPTY.found(
                "The list of layer ids is empty.",
                where=where,
                seen="[]",
                leads_to="Nothing is captured and the drafter fails on its first forward.",
                mend="List the ids that the drafter was trained with, or remove the key for the "
                "default states.",
            )
        )
        return None
    if min(value) < 0:
        findings.append(
            IDS_NEGATIVE.found(
                f"Layer id {min(value)} is negative.",
                where=where,
                seen=_clip(value),
                leads_to="No layer has that number: SGLang captures fewer states than the drafter "
                "takes, or adds None to the embedding and fails.",
                mend="Write the ids of the training dump. An embedding is h[0]; if the first of "
                "the dumped tensors was taken at capture index 3, it is h[3], id 2 as "
                "layer_output.",
            )
        )
        return None
    return tuple(value)


def _pin(convention: str) -> str:
    return f"sglang-kimi-eagle pin DRAFTER --convention {convention} --output COPY"


def _clip(value: object, limit: int = 120) -> str:
    try:
        text = repr(value) if not isinstance(value, list) else repr(value[:20])
    except ValueError:  # a whole number of thousands of digits
        text = "a huge number"
    return text if len(text) <= limit else text[: limit - 3] + "..."
