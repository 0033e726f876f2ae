"""What can be known from outside about the wiring of a server's drafter."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sglang_kimi_eagle.drafter import UnreadableDrafter, read_drafter
from sglang_kimi_eagle.launch import EAGLE3, wiring_of
from sglang_kimi_eagle.releases import NEWEST, OLDEST, RELEASES, Release
from sglang_kimi_eagle.settings import Settings
from sglang_kimi_eagle.states import default_states, show
from sglang_kimi_eagle.target import UnreadableTarget, read_target
from sglang_kimi_eagle.watching.server import Reading
from sglang_kimi_eagle.wiring import Reason, Wiring

KIMI_LAYERS = 61


class Standing(str, enum.Enum):
    """How far a wiring can be trusted."""

    SETTLED = "settled"
    """The states are known, and the server feeds them whether it has the plugin or not."""
    NEEDS_PLUGIN = "needs plugin"
    """The states are known, and fed only if the plugin is loaded in the server."""
    AMBIGUOUS = "ambiguous"
    """The drafter does not say which states it was trained on, or asks for impossible ones."""
    UNKNOWN = "unknown"
    """The drafter is not readable here, or the release not known."""
    NO_STATES = "no states"
    """The drafter takes no intermediate states: there is nothing to be wired."""


@dataclass(frozen=True)
class Evidence:
    """What is known about a wiring, and why."""

    standing: Standing
    text: str
    wiring: Wiring | None = None


def examine(reading: Reading, drafter: str | None, settings: Settings) -> Evidence:
    """Resolve the wiring of the drafter that a server names, as its release would.

    Args:
        reading: what the server says of its launch.
        drafter: where the drafter is on this machine; None for where the server has it.
        settings: of this process, as if the server had been started with the same.
    """
    if reading.algorithm != EAGLE3:
        return Evidence(Standing.NO_STATES, f"algorithm {reading.algorithm} captures no states")
    release = RELEASES.get(reading.version)
    if release is None:
        return Evidence(
            Standing.UNKNOWN, f"release {reading.version} is not one of {OLDEST} - {NEWEST}"
        )
    location = drafter or reading.drafter
    try:
        checkpoint = read_drafter(location, None if drafter else reading.drafter_revision)
        layers = _layers(reading)
        wiring = wiring_of(checkpoint, layers, release, settings)
    except UnreadableDrafter as problem:
        return Evidence(
            Standing.UNKNOWN,
            f"the drafter {location or '(none named)'} cannot be read here: "
            f"{problem.findings[0].message}",
        )
    if wiring.reason is Reason.NOT_CAPTURED:
        return Evidence(Standing.NO_STATES, wiring.explanation, wiring)
    if wiring.reason in (Reason.AMBIGUOUS, Reason.REFUSED):
        return Evidence(Standing.AMBIGUOUS, wiring.explanation, wiring)
    needs = _needs_plugin(reading, release, wiring, layers)
    if needs:
        return Evidence(Standing.NEEDS_PLUGIN, f"{wiring.explanation}; {needs}", wiring)
    return Evidence(Standing.SETTLED, wiring.explanation, wiring)


def _layers(reading: Reading) -> int:
    try:
        return read_target(reading.target).num_layers
    except UnreadableTarget:
        return KIMI_LAYERS


def _needs_plugin(reading: Reading, release: Release, wiring: Wiring, layers: int) -> str:
    """Say what the unmodified release does otherwise; empty when it does the same."""
    if not release.wrapper_methods:
        # It would not serve at all without the plugin or the patch.
        return ""
    if wiring.states != wiring.stock:
        return f"without the plugin {show(wiring.stock or ())} are fed"
    if release.graphs_reset_ids and reading.graphs and wiring.states != default_states(layers):
        return f"without the plugin CUDA graphs feed {show(default_states(layers))}"
    if release.partial_sums and reading.tp_size > 1:
        return "without the plugin partial sums are fed under FlashInfer's fused all-reduce"
    return ""
