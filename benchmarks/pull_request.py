"""What the pull request to SGLang changes, on the engine: the table in ``upstream_pr/PR.md``.

    python -m benchmarks.pull_request

Serves the tiny Kimi-K2.5 on the newest release, as released and with the pull request applied to a
copy; without the plugin in both cases. Each of the two drafters says nothing about its layer ids,
that they are outputs, or that they are inputs. Exits with 1 if a run generates other tokens than
the target alone.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cpu_engine.launch import KERNELS
from cpu_engine.records import captured_states
from cpu_engine.server import Server
from cpu_engine.warm import WarmEngine
from engine_tools import (
    PROBES,
    RECORDS,
    TARGET_FOLDER,
    Drafters,
    Engines,
    acceptance_length,
    records_of,
    tokens,
)
from patching.pull_request import FOLDER, copy_with_patches
from sglang_kimi_eagle.releases import NEWEST
from sglang_kimi_eagle.wiring import DECLARATION_KEY
from tiny_models.paths import CHECKPOINTS, LLAMA, MLA, DrafterRecipe
from tiny_models.prompt_file import load_prompts

TEXT = FOLDER / "PR.md"
TOKENS = 64
CONVENTIONS = (None, "layer_output", "layer_input")


@dataclass(frozen=True)
class Row:
    """One run: which states the target captured, and what came of it."""

    drafter: DrafterRecipe
    convention: str | None
    sglang: str
    states: str
    length: float
    equal: bool


class Measurement:
    """Serves each drafter on one SGLang after the other, and compares with the target alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engines = Engines(folder, print)
        self._drafters = Drafters(folder)
        self._prompts = [prompt.ids for prompt in load_prompts(CHECKPOINTS)]

    def rows(self) -> Iterator[Row]:
        """Measure everything."""
        package = self._engines.environment(NEWEST, plugin=False).site_packages / "sglang"
        patched = copy_with_patches(package, self._folder / "checkout")
        plain = self._plain(package.parent)
        for name, parent in ((NEWEST, package.parent), ("this PR", patched)):
            with self._warm(parent) as warm:
                for drafter in (LLAMA, MLA):
                    for convention in CONVENTIONS:
                        yield self._row(name, parent, warm, drafter, convention, plain)

    def _plain(self, parent: Path) -> list[list[int]]:
        with self._warm(parent) as warm, self._server(parent, warm, None, {}) as server:
            return tokens(server.generate(self._prompts, TOKENS))

    def _row(
        self,
        name: str,
        parent: Path,
        warm: WarmEngine,
        drafter: DrafterRecipe,
        convention: str | None,
        plain: list[list[int]],
    ) -> Row:
        def declare(config: dict[str, dict[str, str]]) -> None:
            if convention is not None:
                config["eagle_config"][DECLARATION_KEY] = convention

        draft = self._drafters.with_eagle_config(drafter, declare)
        records = self._engines.records_folder()
        with self._server(parent, warm, draft, {RECORDS: str(records)}) as server:
            done = server.generate(self._prompts, TOKENS)
        targets = [record for record in records_of(records) if record.kind == "target"]
        (states,) = {tuple(captured_states(record)) for record in targets}
        return Row(
            drafter,
            convention,
            name,
            ", ".join(str(state) for state in states),
            acceptance_length(done),
            tokens(done) == plain,
        )

    @contextmanager
    def _warm(self, parent: Path) -> Iterator[WarmEngine]:
        with WarmEngine(
            self._engines.environment(NEWEST, plugin=False),
            log=self._folder / "warm.log",
            environ={"PYTHONPATH": f"{parent}:{KERNELS}", PROBES: "", RECORDS: ""},
        ) as warm:
            yield warm

    def _server(
        self, parent: Path, warm: WarmEngine, draft: Path | None, environ: dict[str, str]
    ) -> Server:
        return Server(
            self._engines.environment(NEWEST, plugin=False),
            TARGET_FOLDER,
            draft,
            log=self._folder / "server.log",
            environ={"PYTHONPATH": f"{parent}:{KERNELS}", **environ},
            progress=print,
            warm=warm,
        )


def render(rows: list[Row]) -> str:
    """Format the rows as a Markdown table, a drafter after the other."""
    lines = [
        "| draft model | trained on | `layer_id_convention` | SGLang "
        "| captured | acceptance length | output tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    order = sorted(
        rows,
        key=lambda row: (row.drafter.folder, CONVENTIONS.index(row.convention), row.sglang),
    )
    for row in order:
        kind = "Llama" if row.drafter is LLAMA else "MLA"
        trained = ", ".join(str(state) for state in row.drafter.trained_on)
        declared = f'`"{row.convention}"`' if row.convention else "not declared"
        captured = f"**{row.states}**" if row.states == trained else row.states
        lines.append(
            f"| {kind} | {trained} | {declared} | {row.sglang} | {captured} "
            f"| {row.length:.3f} | {'equal' if row.equal else 'DIFFER'} |"
        )
    lines += [
        "",
        "Trained on, captured: the states after so many layers; bold where these are the same. "
        f"{len(load_prompts(CHECKPOINTS))} prompts, {TOKENS} greedy tokens each, 3 steps, topk 1. "
        "Equal: the tokens that the target generates alone.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rows = list(Measurement(folder).rows())
    table = render(rows)
    marks = re.compile(r"(<!-- acceptance -->\n).*?(<!-- /acceptance -->)", re.DOTALL)
    text, places = marks.subn(lambda mark: f"{mark[1]}{table}{mark[2]}", TEXT.read_text())
    assert places == 1, "no place for the table"
    TEXT.write_text(text)
    print(table)
    if not all(row.equal for row in rows):
        sys.exit("tokens differ from those of the target alone")


if __name__ == "__main__":
    main()
