"""``sglang-kimi-eagle doctor``: the checks of a launch without launching anything."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import typer

from sglang_kimi_eagle import launch, upstream
from sglang_kimi_eagle.adapters import KIMI_K25, Adapter
from sglang_kimi_eagle.adapters.wrappers import not_served
from sglang_kimi_eagle.checks import Context, apply_settings, run_checks, unknown_codes
from sglang_kimi_eagle.checks.launch import check_open_backend
from sglang_kimi_eagle.cli.drafters import KIMI_LAYERS
from sglang_kimi_eagle.cli.output import USAGE, console, status_of
from sglang_kimi_eagle.cli.pasted import without_program
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, printable
from sglang_kimi_eagle.drafter import Drafter, UnreadableDrafter, read_drafter
from sglang_kimi_eagle.drafter.problems import NOT_FOUND
from sglang_kimi_eagle.environment import Environment, survey
from sglang_kimi_eagle.releases import NEWEST, OLDEST, RELEASES, Release
from sglang_kimi_eagle.server_arguments import BadCommandLine, ServerArguments
from sglang_kimi_eagle.settings import SWITCH, Settings, read_settings
from sglang_kimi_eagle.target import Target, UnreadableTarget, read_target
from sglang_kimi_eagle.wiring import Wiring

_OFF = f"no: switched off by {SWITCH}=0"
SCHEMA = 1
"""Of the JSON output; described in docs/doctor.md."""


@dataclass(frozen=True)
class Examination:
    """What was looked at, and what was found."""

    drafter: str
    target: str | None
    """What was given for it, read or not."""
    target_problem: str
    """Why nothing was compared with the target; empty when something was."""
    release: Release
    installed: bool
    """The release is the installed one, not one that was named or assumed."""
    switched_off: bool
    """The plugin would do nothing in this launch."""
    wiring: Wiring | None
    findings: tuple[Diagnostic, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the examination in the shape of the JSON output."""
        wiring = self.wiring
        return {
            "schema": SCHEMA,
            "drafter": self.drafter,
            "target": self.target,
            "sglang": {"version": self.release.version, "installed": self.installed},
            "switched_off": self.switched_off,
            "wiring": None
            if wiring is None
            else {
                "states": None if wiring.states is None else list(wiring.states),
                "stock": None if wiring.stock is None else list(wiring.stock),
                "reason": wiring.reason.value,
                "explanation": wiring.explanation,
            },
            "findings": [finding.as_dict() for finding in self.findings],
            "status": status_of(self.findings),
        }


