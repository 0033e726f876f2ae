"""``sglang-kimi-eagle wiring``: what each release captures for a drafter, stock and plugin."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sglang_kimi_eagle.checks import apply_settings, unknown_codes
from sglang_kimi_eagle.cli.drafters import KIMI_LAYERS, no_drafter
from sglang_kimi_eagle.cli.output import USAGE, console, print_findings, status_of
from sglang_kimi_eagle.diagnostics import Diagnostic, errors, printable
from sglang_kimi_eagle.drafter import UnreadableDrafter, read_drafter
from sglang_kimi_eagle.launch import wiring_of
from sglang_kimi_eagle.loaders import MLA
from sglang_kimi_eagle.releases import NEWEST, OLDEST, RELEASES, Release
from sglang_kimi_eagle.settings import read_settings
from sglang_kimi_eagle.states import States, show
from sglang_kimi_eagle.target import UnreadableTarget, read_target
from sglang_kimi_eagle.wiring import Wiring

SCHEMA = 1
"""Of the JSON output; described in docs/wiring.md."""


@dataclass(frozen=True)
class Row:
    """One release's line of the answer."""

    release: Release
    stock: str
    plugin: str
    reason: str
    same: bool
    """Stock and plugin capture the same states."""
    wiring: Wiring | None

    def as_dict(self) -> dict[str, Any]:
        """Return the row in the shape of the JSON output."""
        wiring = self.wiring
        return {
            "sglang": self.release.version,
            "stock": None if wiring is None or wiring.stock is None else list(wiring.stock),
            "plugin": None if wiring is None or wiring.states is None else list(wiring.states),
            "reason": self.reason,
            "explanation": "" if wiring is None else wiring.explanation,
            "same": self.same,
            "findings": [] if wiring is None else [f.as_dict() for f in wiring.findings],
        }


def wiring(
    drafter: Annotated[str, typer.Argument(help="Folder, or hub id in the local cache.")],
    target: Annotated[
        str | None,
        typer.Option(help="The target's folder or hub id. Without it: 61 layers, Kimi-K2.5's."),
    ] = None,
    sglang: Annotated[
        list[str] | None, typer.Option(help="A release; may be given several times. Default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which states each SGLang release captures, unmodified and with the plugin."""
    unknown = [version for version in sglang or [] if version not in RELEASES]
    if unknown:
        typer.echo(
            printable(f"No such release: {', '.join(unknown)}. Known: {OLDEST} - {NEWEST}."),
            err=True,
        )
        raise typer.Exit(USAGE)
    settings = read_settings()
    try:
        if settings.findings:
            raise UnreadableDrafter(settings.findings)
        checkpoint = read_drafter(drafter)
        num_layers = KIMI_LAYERS if target is None else read_target(target).num_layers
    except (UnreadableDrafter, UnreadableTarget) as problem:
        if as_json:
            _print_json(drafter, None, [], problem.findings)
        else:
            print_findings(problem.findings)
        raise typer.Exit(status_of(problem.findings)) from None
    if wrong := no_drafter(checkpoint):
        if as_json:
            _print_json(str(checkpoint.folder), num_layers, [], wrong)
        else:
            print_findings(wrong)
        raise typer.Exit(status_of(wrong))
    is_mla = checkpoint.config.get("architectures") == [MLA]
    rows = [
        _row(
            release,
            wiring_of(checkpoint, num_layers, release, settings),
            num_layers,
            served=release.mla_drafter or not is_mla,
        )
        for version, release in RELEASES.items()
        if not sglang or version in sglang
    ]
    findings = apply_settings([*_distinct(rows), *unknown_codes(settings)], settings)
    if as_json:
        _print_json(str(checkpoint.folder), num_layers, rows, findings)
    else:
        _print_table(rows, str(checkpoint.folder), num_layers)
        print_findings(findings)
    raise typer.Exit(status_of(findings))


def _print_json(
    drafter: str, num_layers: int | None, rows: Sequence[Row], findings: Sequence[Diagnostic]
) -> None:
    document = {
        "schema": SCHEMA,
        "drafter": drafter,
        "num_layers": num_layers,
        "releases": [row.as_dict() for row in rows],
        "findings": [finding.as_dict() for finding in findings],
        "status": status_of(findings),
    }
    typer.echo(json.dumps(document, indent=2))


def _row(release: Release, found: Wiring, num_layers: int, *, served: bool) -> Row:
    if not served:
        text = f"{MLA} is not registered"
        return Row(release, text, text, "not served", True, None)
    refused = errors(found.findings)
    if refused:
        plugin = f"refused: {', '.join(sorted({f.code for f in refused}))}"
    else:
        plugin = show(found.states) if found.states else "nothing"
    return Row(
        release,
        _stock_text(found.stock, release, num_layers),
        plugin,
        found.reason.value,
        found.states == found.stock,
        found,
    )


def _stock_text(stock: States | None, release: Release, num_layers: int) -> str:
    if stock is None:
        return "nothing"
    lost = [state for state in stock if state not in release.reachable(num_layers)]
    return show(stock) + (f"; {show(lost)} never captured" if lost else "")


def _distinct(rows: list[Row]) -> list[Diagnostic]:
    """Return each finding once: releases mostly repeat each other."""
    found: dict[tuple[str, str], Diagnostic] = {}
    for row in rows:
        for finding in row.wiring.findings if row.wiring else ():
            found.setdefault((finding.code, finding.message), finding)
    return list(found.values())


def _print_table(rows: list[Row], drafter: str, num_layers: int) -> None:
    from rich.table import Table
    from rich.text import Text

    # A Text: in a str, brackets of a folder's name would be taken for markup.
    table = Table(title=Text(printable(f"{drafter}, target of {num_layers} layers")))
    for name in ("sglang", "stock captures", "with the plugin", "because"):
        table.add_column(name, overflow="fold")
    for row in rows:
        style = None if row.same else "yellow"
        table.add_row(row.release.version, row.stock, row.plugin, row.reason, style=style)
    terminal = console()
    terminal.print(table)
    for explanation in dict.fromkeys(
        row.wiring.explanation for row in rows if row.wiring and row.wiring.explanation
    ):
        terminal.print(f"  {printable(explanation)}", markup=False, highlight=False)
