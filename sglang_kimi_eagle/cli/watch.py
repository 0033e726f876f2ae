"""``sglang-kimi-eagle watch``: the acceptance of a running server, and what it looks like."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sglang_kimi_eagle.cli.output import USAGE, console, print_findings, status_of
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity
from sglang_kimi_eagle.settings import Settings, read_settings
from sglang_kimi_eagle.states import show
from sglang_kimi_eagle.watching import report
from sglang_kimi_eagle.watching.address import parse_address
from sglang_kimi_eagle.watching.baseline import Baseline, load_baseline, save_baseline
from sglang_kimi_eagle.watching.client import Client
from sglang_kimi_eagle.watching.evidence import examine
from sglang_kimi_eagle.watching.findings import (
    BASELINE_NOT_SAVED,
    NOT_SPECULATING,
    WatchFailed,
)
from sglang_kimi_eagle.watching.judgement import Verdict
from sglang_kimi_eagle.watching.server import read_server
from sglang_kimi_eagle.watching.watcher import Assessment, Watcher

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHORTEST, _LONGEST = 0.2, 86_400.0
"""Seconds between readings, and of a watch that ends by itself."""


def watch(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the server.")],
    baseline: Annotated[
        Path | None,
        typer.Option(help="Compare with this file of --save-baseline or of `probe --json`."),
    ] = None,
    baseline_length: Annotated[
        float | None, typer.Option(help="Compare with this acceptance length.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save-baseline", help="Write what was seen, if it looks right, and end."),
    ] = None,
    plain_rate: Annotated[
        float | None,
        typer.Option(help="Tokens per second at this load without speculation."),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(help="The drafter on this machine. Default: where the server has it."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Say it once and end.")] = False,
    duration: Annotated[
        float | None,
        typer.Option("--for", help="Watch for so many seconds, a day at most, then end."),
    ] = None,
    interval: Annotated[float, typer.Option(help="Seconds between readings.")] = 5.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; without --once one line a reading.")
    ] = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print Prometheus text once and end.")
    ] = False,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the server's API key.")
    ] = None,
) -> None:
    """Watch a running server's acceptance, and say when it looks like a wrong wiring."""
    if baseline is not None and baseline_length is not None:
        _usage("Give --baseline or --baseline-length, not both.")
    if prometheus and as_json:
        _usage("Give --prometheus or --json, not both.")
    _check("--interval", interval, _SHORTEST, _LONGEST)
    _check("--for", duration, 0.0, _LONGEST)
    _check("--baseline-length", baseline_length, 1.0, 1000.0)
    _check("--plain-rate", plain_rate, 0.0, 1e9)
    settings = read_settings()
    if settings.findings:
        print_findings(settings.findings)
        raise typer.Exit(status_of(settings.findings))
    try:
        client = Client(parse_address(url), _api_key(api_key_env))
        base = load_baseline(baseline) if baseline is not None else None
    except WatchFailed as problem:
        print_findings([problem.finding])
        raise typer.Exit(USAGE) from None
    if baseline_length is not None:
        base = Baseline(baseline_length, "--baseline-length")
    # Strictness is about launches; a status of 3 means here that there is no server to watch.
    settings = dataclasses.replace(settings, strict=False)
    watcher = Watcher(lambda reading: examine(reading, drafter, settings), base, plain_rate)
    run = _Run(client, watcher, settings)
    single = once or prometheus or save is not None
    show_reading: Callable[[], None] = lambda: None  # noqa: E731
    if as_json and not single:
        show_reading = lambda: print(json.dumps(run.as_dict()), flush=True)  # noqa: E731
    if single or as_json:
        run.follow(interval, duration if duration is not None or single else math.inf, show_reading)
    else:
        _live(run, interval, math.inf if duration is None else duration)
    if save is not None:
        run.save(save)
    run.conclude(as_json=as_json and single, prometheus=prometheus, in_words=not as_json)