def doctor(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DRAFTER] [-- LAUNCH ARGUMENTS]",
            help="Folder or hub id of the drafter; after -- the arguments of the launch. "
            "Without either: a report on this environment.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Folder or hub id of the target. Default: --model-path.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Revision of the drafter.")] = None,
    sglang: Annotated[
        str | None, typer.Option(help="A release. Default: the installed one, else the newest.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    explain: Annotated[str | None, typer.Option(help="Explain a code, such as KE101.")] = None,
) -> None:
    """Say what is wrong with a drafter or a launch, and how to mend it; start nothing."""
    if explain is not None:
        _explain(explain)
        return
    if sglang is not None and sglang not in RELEASES:
        _usage(f"No such release in the table: {sglang}. Known: {OLDEST} - {NEWEST}.")
    given, variables = without_program(words or ())
    environ = {**os.environ, **variables}
    settings = read_settings(environ)
    drafter = given.pop(0) if given and not given[0].startswith("-") else None
    if given and not given[0].startswith("-"):
        _usage(f"One drafter at a time: {given[0]!r} is one too many.")
    try:
        arguments = ServerArguments.from_command_line(given, environ) if given else None
    except BadCommandLine as problem:
        _usage(f"Launch arguments: {problem}.")
    if drafter is None and (arguments is None or not arguments.speculative_algorithm):
        if given or target is not None:
            _usage("Name a drafter, or give launch arguments with --speculative-algorithm.")
        _report_environment(survey(settings), settings, as_json)
    else:
        _report(_examine(drafter, revision, target, arguments, sglang, settings), as_json)


def _examine(
    drafter: str | None,
    revision: str | None,
    target: str | None,
    arguments: ServerArguments | None,
    version: str | None,
    settings: Settings,
) -> Examination:
    findings = [*settings.findings, *unknown_codes(settings)]
    if arguments is not None and drafter is not None and not arguments.draft_model_path:
        arguments = dataclasses.replace(arguments, draft_model_path=drafter)
    if drafter is None and arguments is not None:
        drafter, revision = arguments.draft_model_path, arguments.draft_model_revision
    described, target_problem = _target(target, arguments, findings)
    installation = upstream.find_sglang() if version is None else None
    adapter = _adapter(described, settings, installation, findings)
    release, installed = _release(version, installation, findings, adapter, described)
    unreadable: list[Diagnostic] = []
    checkpoint = _drafter(drafter, revision, unreadable)
    if arguments is not None and arguments.algorithm not in ("", launch.EAGLE3):
        # A launch with another algorithm is left alone.
        unreadable = [
            dataclasses.replace(finding, severity=Severity.NOTE) for finding in unreadable
        ]
    findings += unreadable
    context = Context(checkpoint, described, arguments, release)
    findings += check_open_backend(context)
    findings += run_checks(
        context,
        # Strictness and silence are applied once, over all findings.
        dataclasses.replace(settings, strict=False, ignore=frozenset()),
    )
    wiring = None
    if checkpoint is not None:
        layers = described.num_layers if described is not None else KIMI_LAYERS
        wiring = launch.wiring_of(checkpoint, layers, release, settings, adapter.readings(release))
        findings += wiring.findings
    return Examination(
        str(checkpoint.folder) if checkpoint is not None else drafter or "",
        target or (arguments.model_path if arguments is not None else "") or None,
        target_problem,
        release,
        installed,
        not settings.enabled,
        wiring,
        tuple(apply_settings(findings, settings)),
    )


def _adapter(
    target: Target | None,
    settings: Settings,
    installation: upstream.Installation | None,
    findings: list[Diagnostic],
) -> Adapter:
    if target is None:
        return KIMI_K25
    # What no adapter knows can be looked at in an SGLang that is there.
    found = (
        target.adapter
        if installation is None
        else launch.adapter_for(target, settings, installation)
    )
    if found is None:
        findings.append(not_served(target.architecture, target.location))
    return found or KIMI_K25


def _release(
    version: str | None,
    installation: upstream.Installation | None,
    findings: list[Diagnostic],
    adapter: Adapter,
    target: Target | None,
) -> tuple[Release, bool]:
    assumed = adapter.table.get(version or NEWEST, RELEASES[version or NEWEST])
    if installation is None:
        return assumed, False
    inspection = (
        upstream.inspect(installation)
        if target is None or adapter is KIMI_K25
        else upstream.inspect(installation, adapter, target.architecture, target.config)
    )
    findings += inspection.findings
    return inspection.release or assumed, inspection.release is not None


def _target(
    location: str | None, arguments: ServerArguments | None, findings: list[Diagnostic]
) -> tuple[Target | None, str]:
    """Read the target; else say why it was not read, in two words."""
    named = location is not None
    revision = None
    if location is None and arguments is not None:
        location, revision = arguments.model_path or None, arguments.revision
    if location is None:
        return None, "not given"
    try:
        return read_target(location, revision), ""
    except UnreadableTarget as problem:
        # A launch may name a target that is on another machine; --target may not.
        if named or any(finding.code != NOT_FOUND.code for finding in problem.findings):
            findings += problem.findings
            return None, "unreadable"
        return None, "not on this machine"


def _drafter(
    location: str | None, revision: str | None, findings: list[Diagnostic]
) -> Drafter | None:
    if location is None:
        return None
    try:
        return read_drafter(location, revision)
    except UnreadableDrafter as problem:
        findings += problem.findings
        return None


def _report(examination: Examination, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(examination.as_dict(), indent=2))
    else:
        release = examination.release.version
        source = "installed" if examination.installed else "not installed here"
        lines = [
            ("drafter", examination.drafter or "none"),
            ("target", _described(examination)),
            ("sglang", f"{release} ({source})"),
        ]
        if examination.switched_off:
            lines.append(("loaded by", _OFF))
        elif examination.wiring is not None:
            lines.append(("captures", examination.wiring.label))
        _print(lines, examination.findings)
    raise typer.Exit(status_of(examination.findings))


def _described(examination: Examination) -> str:
    if examination.target is None:
        return examination.target_problem
    problem = examination.target_problem
    return f"{examination.target} ({problem})" if problem else examination.target


def _report_environment(environment: Environment, settings: Settings, as_json: bool) -> None:
    findings = apply_settings([*environment.findings, *unknown_codes(settings)], settings)
    if as_json:
        report = {
            "schema": SCHEMA,
            "environment": environment.as_dict(),
            "findings": [finding.as_dict() for finding in findings],
            "status": status_of(findings),
        }
        typer.echo(json.dumps(report, indent=2))
    else:
        described = environment.as_dict()
        off = _OFF if environment.switched_off else "no"
        lines = [
            ("plugin", described["plugin"]),
            ("python", described["python"]),
            ("sglang", f"{described['sglang'] or 'none'} {described['package'] or ''}".strip()),
            ("loaded by", environment.loaded_by or off),
            ("methods", _methods(environment)),
            ("changes", "; ".join(environment.changes) or "nothing"),
        ]
        _print(lines, findings)
    raise typer.Exit(status_of(findings))


def _methods(environment: Environment) -> str:
    if environment.inspection is None:
        return "unknown"
    missing = environment.inspection.missing_methods
    return f"missing {', '.join(missing)}" if missing else "all three are there"


_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def _print(
    lines: list[tuple[str, str]], findings: tuple[Diagnostic, ...] | list[Diagnostic]
) -> None:
    from rich.table import Table
    from rich.text import Text

    terminal = console()
    heading = Table.grid(padding=(0, 2))
    for label, text in lines:
        heading.add_row(Text(label, style="bold"), Text(printable(text), overflow="fold"))
    terminal.print(heading)
    if not findings:
        terminal.print("Nothing is wrong.", style="green")
        return
    table = Table(show_lines=True)
    table.add_column("code", no_wrap=True)
    table.add_column("finding", overflow="fold")
    for finding in findings:
        style = _STYLES[finding.severity]
        cell = Text(f"{finding.message}\n", style="bold")
        for label, text in (
            ("where", finding.where),
            ("seen", finding.seen),
            ("leads to", finding.leads_to),
            ("mend", finding.mend),
        ):
            if text:
                cell.append(f"{label + ':':<10}", style="dim not bold")
                cell.append(f"{text}\n", style="not bold")
        cell.rstrip()
        table.add_row(Text(f"{finding.code}\n{finding.severity.value}", style=style), cell)
    terminal.print(table)


def _explain(code: str) -> None:
    from sglang_kimi_eagle import extending
    from sglang_kimi_eagle.diagnostic_pages import pages

    # Codes of other packages are declared as these are loaded.
    extending.extensions()
    page = pages().get(f"{code.strip().upper()}.md")
    if page is None:
        _usage(f"No such code: {code}.")
    typer.echo(page, nl=False)


def _usage(message: str) -> NoReturn:
    typer.echo(printable(message), err=True)
    raise typer.Exit(USAGE)
