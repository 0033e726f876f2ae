"""What the right wiring is worth, at several temperatures, for a chain of drafts and for a tree.

    python -m benchmarks.wiring_worth

Serves the tiny Kimi-K2.5 with the drafter trained on h[3], h[5], h[7], fed those and fed h[2],
h[4], h[6], beside the target alone; SGLang 0.5.23.  Requests go to the servers in turn, and speeds
are ratios to the target alone.  Above temperature 0 the verify step samples, by a CPU version of
the GPU's kernel that SGLang's CPU engine lacks.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.acceptance import pin
from benchmarks.reporting import bars, write_report
from cpu_engine.environments import ensure
from cpu_engine.server import Server
from tiny_models.paths import CHECKPOINTS, TARGET
from tiny_models.prompt_file import load_prompts

RELEASE = "0.5.23"
TOKENS = 64
ROUNDS = 3
TEMPERATURES = (0.0, 0.5, 1.0)
TREE = ("--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8")
SHAPES: dict[str, tuple[str, ...]] = {"chain of 3": (), "tree, topk 4, 8 tokens": TREE}
WIRINGS = {"right": "3,5,7", "wrong": "2,4,6"}


@dataclass
class Measured:
    """Figures of one server at one temperature."""

    tokens: int = 0
    verifies: int = 0
    speeds: list[float] = field(default_factory=list)

    @property
    def length(self) -> float:
        """Acceptance length, bonus token included."""
        return self.tokens / self.verifies


def ask(server: Server, temperature: float, into: Measured) -> None:
    """Send every prompt once, as one batch."""
    prompts = [prompt.ids for prompt in load_prompts(CHECKPOINTS)]
    begin = time.perf_counter()
    done = server.generate(prompts, TOKENS, temperature=temperature)
    seconds = time.perf_counter() - begin
    into.speeds.append(sum(len(one.output_ids) for one in done) / seconds)
    into.tokens += sum(one.meta["completion_tokens"] for one in done)
    into.verifies += sum(one.meta.get("spec_verify_ct") or 0 for one in done)


def measure(scratch: Path, shape: tuple[str, ...]) -> dict[tuple[str, float], Measured]:
    """Return the figures of each wiring, and of "none", at each temperature."""
    found: dict[tuple[str, float], Measured] = {}
    with ExitStack() as stack:
        servers = {"none": server(scratch, "none", None, ())}
        for name, states in WIRINGS.items():
            draft = scratch / name
            if not draft.exists():
                pin(draft, "--states", states)
            servers[name] = server(scratch, name, draft, shape)
        for one in servers.values():
            stack.enter_context(one)
            ask(one, 0.0, Measured())
        for temperature in TEMPERATURES:
            for _ in range(ROUNDS):
                for name, one in servers.items():
                    ask(one, temperature, found.setdefault((name, temperature), Measured()))
    return found


def server(scratch: Path, name: str, draft: Path | None, shape: tuple[str, ...]) -> Server:
    """Return a server to be started; without ``draft`` the target is alone."""
    return Server(
        ensure(RELEASE, plugin=True, progress=print),
        CHECKPOINTS / TARGET,
        draft,
        # A server whose turn it is not must leave the processors to the others.
        args=("--sleep-on-idle", *(shape if draft is not None else ())),
        environ={"CPU_ENGINE_PROBES": "sampled_verify"},
        log=scratch / f"{name}.log",
        progress=print,
    )


def main() -> None:
    lines = [
        f"SGLang {RELEASE}, {ROUNDS} rounds, medians. tok/s: ratio to the target alone.",
        "",
        "| drafts | temperature | right: length | wrong: length | right: tok/s | wrong: tok/s |",
        "|---|---|---|---|---|---|",
    ]
    series: dict[str, list[float]] = {name: [] for name in WIRINGS}
    labels = []
    with tempfile.TemporaryDirectory() as folder:
        for shape, args in SHAPES.items():
            found = measure(Path(folder), args)
            for temperature in TEMPERATURES:
                alone = statistics.median(found["none", temperature].speeds)
                right, wrong = (found[name, temperature] for name in WIRINGS)
                ratios = [statistics.median(one.speeds) / alone for one in (right, wrong)]
                lines.append(
                    f"| {shape} | {temperature} | {right.length:.2f} | {wrong.length:.2f} "
                    f"| {ratios[0]:.2f} | {ratios[1]:.2f} |"
                )
                labels.append(f"{shape.split(',')[0]}\nT = {temperature}")
                for name, one in zip(WIRINGS, (right, wrong), strict=True):
                    series[name].append(one.length)
    picture = bars("wiring_worth", labels, series, "acceptance length")
    write_report("wiring_worth", "What the right wiring is worth", [*lines, "", picture])


if __name__ == "__main__":
    main()
