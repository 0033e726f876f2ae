"""A probe's report for people: a table with bars on the terminal, and a chart as a PNG."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from sglang_kimi_eagle.diagnostics import Diagnostic, printable
from sglang_kimi_eagle.probing.findings import NO_CHART, ProbeRefused
from sglang_kimi_eagle.probing.report import Report, Scored, counted
from sglang_kimi_eagle.states import show

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 10
"""Candidates in the table and in the chart; JSON has all of them."""
_BAR = 12
_INSTALL = "Install the extra `measure`."
_ELSEWHERE = "Name a file in a folder that is there, and yours."
_RUNNING, _OTHER = "#2b6cb0", "#a0aec0"


def shown(report: Report) -> list[Scored]:
    """Return the best candidates, and the running one wherever it comes."""
    best = list(report.scored[:SHOWN])
    return best + [one for one in report.scored[SHOWN:] if one.states == report.running]


def print_report(report: Report, terminal: Console) -> None:
    """Print the table, the bars and the verdict."""
    from rich.bar import Bar
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    kind = "the target's own tokens" if report.generated else "the traced text"
    terminal.print(
        Text(
            printable(
                f"{report.drafter}: {counted(report.rows, 'row')} of {kind}, in "
                f"{counted(report.sequences, 'sequence')}, SGLang {report.sglang}, "
                f"{counted(report.steps, 'step')}",
                600,
            )
        )
    )
    table = Table(box=SIMPLE, padding=(0, 1))
    table.add_column("states fed", no_wrap=True)
    table.add_column("first\ndraft", justify="right", no_wrap=True)
    table.add_column("acceptance\nlength", no_wrap=True)
    table.add_column("", width=_BAR)
    table.add_column("which is", overflow="fold")
    for one in shown(report):
        length = one.scores.acceptance_length
        running = one.states == report.running
        names = ", ".join(one.candidate.names) + ("" if one.reachable else " (not capturable)")
        table.add_row(
            show(one.states),
            f"{one.scores.first_step.value:.1%}",
            f"{length.value:.2f} ({length.low:.2f} - {length.high:.2f})",
            # A draft that is never accepted leaves a length of 1.
            Bar(report.steps, 0, max(length.value - 1, 0), width=_BAR),
            names,
            style="bold" if running else None,
        )
    terminal.print(table)
    if len(report.scored) > len(shown(report)):
        terminal.print(f"{len(report.scored) - len(shown(report))} more are worse; see --json.")
    if report.measured is not None:
        terminal.print(f"Measured by the server while it was recorded: {report.measured:.3f}")
    terminal.print(Text(report.verdict, style="bold green" if report.status == 0 else "bold"))
    if report.written:
        terminal.print(Text(f"Written: {report.written}"))


def check_chart(path: Path) -> None:
    """See, before anything is scored, that a chart could be drawn to ``path``.

    Raises:
        ProbeRefused: matplotlib is missing, or no file can be written there.
    """
    seen = None
    try:
        if not path.parent.is_dir():
            seen = f"there is no folder {path.parent}"
        elif path.is_dir():
            seen = "a folder"
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            seen = "it may not be written"
    except (OSError, ValueError) as error:
        seen = str(error)
    if seen is not None:
        raise ProbeRefused(_no_chart(path, seen, _ELSEWHERE))
    if find_spec("matplotlib") is None:
        raise ProbeRefused(_no_chart(path, "there is no module named matplotlib", _INSTALL))


def write_chart(report: Report, path: Path) -> None:
    """Draw the candidates' acceptance lengths with their intervals.

    Raises:
        ProbeRefused: matplotlib is missing, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ProbeRefused(_no_chart(path, str(error), _INSTALL)) from None
    rows = list(reversed(shown(report)))
    figure = Figure(figsize=(8, 1.2 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    lengths = [one.scores.acceptance_length for one in rows]
    colours = [_RUNNING if one.states == report.running else _OTHER for one in rows]
    axes.barh(
        range(len(rows)),
        [length.value for length in lengths],
        xerr=[
            [max(length.value - length.low, 0) for length in lengths],
            [max(length.high - length.value, 0) for length in lengths],
        ],
        color=colours,
        capsize=3,
    )
    axes.set_yticks(range(len(rows)), [show(one.states) for one in rows])
    axes.set_xlim(1, report.steps + 1)
    axes.set_xlabel("expected acceptance length (tokens per verify step, bonus included)")
    axes.set_title("\n".join(wrap(printable(report.verdict, 300), 90)), fontsize=10)
    axes.legend(
        [Patch(color=_RUNNING), Patch(color=_OTHER)], ["running wiring", "other"], loc="lower right"
    )
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise ProbeRefused(_no_chart(path, str(error), _ELSEWHERE)) from None


def _no_chart(path: Path, seen: str, mend: str) -> Diagnostic:
    return NO_CHART.found("The chart could not be drawn.", where=str(path), seen=seen, mend=mend)
