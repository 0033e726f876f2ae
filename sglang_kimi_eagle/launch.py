"""Judge a launch from its server arguments alone: before torch, the target or a weight is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_kimi_eagle import catalogue, extending, hub, provenance, upstream
from sglang_kimi_eagle.adapters import KIMI_K25, Adapter, wrappers
from sglang_kimi_eagle.adapters.base import broken_adapter
from sglang_kimi_eagle.checks import Context, apply_settings, run_checks, unknown_codes
from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.drafter import Drafter, UnreadableDrafter, read_drafter
from sglang_kimi_eagle.releases import RELEASES, Release
from sglang_kimi_eagle.server_arguments import ServerArguments
from sglang_kimi_eagle.settings import Settings
from sglang_kimi_eagle.target import Target, UnreadableTarget, read_target, target_of
from sglang_kimi_eagle.wiring import Reason, Wiring, resolve

EAGLE3 = "EAGLE3"
# Names under which people launch an EAGLE-3 drafter by mistake; only checks look at these.
MISTAKEN = frozenset({"EAGLE", "NEXTN"})


@dataclass(frozen=True)
class Verdict:
    """What was found out about one launch."""

    release: Release | None
    """The behaviour of the running SGLang; None when it is not known."""
    wiring: Wiring | None
    """None when the launch is not an EAGLE-3 one, or is refused before the wiring is known."""
    findings: tuple[Diagnostic, ...]


def adapter_for(
    target: Target | None, settings: Settings, installation: upstream.Installation | None
) -> Adapter | None:
    """Return the adapter of a target: a registered one, or that of a wrapper that may be adapted.

    None means that the plugin has nothing to say of launches with this target.
    """
    if target is None:
        return None
    return target.adapter or wrappers.adapter_for(
        target.architecture, settings, installation.version if installation else None
    )


def concerns(arguments: ServerArguments) -> bool:
    """Tell whether the plugin has anything to say of a launch with one of its targets."""
    return arguments.algorithm == EAGLE3 or arguments.algorithm in MISTAKEN


def find_target(arguments: ServerArguments, config: dict[str, Any] | None = None) -> Target | None:
    """Read the target's config; None when it is not on this machine yet, or unreadable.

    SGLang itself reports a target that cannot be read.

    Args:
        arguments: the launch.
        config: what SGLang made of the target's config, for a target that only SGLang can reach.
    """
    try:
        return read_target(arguments.model_path, arguments.revision)
    except UnreadableTarget:
        pass
    try:
        return target_of(config, arguments.model_path) if config is not None else None
    except UnreadableTarget:
        return None


def judge(
    arguments: ServerArguments,
    target: Target,
    settings: Settings,
    installation: upstream.Installation,
    adapter: Adapter = KIMI_K25,
) -> Verdict:
    """Judge a launch that `concerns` the plugin."""
    try:
        inspection = upstream.inspect(installation, adapter, target.architecture, target.config)
        release = inspection.release
        readings = adapter.readings(release) if release is not None else {}
    except Exception as error:
        return Verdict(None, None, (broken_adapter(adapter, error),))
    findings = [*settings.findings, *unknown_codes(settings), *inspection.findings]
    wiring: Wiring | None = None
    if release is not None:
        drafter, unreadable = _drafter_of(arguments)
        if arguments.algorithm == EAGLE3:
            findings += unreadable
        findings += run_checks(
            Context(drafter=drafter, target=target, arguments=arguments, release=release),
            # Strictness is applied once, over all findings.
            dataclasses.replace(settings, strict=False),
        )
        if drafter is not None and arguments.algorithm == EAGLE3:
            wiring = wiring_of(drafter, target.num_layers, release, settings, readings)
            findings += wiring.findings
    findings = apply_settings(findings, settings)
    return Verdict(release, wiring, tuple(findings))


def wiring_of(
    drafter: Drafter,
    num_layers: int,
    release: Release,
    settings: Settings,
    readings: Mapping[str, Release] = RELEASES,
) -> Wiring:
    """Resolve the wiring of a drafter that was read."""
    d2t = drafter.read_tensor("d2t").tobytes() if drafter.can_read("d2t") else None
    return resolve(
        drafter.config,
        num_layers=num_layers,
        release=release,
        override=settings.states,
        known=catalogue.lookup(drafter.config, d2t, extending.known_drafters()),
        provenance=provenance.evidence_of(drafter.config, drafter.tensors),
        readings=readings,
        where=str(drafter.folder / "config.json"),
    )


def _drafter_of(arguments: ServerArguments) -> tuple[Drafter | None, tuple[Diagnostic, ...]]:
    if not arguments.draft_model_path:
        return None, ()
    try:
        hub.fetch(arguments.draft_model_path, arguments.draft_model_revision)
        return read_drafter(arguments.draft_model_path, arguments.draft_model_revision), ()
    except UnreadableDrafter as error:
        return None, error.findings


def log_line(
    verdict: Verdict, added: Iterable[str], version: str, adapter: Adapter = KIMI_K25
) -> str:
    """Say in one line what the plugin does in a process that loads a model."""
    release, wiring = verdict.release, verdict.wiring
    assert release is not None
    names = list(added)
    there = "all three methods" if adapter is KIMI_K25 else "the methods"
    methods = f"added {', '.join(names)}" if names else f"{there} already there"
    mended = [
        text
        for has_it, text in (
            (release.graphs_reset_ids, "graphs captured with default ids"),
            (release.partial_sums, "partial sums under fused all-reduce"),
        )
        if has_it
    ]
    captures = "nothing (not an EAGLE-3 launch)" if wiring is None else wiring.label
    if wiring is not None and wiring.reason is Reason.NOT_CAPTURED:
        captures = "nothing (use_aux_hidden_state is false)"
    target = "" if adapter is KIMI_K25 else f"{adapter.name}; "
    return (
        f"sglang-kimi-eagle {version}: sglang {release.version}; {target}{methods}; "
        f"mended: {', '.join(mended) or 'nothing to mend'}; captures {captures}"
    )