@dataclass
class _Run:
    """One invocation: the server, what was last found, and how it ends."""

    client: Client
    watcher: Watcher
    settings: Settings
    found: Assessment | None = None
    failure: Diagnostic | None = None
    saving: tuple[Diagnostic, ...] = ()

    @property
    def verdict(self) -> Verdict:
        if self.failure is not None:
            unspeculating = self.failure.rule is NOT_SPECULATING
            return Verdict.NOT_SPECULATING if unspeculating else Verdict.UNREACHABLE
        assert self.found is not None
        return self.found.judgement.verdict

    @property
    def findings(self) -> list[Diagnostic]:
        if self.failure is not None:
            return [self.failure]
        found = self.found.findings if self.found is not None else ()
        return [f for f in (*found, *self.saving) if not f.silenced_by(self.settings.ignore)]

    @property
    def status(self) -> int:
        return status_of(self.findings)

    def read(self) -> None:
        """Take one reading; a server that went away may come back."""
        try:
            self.found, self.failure = self.watcher.feed(read_server(self.client)), None
        except WatchFailed as problem:
            self.failure = problem.finding

    def follow(
        self, interval: float, duration: float | None, show_reading: Callable[[], None]
    ) -> None:
        """Read until the time is over, or the user interrupts; end at once without a server."""
        end = time.monotonic() + (duration or 0.0)
        try:
            self.read()
            show_reading()
            if self.found is None:
                return
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(interval, left))
                self.read()
                show_reading()
        except KeyboardInterrupt:
            if self.found is None and self.failure is None:
                raise typer.Exit(130) from None

    def save(self, path: Path) -> None:
        """Write a baseline, unless what was seen is none."""
        if self.failure is not None or self.found is None:
            return
        why = f"the verdict is {self.verdict.value}" if self.verdict is not Verdict.OK else ""
        if not why:
            try:
                save_baseline(path, report.baseline_of(self.found))
            except (OSError, ValueError) as problem:
                why = str(problem)
        if why:
            finding = BASELINE_NOT_SAVED.found(
                "No baseline was written.",
                where=str(path),
                seen=why,
                mend="Save it from a server that is known to be right, under its usual traffic.",
            )
            self.saving = (finding,)

    def as_dict(self) -> Any:
        url = str(self.client.address)
        if self.failure is not None:
            return report.failure_as_dict(self.verdict, url, self.failure, self.status)
        assert self.found is not None
        return report.as_dict(self.found, url, self.findings, self.status)

    def conclude(self, *, as_json: bool, prometheus: bool, in_words: bool) -> None:
        """Print what is to be said at the end, and exit."""
        if as_json:
            typer.echo(json.dumps(self.as_dict(), indent=2))
        elif prometheus:
            found = self.found if self.failure is None else None
            url = str(self.client.address)
            typer.echo(report.as_prometheus(found, self.verdict, url), nl=False)
        elif in_words:
            if self.found is not None and self.failure is None:
                console().print(_table(self))
            print_findings(self.findings)
        raise typer.Exit(self.status)


def _live(run: _Run, interval: float, duration: float) -> None:
    """Show the figures until the time is over."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    terminal = console()

    def screen() -> RenderableType:
        parts: list[RenderableType] = []
        if run.found is not None:
            parts.append(_table(run))
        parts += [Text(f"{f.code} {f.message}", style=_STYLES[f.severity]) for f in run.findings]
        return Group(*parts)

    with Live(console=terminal, auto_refresh=False, transient=True) as live:
        run.follow(interval, duration, lambda: live.update(screen(), refresh=True))


_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_VERDICTS = {
    Verdict.OK: ("nothing looks wrong", "green"),
    Verdict.WRONG_WIRING: ("looks like a wrong wiring", "bold red"),
    Verdict.LOW_ACCEPTANCE: ("acceptance is low, the wiring is not why", "yellow"),
    Verdict.NOTHING_ACCEPTED: ("next to nothing is accepted", "bold red"),
    Verdict.NOT_ENOUGH_DATA: ("not enough data to say", "yellow"),
    Verdict.NOT_SPECULATING: ("no speculation", "bold red"),
    Verdict.UNREACHABLE: ("the server does not answer", "bold red"),
}


def _table(run: _Run) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    found = run.found
    assert found is not None
    reading, limit = found.reading, found.limit
    title = Table.grid(padding=(0, 2))
    words, style = _VERDICTS[run.verdict]
    wiring = found.evidence.wiring
    states = f"{show(wiring.states)}, " if wiring is not None and wiring.states else ""
    for label, text, colour in (
        ("server", f"{run.client.address}, SGLang {reading.version}", ""),
        ("drafter", reading.drafter or "none named", ""),
        ("wiring", f"{states}{found.evidence.standing.value}: {found.evidence.text}", ""),
        ("verdict", words, style),
    ):
        title.add_row(Text(label, style="bold"), Text(text, style=colour, overflow="fold"))
    figures = Table()
    for name in ("", "judged", "now", "since start", "baseline", "ratio"):
        figures.add_column(name, justify="left" if not name else "right")
    rate = found.draft.rate
    window, average, expected = found.window_length, reading.length, limit.expected
    figures.add_row(
        "acceptance length",
        *(_figure(value, ".2f") for value in (found.length, window, average, expected)),
        _figure(found.length / expected if found.length and expected else None, ".2f"),
    )
    figures.add_row(
        "acceptance rate",
        *(
            _figure(None if value is None else rate(value), ".0%")
            for value in (found.length, window, average, expected)
        ),
        "",
    )
    base = found.baseline
    figures.add_row(
        "tokens/s",
        "",
        _figure(found.throughput, ".1f"),
        "",
        _figure(base.throughput if base else None, ".1f"),
        _figure(found.throughput_ratio, ".2f"),
    )
    figures.add_row("running requests", "", _figure(reading.running, ".0f"), "", "", "")
    figures.add_row("verify steps", f"{found.steps:.0f}+", "", "", "", "")
    return Group(title, figures)


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "")
    if not key or not key.isascii() or not key.isprintable():
        _usage(f"--api-key-env: the variable {variable!r} is not set, or holds no API key.")
    return key


def _check(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not (low <= value <= high):
        _usage(f"{name} must be a number between {low:g} and {high:g}.")


def _usage(message: str) -> None:
    sys.stderr.write(message + "\n")
    raise typer.Exit(USAGE)
