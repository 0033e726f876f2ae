"""What the commands share: exit statuses, and findings on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from sglang_kimi_eagle.diagnostics import REFUSED, Diagnostic, Severity

OK, WARNINGS, USAGE = 0, 1, 2


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
