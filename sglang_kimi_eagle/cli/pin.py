"""``sglang-kimi-eagle pin``: write a drafter's wiring into its config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from sglang_kimi_eagle.cli.drafters import layers_of, no_drafter, open_drafter
from sglang_kimi_eagle.cli.output import USAGE, print_findings
from sglang_kimi_eagle.diagnostics import REFUSED, printable
from sglang_kimi_eagle.drafter import Drafter
from sglang_kimi_eagle.launch import wiring_of
from sglang_kimi_eagle.pinning import (
    NOTHING_TO_DECLARE,
    Pin,
    PinRefused,
    pin_for_stock,
    pin_states,
    write_copy,
    write_in_place,
)
from sglang_kimi_eagle.releases import NEWEST, RELEASES
from sglang_kimi_eagle.settings import Settings, parse_states
from sglang_kimi_eagle.states import Convention, States, show, states_of
from sglang_kimi_eagle.wiring import Reason, read_ids

_LONGEST = 4096
"""Characters of a path that is printed."""


def pin(
    drafter: Annotated[str, typer.Argument(help="Folder, or hub id in the local cache.")],
    states: Annotated[
        str | None, typer.Option(help="The states it was trained on, for example 3,31,59.")
    ] = None,
    convention: Annotated[
        Convention | None,
        typer.Option(help="What its ids mean: outputs of layers, or their inputs."),
    ] = None,
    for_stock: Annotated[
        str | None,
        typer.Option(help="Rewrite ids for unmodified SGLang of these releases: '>=0.5.13'."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a copy to this folder.")
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Change config.json itself; a backup is kept.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(help="The target's folder or hub id. Without it: 61 layers, Kimi-K2.5's."),
    ] = None,
) -> None:
    """Write down which states a drafter was trained on."""
    if states is not None and convention is not None:
        raise typer.BadParameter("give --states or --convention, not both")
    if states is None and convention is None and for_stock is None:
        raise typer.BadParameter("give --states, --convention or --for-stock")
    if (output is None) != in_place:
        raise typer.BadParameter("give one of --output FOLDER and --in-place")
    specifier = _specifier(for_stock)
    checkpoint = open_drafter(drafter)
    if wrong := no_drafter(checkpoint):
        # The two paths changed places, perhaps: a copy of the target is large.
        print_findings(wrong)
        raise typer.Exit(REFUSED)
    num_layers = layers_of(target)
    try:
        chosen = _choose(checkpoint, states, convention, specifier, num_layers)
        pinned = chosen.applied_to(checkpoint.config)
        if output is None:
            backup = write_in_place(checkpoint.folder, pinned)
            where = f"{checkpoint.folder} (before: {backup.name})"
        else:
            write_copy(checkpoint.folder, output, pinned)
            where = str(output)
    except PinRefused as error:
        print_findings([error.finding])
        raise typer.Exit(REFUSED) from None
    where = printable(where, _LONGEST)
    typer.echo(f"{where}: ids {list(chosen.ids)}, {chosen.convention.value}, {show(chosen.states)}")


def _specifier(text: str | None) -> SpecifierSet | None:
    if text is None:
        return None
    try:
        specifier = SpecifierSet(text)
    except InvalidSpecifier:
        raise typer.BadParameter(
            f"{text!r} is no version specifier; for example '>=0.5.13'", param_hint="--for-stock"
        ) from None
    if not any(specifier.contains(version, prereleases=True) for version in RELEASES):
        typer.echo(f"No release of the table matches {text!r}.", err=True)
        raise typer.Exit(USAGE)
    return specifier


def _choose(
    checkpoint: Drafter,
    states: str | None,
    convention: Convention | None,
    specifier: SpecifierSet | None,
    num_layers: int,
) -> Pin:
    """Turn the options into ids and a convention, checked like any drafter's."""
    declared = read_ids(checkpoint.config)
    wanted = _wanted(checkpoint, states, convention, num_layers)
    checked = wiring_of(checkpoint, num_layers, RELEASES[NEWEST], Settings(states=wanted))
    for finding in checked.findings:
        if checked.reason is Reason.REFUSED and finding.severity.value == "error":
            raise PinRefused(finding)
    if specifier is not None:
        return pin_for_stock(wanted, specifier, num_layers)
    if convention is not None and declared.effective is not None:
        return Pin(declared.effective, convention)
    return pin_states(wanted, declared.effective)


def _wanted(
    checkpoint: Drafter, states: str | None, convention: Convention | None, num_layers: int
) -> States:
    """Return the states that the options, or else the drafter itself, name."""
    if states is not None:
        parsed = parse_states(states)
        if parsed is None:
            raise typer.BadParameter(
                f"{states!r} are no states; for example 3,31,59", param_hint="--states"
            )
        return parsed
    declared = read_ids(checkpoint.config)
    if convention is not None:
        if declared.effective is None:
            raise PinRefused(
                NOTHING_TO_DECLARE.found(
                    "The drafter has no layer ids that a convention could be about.",
                    where=str(checkpoint.folder / "config.json"),
                    mend="Name the states instead: --states 3,31,59.",
                )
            )
        return states_of(declared.effective, convention)
    own = wiring_of(checkpoint, num_layers, RELEASES[NEWEST], Settings())
    if own.states is None or own.reason is Reason.AMBIGUOUS:
        raise PinRefused(own.findings[0])
    return own.states
