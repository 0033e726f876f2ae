"""What the commands share: exit statuses, and findings on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sglang_kimi_eagle.diagnostics import REFUSED, Diagnostic, Severity

if TYPE_CHECKING:
    from rich.console import Console

OK, WARNINGS, USAGE = 0, 1, 2
_WIDEST = 240


def status_of(findings: Iterable[Diagnostic]) -> int:
    """Return the exit status for these findings: 3 with errors, 1 with warnings, else 0."""
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return REFUSED
    return WARNINGS if Severity.WARNING in severities else OK


def print_findings(findings: Iterable[Diagnostic]) -> None:
    """Print findings on stderr, one after the other."""
    for finding in findings:
        sys.stderr.write(finding.render() + "\n")


def console() -> Console:
    """Return a console no wider than people read, whatever COLUMNS says: rich pads to the width."""
    from rich.console import Console

    width = min(Console().width, _WIDEST)
    return Console(width=width, highlight=False)
