"""``sglang-kimi-eagle patch``: the plugin's change as a patch for SGLang's sources."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sglang_kimi_eagle.cli.output import USAGE, print_findings, status_of
from sglang_kimi_eagle.diagnostics import REFUSED, printable
from sglang_kimi_eagle.patching.findings import (
    MIXED_TREE,
    NOT_APPLIED,
    OUTPUT_NOT_WRITTEN,
    PatchRefused,
)
from sglang_kimi_eagle.patching.shipped import patch_of
from sglang_kimi_eagle.patching.trees import Tree, apply, locate, read_tree, undo

_LONGEST = 4096
"""Characters of a path that is printed."""


def patch(
    sglang: Annotated[
        str | None,
        typer.Option(
            help="The release: 0.5.9. With a folder, the one that it has to be; with --from, "
            "its name in the patch."
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Generate from the sources in this folder (needs libcst)."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the patch here, not to stdout.")
    ] = None,
    apply_to: Annotated[Path | None, typer.Option(help="Patch the SGLang in this folder.")] = None,
    check: Annotated[
        Path | None, typer.Option(help="Tell whether the SGLang in this folder is patched.")
    ] = None,
    undo_in: Annotated[
        Path | None, typer.Option("--undo", help="Take the patch back in this folder.")
    ] = None,
) -> None:
    """Print, apply, check or take back the patch that makes the plugin unnecessary.

    A folder is a checkout of SGLang, a site-packages, or the sglang package itself.  Its files
    must be those of a release, to the byte; --check exits with 0 when they are patched and with 1
    when they are not.
    """
    folders = [folder for folder in (source, apply_to, check, undo_in) if folder is not None]
    if len(folders) > 1 or not (folders or sglang) or (output and not source and folders):
        typer.echo(
            "Say what to do: --sglang VERSION or --from DIR (each with or without -o FILE), "
            "--apply-to DIR, --check DIR, or --undo DIR.",
            err=True,
        )
        raise typer.Exit(USAGE)
    try:
        if source is not None:
            _write(_generated(source, sglang or "unknown"), output)
        elif apply_to is not None:
            _apply(read_tree(apply_to, sglang))
        elif check is not None:
            _check(read_tree(check, sglang))
        elif undo_in is not None:
            _undo(read_tree(undo_in, sglang))
        elif sglang is not None:
            _write(patch_of(sglang).render(), output)
    except PatchRefused as refusal:
        print_findings(refusal.findings)
        raise typer.Exit(REFUSED) from None


def _named(tree: Tree) -> str:
    return printable(f"SGLang {tree.version} in {tree.package}", _LONGEST)


def _generated(folder: Path, version: str) -> str:
    from sglang_kimi_eagle.patching.generate import generate

    return generate(locate(folder), version).render()


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_bytes(text.encode())
    except OSError as error:
        raise PatchRefused(
            OUTPUT_NOT_WRITTEN.found(
                f"The patch cannot be written: {error.strerror}.",
                where=str(output),
                leads_to="There is no patch.",
                mend="Name a file that can be written, or leave -o out.",
            )
        ) from error
    typer.echo(printable(str(output), _LONGEST))


def _apply(tree: Tree) -> None:
    apply(tree)
    done = "was patched already" if tree.applied else "is patched"
    typer.echo(f"{_named(tree)} {done}.")


def _check(tree: Tree) -> None:
    if tree.applied:
        typer.echo(f"{_named(tree)} is patched.")
        return
    if tree.mixed:
        finding = MIXED_TREE.found(
            f"SGLang {tree.version} is patched in part.",
            where=str(tree.package),
            seen=f"patched: {', '.join(tree.patched)}",
            leads_to="SGLang does not start, or takes the part that is there for the whole.",
            mend="sglang-kimi-eagle patch --apply-to DIR patches the rest; --undo takes the part "
            "back.",
        )
    else:
        finding = NOT_APPLIED.found(
            f"SGLang {tree.version} is as released; its patch applies.",
            where=str(tree.package),
            leads_to="Without the plugin, drafters are fed what this release makes of their ids.",
            mend="sglang-kimi-eagle patch --apply-to DIR, or keep the plugin: both are not needed.",
        )
    print_findings([finding])
    raise typer.Exit(status_of([finding]))


def _undo(tree: Tree) -> None:
    undo(tree)
    done = "is as released again" if tree.patched else "was not patched"
    typer.echo(f"{_named(tree)} {done}.")
