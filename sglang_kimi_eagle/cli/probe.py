"""``sglang-kimi-eagle probe``: find out which states a drafter was trained on."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sglang_kimi_eagle.cli.drafters import open_drafter
from sglang_kimi_eagle.cli.output import console, print_findings
from sglang_kimi_eagle.cli.pasted import without_program
from sglang_kimi_eagle.diagnostics import REFUSED
from sglang_kimi_eagle.drafter import Drafter
from sglang_kimi_eagle.launch import EAGLE3
from sglang_kimi_eagle.measuring import CannotMeasure, require_torch
from sglang_kimi_eagle.probing.findings import ProbeRefused
from sglang_kimi_eagle.probing.launching import LaunchOptions, record_launch, trace_folder
from sglang_kimi_eagle.probing.loading import check_target
from sglang_kimi_eagle.probing.probe import DEFAULT_STEPS, Options, Progress, run_probe
from sglang_kimi_eagle.probing.recording import NEW_TOKENS, Plan
from sglang_kimi_eagle.probing.report import Report
from sglang_kimi_eagle.probing.serving import address_of
from sglang_kimi_eagle.probing.view import check_chart, print_report, write_chart
from sglang_kimi_eagle.probing.writing import write_pin
from sglang_kimi_eagle.server_arguments import BadCommandLine, ServerArguments
from sglang_kimi_eagle.settings import parse_states

_READY_SECONDS = 1800.0
_INTERRUPTED = 130
"""What a shell returns for Ctrl-C."""
_MOST = 2**31 - 1


def _number(value: float | None) -> float | None:
    # The bounds of an option let NaN through.
    if value is not None and math.isnan(value):
        raise typer.BadParameter("not a number")
    return value


def probe(
    drafter: Annotated[str, typer.Argument(help="Folder, or hub id in the local cache.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- LAUNCH ARGUMENTS]", help="With --launch: those of sglang.launch_server."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="Folder of a trace; with --launch the folder to write it to (default: a "
            "temporary one).",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Folder or hub id of the target. Default: the traced one.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, max=16, help="Draft steps of a chain. Default: those of the launch, or 3."
        ),
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Try all combinations of the traced states too.")
    ] = False,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST, help="Score about so many tokens. Default: all."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=_MOST,
            help="Of the order in which --tokens takes sequences. Default: 0.",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:1, or auto: a GPU where there is one.")
    ] = "auto",
    launch: Annotated[
        bool, typer.Option("--launch", help="Record the trace from a launch of one server.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="With --launch: leave the server running.")
    ] = False,
    python: Annotated[
        str | None,
        typer.Option(
            help="With --launch: the interpreter that has SGLang. Default: the one that runs this."
        ),
    ] = None,
    states: Annotated[
        str | None,
        typer.Option(help="With --launch: states to trace, as 2,3,30. Default: all."),
    ] = None,
    new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, max=4096, help=f"With --launch: of each continuation. Default: {NEW_TOKENS}."
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=86_400,
            callback=_number,
            help="With --launch: seconds for the server to be ready. Default: 1800.",
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Pin a clear verdict in config.json, keeping a backup.")
    ] = False,
    chart: Annotated[
        Path | None, typer.Option(readable=False, help="Draw the candidates to this PNG.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score the wirings that a drafter may have been trained with, on traced states."""
    checkpoint = open_drafter(drafter)
    if seed is not None and tokens is None:
        raise typer.BadParameter("it goes with --tokens", param_hint="--seed")
    _refuse_unknown(device)
    options = Options(target, steps or DEFAULT_STEPS, search, tokens, seed or 0)
    with _refusals():
        if not launch:
            if trace is None:
                raise typer.BadParameter("give --trace FOLDER, or --launch")
            _refuse_without_launch(
                {
                    "launch arguments": arguments,
                    "--keep": keep or None,
                    "--python": python,
                    "--states": states,
                    "--new-tokens": new_tokens,
                    "--timeout": timeout,
                }
            )
            require_torch()
            if chart is not None:
                check_chart(chart)
            options = dataclasses.replace(options, device=_device(device))
            report = _scored(checkpoint, trace, options, quiet=as_json)
        else:
            words, variables = without_program(arguments or ())
            launching = _launch_options(
                words,
                variables,
                python or sys.executable,
                states or "all",
                keep,
                _READY_SECONDS if timeout is None else timeout,
                NEW_TOKENS if new_tokens is None else new_tokens,
            )
            require_torch()
            if chart is not None:
                check_chart(chart)
            if target is not None:
                check_target(target)
            if steps is None:
                options = dataclasses.replace(options, steps=_steps_of(launching))
            # The server holds the GPU as long as it runs.
            chosen = "cpu" if keep and device == "auto" else device
            options = dataclasses.replace(options, device=_device(chosen))
            report = _launched(checkpoint, trace, launching, options, quiet=as_json)
    _finish(checkpoint, report, write=write, chart=chart, as_json=as_json)


