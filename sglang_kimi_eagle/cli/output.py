"""What the commands share: exit statuses, and findings on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from sglang_kimi_eagle.diagnostics import REFUSED, Diagnostic, Severity

if TYPE_CHECKING:
    from rich.console import Console

OK, WARNINGS, USAGE = 0, 1, 2
_NARROWEST, _WIDEST = 20, 240


def status_of(findings: Iterable[Diagnostic]) -> int:
    """Return the exit status for these findings: 3 with errors, 1 with warnings, else 0."""
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return REFUSED
    return WARNINGS if Severity.WARNING in severities else OK


def print_findings(findings: Iterable[Diagnostic]) -> None:
    """Print findings on stderr, one after the other."""
    for finding in findings:
        # Not sys.stderr itself, which is None when the shell has closed it.
        typer.echo(finding.render(), err=True)


def console() -> Console:
    """Return a console as wide as people read, whatever COLUMNS says: rich pads to the width."""
    from rich.console import Console

    width = max(_NARROWEST, min(Console().width, _WIDEST))
    return Console(width=width, highlight=False)
