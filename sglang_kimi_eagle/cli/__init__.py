"""The command ``sglang-kimi-eagle``.  It needs neither sglang nor torch.

Exit status of every command: 0 when all is well, 1 with warnings, 2 for a wrong command line or an
output that cannot be written, 3 when errors were found or the request was refused.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from sglang_kimi_eagle import __version__
from sglang_kimi_eagle.cli.doctor import doctor
from sglang_kimi_eagle.cli.identify import identify
from sglang_kimi_eagle.cli.output import USAGE
from sglang_kimi_eagle.cli.patch import patch
from sglang_kimi_eagle.cli.pin import pin
from sglang_kimi_eagle.cli.probe import probe
from sglang_kimi_eagle.cli.sweep import sweep
from sglang_kimi_eagle.cli.watch import watch
from sglang_kimi_eagle.cli.wiring import wiring

app = typer.Typer(
    name="sglang-kimi-eagle",
    help="EAGLE-3 drafters for Kimi-K2.5 on stock SGLang, rightly wired.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(doctor)
app.command()(wiring)
app.command()(pin)
app.command()(patch)
app.command()(identify)
app.command()(probe)
app.command()(watch)
app.command()(sweep)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sglang-kimi-eagle {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """EAGLE-3 drafters for Kimi-K2.5 on stock SGLang, rightly wired."""


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks is escaped, not an error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if _empty(sys.argv[1:]):
        typer.echo("sglang-kimi-eagle: an argument is empty; an unset variable?", err=True)
        sys.exit(USAGE)
    # As other commands do when their reader goes away: `doctor ... | head -1`.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as problem:
        # What could not be written is still in the buffer: the interpreter must not try again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        typer.echo(f"sglang-kimi-eagle: {problem}", err=True)
        sys.exit(USAGE)


def _empty(words: Sequence[str]) -> bool:
    """Tell whether a word is empty, or an option's value: a path would be the current folder.

    What comes after ``--`` are words of a launch.
    """
    own = words[: words.index("--")] if "--" in words else words
    return any(not word or (word.startswith("--") and word.endswith("=")) for word in own)
