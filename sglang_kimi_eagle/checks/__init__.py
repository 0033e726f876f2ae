"""Coded checks over a drafter, its target, the server's arguments and the release.

A check is a function from a `Context` to findings of its rules.  Other packages add theirs
through `extending`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from sglang_kimi_eagle import extending
from sglang_kimi_eagle.checks.builtin import CHECKS
from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.diagnostics import Diagnostic, rules
from sglang_kimi_eagle.drafter import UnreadableDrafter
from sglang_kimi_eagle.settings import IGNORE, UNKNOWN_CODE, Settings

__all__ = ["Check", "Context", "apply_settings", "run_checks", "unknown_codes"]

Check = Callable[[Context], Iterable[Diagnostic]]
_DECLARATION = re.compile(r'= rule\(\n\s+"(\w+)",')
_MOST_CODES = 10
"""Findings about unknown codes: a list in another format is one mistake."""


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


def unknown_codes(settings: Settings) -> list[Diagnostic]:
    """Return a finding for each code to ignore that nobody declares."""
    if not settings.ignore:
        return []
    # Other packages declare their rules as they are loaded; our own modules are only looked at.
    extending.extensions()
    sources = (path.read_text("utf-8") for path in Path(__file__).parent.parent.rglob("*.py"))
    known = {code for source in sources for code in _DECLARATION.findall(source)}
    known |= {rule.code.upper() for rule in rules()}
    return [
        UNKNOWN_CODE.found(
            "A code to ignore is not known.",
            where=f"environment, {IGNORE}",
            seen=repr(code[:80]),
            leads_to="Nothing is silenced by it.",
            mend="Name codes as they are reported, with commas between them: KE523,KE603.",
        )
        for code in sorted(settings.ignore - known)[:_MOST_CODES]
    ]


def apply_settings(findings: Iterable[Diagnostic], settings: Settings) -> list[Diagnostic]:
    """Drop the silenced findings, and promote warnings in strict mode."""
    silenced = settings.ignore | extending.silenced()
    kept = [finding for finding in findings if not finding.silenced_by(silenced)]
    return [finding.promoted() for finding in kept] if settings.strict else kept
