"""Coded checks over a drafter, its target, the server's arguments and the release.

A check is a function from a `Context` to findings of its rules.  Other packages add theirs
through `extending`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sglang_kimi_eagle import extending
from sglang_kimi_eagle.checks.builtin import CHECKS
from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.drafter import UnreadableDrafter
from sglang_kimi_eagle.settings import Settings

__all__ = ["Check", "Context", "apply_settings", "run_checks"]

Check = Callable[[Context], Iterable[Diagnostic]]


def run_checks(context: Context, settings: Settings) -> list[Diagnostic]:
    """Run every check; drop what is silenced, and in strict mode promote warnings.

    A launch of another algorithm with a drafter of its own kind is left alone.
    """
    if context.other_algorithm:
        return []
    extensions = extending.extensions()
    findings = list(context.drafter.findings) if context.drafter is not None else []
    try:
        for check in CHECKS:
            findings += check(context)
    except UnreadableDrafter as problem:
        # A file went away while it was looked at.
        findings += problem.findings
    findings += extensions.findings
    adapter = context.target.adapter if context.target is not None else None
    for added in (*(adapter.checks if adapter is not None else ()), *extensions.checks):
        try:
            found = list(added(context))
            if not all(isinstance(finding, Diagnostic) for finding in found):
                raise TypeError("a check must return diagnostics")
        except Exception as error:
            found = [extending.broken_check(added, error)]
        findings += found
    return apply_settings(findings, settings)


def apply_settings(findings: Iterable[Diagnostic], settings: Settings) -> list[Diagnostic]:
    """Drop the silenced findings, and promote warnings in strict mode."""
    silenced = settings.ignore | extending.silenced()
    kept = [finding for finding in findings if not finding.silenced_by(silenced)]
    return [finding.promoted() for finding in kept] if settings.strict else kept
