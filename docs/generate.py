"""Writes the generated parts of the documentation: ``python docs/generate.py`` in the repository.

Whatever stands between ``<!-- NAME -->`` and ``<!-- /NAME -->`` of a page is made here, from the
tables and commands of the package themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from typer.main import get_command

from sglang_kimi_eagle.catalogue import KNOWN
from sglang_kimi_eagle.cli import app
from sglang_kimi_eagle.releases import RELEASES, Release, spans

ROOT = Path(__file__).resolve().parents[1]


def releases() -> str:
    """What the plugin does on each release, neighbours that are alike in one row."""
    lines = [
        "| SGLang | loaded by | three methods | ids k mean | MLA drafters | mended |",
        "|---|---|---|---|---|---|",
    ]
    for row, alike in groupby(RELEASES.values(), _release_row):
        versions = spans([release.version for release in alike])
        lines.append(f"| {versions} | {' | '.join(row)} |")
    return "\n".join(lines)


def _release_row(release: Release) -> tuple[str, ...]:
    mended = [
        text
        for has_it, text in (
            (release.graphs_reset_ids, "graphs captured with default ids"),
            (release.partial_sums, "partial sums"),
        )
        if has_it
    ]
    return (
        "SGLang" if release.plugin_framework else "start-up hook",
        "there" if release.wrapper_methods else "added",
        release.setter_rule.value.removeprefix("every id k is "),
        "yes" if release.mla_drafter else "no",
        "; ".join(mended) or "-",
    )


def known_drafters() -> str:
    """The catalogue."""
    lines = ["| drafter | its ids are | known from |", "|---|---|---|"]
    lines += [f"| {one.name} | {one.convention.value} | {one.source} |" for one in KNOWN]
    return "\n".join(lines)


def commands() -> str:
    """Every command with its arguments and options, from the command line itself."""
    found: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    return "\n\n".join(_command(name, command) for name, command in found.items())


def _command(name: str, command: Any) -> str:
    lines = [
        f"## {name}",
        "",
        _cell(command.help or ""),
        "",
        "| argument or option | |",
        "|---|---|",
    ]
    lines += [
        f"| `{_spelling(parameter)}` | {_cell(getattr(parameter, 'help', None) or '')} |"
        for parameter in command.params
    ]
    return "\n".join(lines)


def _spelling(parameter: Any) -> str:
    """``-o, --output VALUE`` for an option, ``DRAFTER`` for an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return ", ".join(parameter.opts) + ("" if parameter.is_flag else " VALUE")


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", r"\|").strip()


def reports() -> str:
    """The list of benchmark reports, by their titles."""
    lines = []
    for path in sorted((ROOT / "benchmarks" / "reports").glob("*.md")):
        title = path.read_text("utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}](reports/{path.name})")
    return "\n".join(lines)


PARTS: dict[str, tuple[Callable[[], str], Sequence[str]]] = {
    "releases": (releases, ("README.md", "docs/releases.md")),
    "known drafters": (known_drafters, ("docs/releases.md",)),
    "reports": (reports, ("docs/measured.md",)),
    "commands": (commands, ("docs/commands.md",)),
}


def generated() -> Iterator[tuple[Path, str]]:
    """Yield every page that has generated parts, with the text that it must have."""
    pages = {page for _, pages in PARTS.values() for page in pages}
    for page in sorted(pages):
        path = ROOT / page
        text = path.read_text("utf-8")
        for name, (make, where) in PARTS.items():
            if page in where:
                text = _fill(text, name, make(), page)
        yield path, text


def _fill(text: str, name: str, part: str, page: str) -> str:
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    filled, count = re.subn(
        f"{begin}\n.*?{end}", lambda _: f"{begin}\n{part}\n{end}", text, flags=re.DOTALL
    )
    if count != 1:
        raise SystemExit(f"{page} must have {begin} and {end} once")
    return filled


if __name__ == "__main__":
    for path, text in generated():
        path.write_text(text, "utf-8")
