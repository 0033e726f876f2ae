"""``sglang-kimi-eagle sweep``: which targets of an SGLang lack the methods of EAGLE-3."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from packaging.version import InvalidVersion, Version

from sglang_kimi_eagle import extending, upstream
from sglang_kimi_eagle.checks import apply_settings
from sglang_kimi_eagle.cli.output import USAGE, console, print_findings, status_of
from sglang_kimi_eagle.diagnostics import REFUSED, Diagnostic, printable
from sglang_kimi_eagle.ordinary_files import read_ordinary
from sglang_kimi_eagle.patching.findings import PatchRefused
from sglang_kimi_eagle.patching.trees import locate
from sglang_kimi_eagle.releases import NEWEST, OLDEST, RELEASES
from sglang_kimi_eagle.settings import read_settings
from sglang_kimi_eagle.sweeping import OTHER_VERSION, Sweep, known_sweep, new_classes, unread
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
        found, incomplete = _sweep(source, sglang, frozenset(adapters))
    except PatchRefused as refusal:
        print_findings(refusal.findings)
        raise typer.Exit(REFUSED) from None
    findings = [*settings.findings, *extending.extensions().findings, *incomplete]
    findings += new_classes(found)
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


def _sweep(
    source: Path | None, version: str | None, adapted: frozenset[str]
) -> tuple[Sweep, list[Diagnostic]]:
    if source is not None:
        package = locate(source)
        return _of_sources(package, _told(version, package), adapted)
    installation = upstream.find_sglang()
    if installation is not None and version in (None, installation.version):
        return _of_sources(installation.package, installation.version, adapted)
    if version is not None and version not in RELEASES:
        _unknown(version)
    return known_sweep(version or NEWEST), []


def _of_sources(
    package: Path, version: str, adapted: frozenset[str]
) -> tuple[Sweep, list[Diagnostic]]:
    found = sweep_sources(Sources(package, version), adapted)
    incomplete = list(unread(found, str(package)))
    if found.empty:
        raise PatchRefused(*incomplete)
    return found, incomplete


def _told(named: str | None, package: Path) -> str:
    """Return the version that the user names, if it can be that of the sources; else theirs."""
    own = _version_in(package)
    if named is None or named == str(own):
        return str(own or "unknown")
    if named not in RELEASES:
        _unknown(named)
    # Builds for a platform (0.5.9+cpu) are of their release.
    if own is not None and Version(own.public) != Version(named):
        raise PatchRefused(
            OTHER_VERSION.found(
                f"These sources are not those of SGLang {named}.",
                where=str(package),
                seen=f"they say that they are {own}",
                leads_to="Nothing is looked at.",
                mend="Leave --sglang out, or name the sources of that release.",
            )
        )
    return named


def _unknown(version: str) -> NoReturn:
    typer.echo(
        f"No such release in the table: {printable(version)}. Known: {OLDEST} - {NEWEST}. "
        "Sources of another one are looked at with --from DIR, without --sglang.",
        err=True,
    )
    raise typer.Exit(USAGE)


def _version_in(package: Path) -> Version | None:
    """Return the version that a build has written into the package; a checkout has none."""
    for name in ("_version.py", "version.py"):
        try:
            text = read_ordinary(package / name).decode("utf-8", "replace")[:10000]
        except OSError:
            continue
        match = re.search(r"version\b[^=\n]*= *['\"]([0-9][^'\"]*)['\"]", text)
        try:
            found = Version(match[1]) if match else None
        except InvalidVersion:
            continue
        # 0.0.0.dev0 stands for "not known" in SGLang's own version.py.
        if found is not None and found.release != (0, 0, 0):
            return found
    return None


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