def _refuse_without_launch(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value is not None and value != []:
            verb = "go" if name == "launch arguments" else "goes"
            raise typer.BadParameter(f"{name} {verb} with --launch")


def _launch_options(
    words: list[str],
    variables: Mapping[str, str],
    python: str,
    states: str,
    keep: bool,
    timeout: float,
    new_tokens: int,
) -> LaunchOptions:
    if not words:
        raise typer.BadParameter("give the launch arguments after --", param_hint="--launch")
    try:
        address_of(words)
        arguments = ServerArguments.from_command_line(words, {**os.environ, **variables})
    except BadCommandLine as problem:
        raise typer.BadParameter(f"launch arguments: {problem}") from None
    if not words[0].startswith("-"):
        raise typer.BadParameter(f"launch arguments: {words[0]!r} is none")
    if arguments.algorithm != EAGLE3 or not arguments.draft_model_path:
        raise typer.BadParameter(
            "the launch needs --speculative-algorithm EAGLE3 and --speculative-draft-model-path"
        )
    wanted = None if states == "all" else parse_states(states)
    if wanted is None and states != "all":
        raise typer.BadParameter(f"{states!r} is neither all nor as 2,3,30", param_hint="--states")
    traced = None if wanted is None else tuple(sorted(set(wanted)))
    plan = Plan(new_tokens=new_tokens)
    return LaunchOptions(words, variables, python, traced, keep, timeout, plan)


def _steps_of(launching: LaunchOptions) -> int:
    arguments = ServerArguments.from_command_line(launching.words)
    return min(max(arguments.num_steps or DEFAULT_STEPS, 1), 16)


def _launched(
    drafter: Drafter, trace: Path | None, launching: LaunchOptions, options: Options, *, quiet: bool
) -> Report:
    if trace is not None and trace.is_dir() and any(trace.iterdir()):
        raise typer.BadParameter(f"{trace} is not empty", param_hint="--trace")
    with trace_folder(trace, keep_log=launching.keep) as folder:
        with _progress(quiet) as told:
            record_launch(launching, folder, told)
        return _scored(drafter, folder, options, quiet=quiet)


def _refuse_unknown(device: str) -> None:
    """Refuse devices of torch that hold no numbers, or that are not meant."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", device):
        raise typer.BadParameter(
            f"{device!r} is none of auto, cpu, cuda and cuda:N", param_hint="--device"
        )


def _device(text: str) -> str:
    """Check the name of a device; choose one for ``auto``."""
    import torch

    if text == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=text)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise typer.BadParameter(f"{text!r}: {reason}", param_hint="--device") from None
    return text


def _scored(drafter: Drafter, trace: Path, options: Options, *, quiet: bool) -> Report:
    with _progress(quiet) as told:
        return run_probe(drafter, trace, options, told)


def _finish(
    drafter: Drafter, report: Report, *, write: bool, chart: Path | None, as_json: bool
) -> None:
    """Write what was asked for, print the report, and exit with its status."""
    try:
        if write:
            report = dataclasses.replace(report, written=write_pin(drafter, report))
        if chart is not None:
            write_chart(report, chart)
    except ProbeRefused as refused:
        findings = (*refused.findings, *report.findings)
        report = dataclasses.replace(report, findings=findings)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        print_report(report, console())
    print_findings(report.findings)
    raise typer.Exit(report.status)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ProbeRefused as error:
        print_findings(error.findings)
        raise typer.Exit(REFUSED) from None
    except CannotMeasure as error:
        print_findings([error.finding])
        raise typer.Exit(REFUSED) from None
    except KeyboardInterrupt:
        typer.echo("Interrupted; the server, if one was started, has ended.", err=True)
        raise typer.Exit(_INTERRUPTED) from None


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """Show a bar on stderr, on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    terminal = Console(stderr=True)
    hidden = quiet or not sys.stderr.isatty()
    with Bars(*columns, TimeRemainingColumn(), console=terminal, disable=hidden) as bars:
        task = bars.add_task("", total=1)
        yield Progress(
            lambda what, total: bars.reset(task, description=what, total=max(total, 1)),
            lambda done: bars.update(task, completed=done),
        )
