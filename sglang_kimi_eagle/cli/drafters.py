"""Reading the drafter and the target that a command names."""

from __future__ import annotations

import typer

from sglang_kimi_eagle.checks import Context
from sglang_kimi_eagle.checks.architecture import check_architecture
from sglang_kimi_eagle.cli.output import print_findings
from sglang_kimi_eagle.diagnostics import REFUSED, Diagnostic
from sglang_kimi_eagle.drafter import Drafter, UnreadableDrafter, read_drafter
from sglang_kimi_eagle.releases import NEWEST, RELEASES
from sglang_kimi_eagle.target import UnreadableTarget, read_target

KIMI_LAYERS = 61
"""Decoder layers of Kimi-K2.5, K2.6 and K2.7."""


def open_drafter(location: str, revision: str | None = None) -> Drafter:
    """Read a drafter, or print why not and exit with status 3."""
    try:
        return read_drafter(location, revision)
    except UnreadableDrafter as error:
        print_findings(error.findings)
        raise typer.Exit(REFUSED) from None


def layers_of(target: str | None) -> int:
    """Return the number of layers of ``target``; Kimi-K2.5's when none is named."""
    if target is None:
        return KIMI_LAYERS
    try:
        return read_target(target).num_layers
    except UnreadableTarget as error:
        print_findings(error.findings)
        raise typer.Exit(REFUSED) from None


def no_drafter(checkpoint: Drafter) -> list[Diagnostic]:
    """Return what says that a checkpoint is no EAGLE-3 drafter of any release."""
    return list(check_architecture(Context(checkpoint, None, None, RELEASES[NEWEST])))
