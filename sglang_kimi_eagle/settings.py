"""Every environment variable of the plugin, read in one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.states import MAX_STATES, States

if TYPE_CHECKING:
    from sglang_kimi_eagle.tracing.request import TraceRequest

SWITCH = "SGLANG_KIMI_EAGLE"
STATES = "SGLANG_KIMI_EAGLE_STATES"
STRICT = "SGLANG_KIMI_EAGLE_STRICT"
IGNORE = "SGLANG_KIMI_EAGLE_IGNORE"
TRACE = "SGLANG_KIMI_EAGLE_TRACE"
ADAPT = "SGLANG_KIMI_EAGLE_ADAPT"

BAD_SETTING = rule(
    "KE010",
    "bad-setting",
    Severity.ERROR,
    "An environment variable of the plugin has a value that it cannot read. Going on without it "
    "would serve something other than what was asked for.",
    example="SGLANG_KIMI_EAGLE_STATES=3;31;59",
)
UNKNOWN_CODE = rule(
    "KE013",
    "unknown-code",
    Severity.WARNING,
    "`SGLANG_KIMI_EAGLE_IGNORE` names a code that neither this package nor another that extends it "
    "has. Nothing is silenced by it, and the finding that was meant is still reported.",
    example="SGLANG_KIMI_EAGLE_IGNORE=KE611;KE523",
)


@dataclass(frozen=True)
class Settings:
    """The plugin's settings in this process."""

    enabled: bool = True
    """``SGLANG_KIMI_EAGLE`` is not 0."""
    states: States | None = None
    """``SGLANG_KIMI_EAGLE_STATES``: the states to capture, whatever the drafter's config says."""
    strict: bool = False
    """``SGLANG_KIMI_EAGLE_STRICT=1``: warnings stop the launch."""
    ignore: frozenset[str] = frozenset()
    """``SGLANG_KIMI_EAGLE_IGNORE``: codes of findings to silence."""
    trace: TraceRequest | None = None
    """``SGLANG_KIMI_EAGLE_TRACE``: what to record, and where to."""
    adapt: frozenset[str] = frozenset()
    """``SGLANG_KIMI_EAGLE_ADAPT``: target classes of SGLang to serve beside those of adapters."""
    findings: tuple[Diagnostic, ...] = ()
    """What was wrong with the variables themselves."""


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from ``environ`` (default: the process's)."""
    environ = os.environ if environ is None else environ
    findings: list[Diagnostic] = []
    return Settings(
        enabled=_flag(environ, SWITCH, True, findings),
        states=_states(environ, findings),
        strict=_flag(environ, STRICT, False, findings),
        ignore=frozenset(
            code.strip().upper() for code in environ.get(IGNORE, "").split(",") if code.strip()
        ),
        trace=_trace(environ, findings),
        adapt=_class_names(environ, findings),
        findings=tuple(findings),
    )


def switched_off(environ: Mapping[str, str] | None = None) -> bool:
    """Tell whether ``SGLANG_KIMI_EAGLE=0`` switches the plugin off in this process."""
    return not read_settings(environ).enabled


def _flag(environ: Mapping[str, str], name: str, default: bool, findings: list[Diagnostic]) -> bool:
    text = environ.get(name, "").strip().lower()
    if not text:
        return default
    if text in ("0", "false", "off", "no"):
        return False
    if text in ("1", "true", "on", "yes"):
        return True
    findings.append(
        BAD_SETTING.found(
            f"{name} must be 0 or 1.",
            where=f"environment, {name}",
            seen=repr(environ[name]),
            mend=f"Set {name}=0 or {name}=1, or unset it.",
        )
    )
    return default


def _states(environ: Mapping[str, str], findings: list[Diagnostic]) -> States | None:
    text = environ.get(STATES, "").strip()
    if not text:
        return None
    states = parse_states(text)
    if states is None:
        findings.append(
            BAD_SETTING.found(
                f"{STATES} must be states h[k] as whole numbers with commas between them.",
                where=f"environment, {STATES}",
                seen=repr(text),
                mend=f"For the states h[3], h[31], h[59] set {STATES}=3,31,59, or unset it.",
            )
        )
    return states


def _trace(environ: Mapping[str, str], findings: list[Diagnostic]) -> TraceRequest | None:
    text = environ.get(TRACE, "").strip()
    if not text:
        return None
    from sglang_kimi_eagle.tracing.request import BadRequest, parse_request

    try:
        return parse_request(text)
    except BadRequest as problem:
        findings.append(
            BAD_SETTING.found(
                f"{TRACE} cannot be read: {problem}.",
                where=f"environment, {TRACE}",
                seen=repr(text[:200]),
                mend=f"Set {TRACE}='FOLDER?states=all&tokens=4096&ranks=0' (all after FOLDER is "
                "optional), or unset it.",
            )
        )
        return None


def _class_names(environ: Mapping[str, str], findings: list[Diagnostic]) -> frozenset[str]:
    names = [name.strip() for name in environ.get(ADAPT, "").split(",") if name.strip()]
    if all(name.isascii() and name.isidentifier() for name in names):
        return frozenset(names)
    findings.append(
        BAD_SETTING.found(
            f"{ADAPT} must be names of SGLang's model classes with commas between them.",
            where=f"environment, {ADAPT}",
            seen=repr(environ[ADAPT])[:200],
            mend=f"Set, for example, {ADAPT}=Qwen2AudioForConditionalGeneration, or unset it.",
        )
    )
    return frozenset()


def parse_states(text: str) -> States | None:
    """Parse ``3,31,59`` into states; None when it is not such a list."""
    parts = [part.strip() for part in text.split(",")]
    # The bounds keep a huge number, or very many, from being parsed at all.
    if len(parts) > MAX_STATES or not all(
        part.isascii() and part.isdigit() and len(part) <= 6 for part in parts
    ):
        return None
    return tuple(int(part) for part in parts)
