"""``sglang-kimi-eagle identify``: which hidden states a training dump holds."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sglang_kimi_eagle.checks import apply_settings
from sglang_kimi_eagle.cli.output import console, print_findings, status_of
from sglang_kimi_eagle.diagnostics import REFUSED, Diagnostic, printable
from sglang_kimi_eagle.measuring import CannotMeasure, require_torch
from sglang_kimi_eagle.settings import Settings, read_settings
from sglang_kimi_eagle.tracing.trace_file import UnreadableTrace

if TYPE_CHECKING:
    from sglang_kimi_eagle.dumps.identify import DumpedSlot, Identification


def identify(
    dump: Annotated[
        Path,
        typer.Argument(readable=False, help="A file of the dump, or the folder of its samples."),
    ],
    trace: Annotated[
        Path,
        typer.Option(
            readable=False, help="Folder that a server wrote with SGLANG_KIMI_EAGLE_TRACE."
        ),
    ],
    server: Annotated[
        str | None,
        typer.Option(
            help="Address of a running server that traces into that folder: the dump's tokens are "
            "sent to it first."
        ),
    ] = None,
    rank: Annotated[
        int, typer.Option(min=0, max=65535, help="Tensor-parallel rank to compare with.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which hidden states a training dump holds, by comparing it with traced ones."""
    settings = read_settings()
    if settings.findings:
        print_findings(settings.findings)
        raise typer.Exit(status_of(settings.findings))
    from rich.console import Console

    from sglang_kimi_eagle.dumps.findings import DumpRefused

    try:
        require_torch()
        with Console(stderr=True).status("comparing") if sys.stderr.isatty() else nullcontext():
            found = _identify(dump, trace, server, rank)
    except DumpRefused as refusal:
        _refuse(list(refusal.findings), as_json)
    except (CannotMeasure, UnreadableTrace) as problem:
        _refuse([problem.finding], as_json)
    else:
        _report(found, settings, as_json)


def _identify(dump: Path, folder: Path, server: str | None, rank: int) -> Identification:
    from sglang_kimi_eagle.dumps.identify import identify as compare
    from sglang_kimi_eagle.dumps.server import send, wait_for_trace
    from sglang_kimi_eagle.tracing.trace_file import read_trace

    if server is None:
        return compare(dump, read_trace(folder, rank))
    prompts = send(server, dump)
    return compare(dump, wait_for_trace(server, prompts, folder, rank))


def _refuse(findings: list[Diagnostic], as_json: bool) -> None:
    if as_json:
        content = {"findings": [finding.as_dict() for finding in findings], "status": REFUSED}
        typer.echo(json.dumps(content, indent=2))
    else:
        print_findings(findings)
    raise typer.Exit(REFUSED)


def _report(found: Identification, settings: Settings, as_json: bool) -> None:
    from sglang_kimi_eagle.dumps import report

    findings = apply_settings(found.findings, settings)
    status = status_of(findings)
    if as_json:
        content = report.as_dict(found) | {
            "findings": [finding.as_dict() for finding in findings],
            "status": status,
        }
        typer.echo(json.dumps(content, indent=2))
    else:
        _print(found)
        print_findings(findings)
    raise typer.Exit(status)


def _print(found: Identification) -> None:
    from rich.table import Table
    from rich.text import Text

    from sglang_kimi_eagle.dumps import report

    layers = found.trace.facts.num_layers
    samples = "1 sample" if found.used == 1 else f"{found.used} samples"
    title = f"{printable(found.dump)} ({found.written_by}), {samples} compared"
    table = Table(title=Text(title))
    table.add_column("tensor", overflow="fold", min_width=len("aux_hidden_state[0]"))
    for name in ("is", "cosine", "error", "runner-up", "rows"):
        table.add_column(name, overflow="fold", no_wrap=name in ("cosine", "error", "rows"))
    for slot in found.slots:
        cells = (slot.name, *_cells(slot, layers), str(slot.rows.rows))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    terminal = console()
    terminal.print(table)
    for line in report.verdict_lines(found):
        terminal.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def _cells(slot: DumpedSlot, layers: int) -> tuple[str, str, str, str]:
    from sglang_kimi_eagle.dumps import report
    from sglang_kimi_eagle.dumps.verdict import Outcome

    decision = slot.decision
    if decision is None:
        return "cannot tell", "-", "-", "-"
    name = report.name_candidate(decision.candidate, layers)
    if decision.outcome is not Outcome.IDENTIFIED:
        name = f"cannot tell (nearest: {name})"
    second = decision.runner_up
    runner_up = "-"
    if second is not None:
        runner_up = f"{report.name_candidate(second.candidate, layers)} ({second.error:.1%})"
    return name, f"{decision.best.cosine:.4f}", f"{decision.best.error:.2%}", runner_up
