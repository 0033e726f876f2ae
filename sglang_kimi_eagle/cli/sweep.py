"""``sglang-kimi-eagle sweep``: which targets of an SGLang lack the methods of EAGLE-3."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from sglang_kimi_eagle import extending, upstream
from sglang_kimi_eagle.checks import apply_settings
from sglang_kimi_eagle.cli.output import USAGE, console, print_findings, status_of
from sglang_kimi_eagle.diagnostics import REFUSED, Diagnostic
from sglang_kimi_eagle.patching.findings import PatchRefused
from sglang_kimi_eagle.patching.trees import locate
from sglang_kimi_eagle.releases import NEWEST, OLDEST, RELEASES
from sglang_kimi_eagle.settings import read_settings
from sglang_kimi_eagle.sweeping import Sweep, known_sweep, new_classes
from sglang_kimi_eagle.sweeping import sweep as sweep_sources
from sglang_kimi_eagle.upstream import Sources

SCHEMA = 1


def sweep(
    sglang: Annotated[
        str | None,
        typer.Option(help="A release. With --from, what the sources are. Default: the installed."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Look at the SGLang sources in this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which model classes lack the methods of EAGLE-3, and how each can be served."""
    settings = read_settings()
    adapters = extending.adapters()
    try:
        found = _sweep(source, sglang, frozenset(adapters))
    except PatchRefused as refusal:
        print_findings(refusal.findings)
        raise typer.Exit(REFUSED) from None
    findings = [*settings.findings, *extending.extensions().findings, *new_classes(found)]
    findings = apply_settings(findings, settings)
    rows = [
        {**cls.as_dict(), "coverage": cls.coverage(adapters, found.version)}
        for cls in found.lacking
    ]
    if as_json:
        _print_json(found, rows, findings)
    else:
        _print_table(found, rows)
        print_findings(findings)
    raise typer.Exit(status_of(findings))


def _sweep(source: Path | None, version: str | None, adapted: frozenset[str]) -> Sweep:
    if source is not None:
        package = locate(source)
        return sweep_sources(Sources(package, version or _version_in(package)), adapted)
    installation = upstream.find_sglang()
    if installation is not None and version in (None, installation.version):
        return sweep_sources(Sources(installation.package, installation.version), adapted)
    if version is not None and version not in RELEASES:
        typer.echo(
            f"No such release in the table: {version}. Known: {OLDEST} - {NEWEST}. "
            "Sources of another one are looked at with --from DIR.",
            err=True,
        )
        raise typer.Exit(USAGE)
    return known_sweep(version or NEWEST)


def _version_in(package: Path) -> str:
    for name in ("_version.py", "version.py"):
        try:
            text = (package / name).read_text("utf-8", "replace")[:10000]
        except OSError:
            continue
        match = re.search(r"version\b[^=\n]*= *['\"]([0-9][^'\"]*)['\"]", text)
        if match:
            return match[1]
    return "unknown"


def _print_json(found: Sweep, rows: list[dict[str, Any]], findings: list[Diagnostic]) -> None:
    report = {
        "schema": SCHEMA,
        "sglang": found.version,
        "complete": found.complete,
        "lacking": rows,
        "without": list(found.without),
        "findings": [finding.as_dict() for finding in findings],
        "status": status_of(findings),
    }
    typer.echo(json.dumps(report, indent=2))


def _print_table(found: Sweep, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title=f"SGLang {found.version}: classes that lack methods of EAGLE-3")
    for name in ("class", "lacks", "capture loop", "served by"):
        table.add_column(name, overflow="fold")
    for row in rows:
        inner = ", ".join(row["language_models"])
        loop = f"{row['attribute']}: {inner} ({row['kind']})" if inner else row["kind"]
        short = [name.removesuffix("_layers_to_capture") for name in row["missing"]]
        table.add_row(row["class"], ", ".join(short), loop, row["coverage"])
    terminal = console()
    terminal.print(table)
    terminal.print(
        f"{found.complete} other classes lack nothing; {len(found.without)} have no capture loop "
        "(--json names them).",
        highlight=False,
    )
