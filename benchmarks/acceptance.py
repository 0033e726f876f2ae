"""Acceptance length of the shipped drafter of the story, by how it is wired.

    python -m benchmarks.acceptance [--release 0.5.23]

Serves the tiny Kimi-K2.5 with the drafter trained on h[3], h[5], h[7] (ids [2, 4, 6], nothing
declared) in every way that users meet, and writes the table to ``benchmarks/reports`` and between
its marks in the README.  Speeds, paired, are in ``benchmarks.wiring_worth``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reporting import bars, write_report
from cpu_engine.environments import ensure
from cpu_engine.server import Server
from tiny_models.paths import CHECKPOINTS, LLAMA, TARGET
from tiny_models.prompt_file import load_prompts

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
TOKENS = 64


@dataclass(frozen=True)
class Row:
    """One way to serve the drafter, measured."""

    name: str
    states: str
    length: float | None
    output_ids: list[list[int]]


def serve(
    release: str,
    name: str,
    states: str,
    draft: Path | None,
    *,
    plugin: bool,
    environ: Mapping[str, str] = {},
) -> Row:
    """Measure one way: all prompts greedily."""
    environment = ensure(release, plugin=plugin, progress=print)
    prompts = [prompt.ids for prompt in load_prompts(CHECKPOINTS)]
    with (
        tempfile.TemporaryDirectory() as scratch,
        Server(
            environment,
            CHECKPOINTS / TARGET,
            draft,
            log=Path(scratch) / "log",
            environ=environ,
            progress=print,
        ) as server,
    ):
        done = server.generate(prompts, TOKENS)
    verified = sum(one.meta.get("spec_verify_ct") or 0 for one in done)
    return Row(
        name,
        states,
        sum(one.meta["completion_tokens"] for one in done) / verified if verified else None,
        [one.output_ids for one in done],
    )


def pin(folder: Path, *options: str) -> Path:
    """Run ``sglang-kimi-eagle pin`` on the drafter; return the pinned copy."""
    command = [sys.executable, "-m", "sglang_kimi_eagle", "pin", str(CHECKPOINTS / LLAMA.folder)]
    command += ["--target", str(CHECKPOINTS / TARGET), "--output", str(folder), *options]
    subprocess.run(command, check=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--release", default="0.5.23")
    release = parser.parse_args().release
    shipped = CHECKPOINTS / LLAMA.folder
    with tempfile.TemporaryDirectory() as scratch:
        declared = pin(Path(scratch) / "declared", "--states", "3,5,7")
        for_stock = pin(
            Path(scratch) / "for-stock", "--states", "3,5,7", "--for-stock", f"=={release}"
        )
        rows = [
            serve(release, "no speculation", "-", None, plugin=False),
            serve(release, "stock SGLang", "h[2], h[4], h[6]", shipped, plugin=False),
            serve(release, "plugin, nothing declared", "h[2], h[4], h[6]", shipped, plugin=True),
            serve(
                release, "plugin, `pin --states 3,5,7`", "h[3], h[5], h[7]", declared, plugin=True
            ),
            serve(
                release,
                f"no plugin, `pin --for-stock '=={release}'`",
                "h[3], h[5], h[7]",
                for_stock,
                plugin=False,
            ),
        ]
    report = render(release, rows)
    speculating = {row.name: row.length for row in rows if row.length is not None}
    labels = [name.replace(", ", ",\n") for name in speculating]
    picture = bars("acceptance", labels, {"": list(speculating.values())}, "acceptance length")
    write_report("acceptance", "Acceptance length by wiring", [report, picture])
    marks = re.compile(r"(<!-- acceptance -->\n).*?(<!-- /acceptance -->)", re.DOTALL)
    README.write_text(marks.sub(lambda m: f"{m[1]}{report}{m[2]}", README.read_text()))
    if any(row.output_ids != rows[0].output_ids for row in rows):
        raise SystemExit("greedy tokens differ between the runs")


def render(release: str, rows: list[Row]) -> str:
    """Format the rows as a Markdown table."""
    plain = rows[0]
    lines = [
        f"| SGLang {release} | states fed | acceptance length | tokens |",
        "|---|---|---|---|",
    ]
    for row in rows:
        same = "equal" if row.output_ids == plain.output_ids else "DIFFER"
        length = "-" if row.length is None else f"{row.length:.3f}"
        lines.append(f"| {row.name} | {row.states} | {length} | {same} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
