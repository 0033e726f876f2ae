"""Coded diagnostics: values, never side effects.  Only the edges print or exit.

A `Rule` is what can go wrong, known by a stable code; a `Diagnostic` is one finding of it: where,
what was seen, what it leads to, and the one change that mends it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

DOCS = "docs/diagnostics"
_LONGEST = 1200
"""Characters of one text of a finding; a path alone may have some thousands."""
REFUSED = 3
"""Exit status of a launch, or of a command, that was refused by an error diagnostic."""


class Severity(str, enum.Enum):
    """How bad a finding is: an error stops a launch, a warning is logged, a note informs."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Rule(NamedTuple):
    """One thing that can go wrong, with its stable code and its documentation."""

    code: str
    name: str
    severity: Severity
    summary: str
    """Why it matters, in one or two sentences of Markdown."""
    example: str = ""
    """The smallest config, tensor list or command that shows it."""

    def found(
        self, message: str, *, where: str = "", seen: str = "", leads_to: str = "", mend: str = ""
    ) -> Diagnostic:
        """Build a finding of this rule."""
        return Diagnostic(self, self.severity, message, where, seen, leads_to, mend)


@dataclass(frozen=True)
class Diagnostic:
    """One finding of a rule."""

    rule: Rule
    severity: Severity
    message: str
    where: str = ""
    """File, and key or tensor, or the launch argument."""
    seen: str = ""
    leads_to: str = ""
    mend: str = ""

    def __post_init__(self) -> None:
        for name in ("message", "where", "seen", "leads_to", "mend"):
            object.__setattr__(self, name, printable(getattr(self, name), _LONGEST))

    @property
    def code(self) -> str:
        """The stable code of the rule."""
        return self.rule.code

    @property
    def anchor(self) -> str:
        """The documentation page of the rule."""
        return f"{DOCS}/{self.code}.md"

    def silenced_by(self, codes: Collection[str]) -> bool:
        """Tell whether a list of codes to ignore covers this finding.

        Errors about the installation, the drafter's files and its wiring (KE0, KE1, KE2) stay:
        without what they are about, the plugin cannot know which states to capture.
        """
        needed = self.severity is Severity.ERROR and self.code[:3] in ("KE0", "KE1", "KE2")
        return bool({self.code, self.code.upper()} & set(codes)) and not needed

    def promoted(self) -> Diagnostic:
        """Return the same finding as an error when it is a warning (strict mode)."""
        if self.severity is Severity.WARNING:
            return replace(self, severity=Severity.ERROR)
        return self

    def as_dict(self) -> dict[str, str]:
        """Return the finding in the shape of the JSON outputs."""
        return {
            "code": self.code,
            "name": self.rule.name,
            "severity": self.severity.value,
            "message": self.message,
            "where": self.where,
            "seen": self.seen,
            "leads_to": self.leads_to,
            "mend": self.mend,
            "docs": self.anchor,
        }

    def render(self) -> str:
        """Format the finding as plain text of several lines."""
        lines = [f"{self.code} {self.severity.value}: {self.message}"]
        for label, text in (
            ("where", self.where),
            ("seen", self.seen),
            ("leads to", self.leads_to),
            ("mend", self.mend),
            ("more", f"sglang-kimi-eagle doctor --explain {self.code}"),
        ):
            if text:
                lines.append(f"  {label + ':':<10}{text}")
        return "\n".join(lines)


def printable(text: str, limit: int = 400) -> str:
    """Escape control characters and cut to ``limit``, for everything that others have named.

    Names and values of a checkpoint must not forge lines, move a cursor, or flood a terminal.
    """
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "replace").decode()
        for letter in text[: limit + 1]
    )
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


_RULES: dict[str, Rule] = {}


def rule(code: str, name: str, severity: Severity, summary: str, example: str = "") -> Rule:
    """Declare a rule.

    Raises:
        ValueError: the code is taken.
    """
    if code in _RULES:
        raise ValueError(f"diagnostic code {code} is declared twice")
    _RULES[code] = declared = Rule(code, name, severity, summary, example)
    return declared


def rules() -> Sequence[Rule]:
    """Return every declared rule, by code."""
    return [_RULES[code] for code in sorted(_RULES)]


def errors(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the findings that stop a launch."""
    return [finding for finding in findings if finding.severity is Severity.ERROR]


class LaunchRefused(SystemExit):
    """Stops the process with exit status 3 after its diagnostics were printed.

    A ``SystemExit``, so that no ``except Exception`` on the way (SGLang has one around every
    plugin function) carries on with a server that would serve a wrong result.
    """

    def __init__(self, findings: Sequence[Diagnostic]) -> None:
        super().__init__(REFUSED)
        self.findings = tuple(findings)
