"""What the plugin costs: launch to ready, memory, and tokens per second, beside stock SGLang.

A profile of decode batches says how often a function of the plugin, or of wrapt, was called.

    python -m benchmarks.cost [--release 0.5.23] [--pairs 3]

Both serve the tiny Kimi-K2.5 with a drafter that both wire rightly (``pin --for-stock``).  Launches
alternate; for the speed both servers run at once and get the same batches in turn, so that what
else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.acceptance import pin
from benchmarks.reporting import bars, write_report
from cpu_engine.environments import ensure
from cpu_engine.load import resident_megabytes
from cpu_engine.server import Server
from tiny_models.paths import CHECKPOINTS, TARGET
from tiny_models.prompt_file import load_prompts

KINDS = {"stock": False, "plugin": True}
TOKENS = 64
ROUNDS = 15


def launch(release: str, kind: str, draft: Path, scratch: Path) -> tuple[float, float]:
    """Start a server once; return the seconds to ready, and its peak memory in MB."""
    one = server(release, kind, draft, scratch)
    begin = time.perf_counter()
    with one:
        return time.perf_counter() - begin, resident_megabytes(one.pid, "VmHWM:")


def server(
    release: str, kind: str, draft: Path, scratch: Path, environ: Mapping[str, str] | None = None
) -> Server:
    """Return a server to be started."""
    environment = ensure(release, plugin=KINDS[kind])
    return Server(
        environment,
        CHECKPOINTS / TARGET,
        draft,
        # The server whose turn it is not must leave the processors to the other.
        args=("--sleep-on-idle",),
        environ=environ or {},
        log=scratch / f"{kind}.log",
    )


def profile(release: str, draft: Path, scratch: Path) -> tuple[int, int]:
    """Return the functions called in `cProfile` of the decode loop, and how many are ours."""
    note = scratch / "profile.json"
    probe = {"CPU_ENGINE_PROBES": "decode_profile", "CPU_ENGINE_PROFILE": str(note)}
    with server(release, "plugin", draft, scratch, probe) as one:
        one.generate([prompt.ids for prompt in load_prompts(CHECKPOINTS)], TOKENS)
    files = [file for file, _, _ in json.loads(note.read_text())]
    return len(files), sum("kimi_eagle" in file or "wrapt" in file for file in files)


def speeds(release: str, draft: Path, scratch: Path) -> dict[str, list[float]]:
    """Return the tokens per second of each batch, the servers taking turns in going first."""
    prompts = [prompt.ids for prompt in load_prompts(CHECKPOINTS)]
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    answers = {}
    with ExitStack() as stack:
        servers = {
            kind: stack.enter_context(server(release, kind, draft, scratch)) for kind in KINDS
        }
        for one in servers.values():
            one.generate(prompts, TOKENS)
        for turn in range(ROUNDS):
            for kind in sorted(KINDS, reverse=bool(turn % 2)):
                begin = time.perf_counter()
                done = servers[kind].generate(prompts, TOKENS)
                found[kind].append(len(done) * TOKENS / (time.perf_counter() - begin))
                answers[kind] = [one.output_ids for one in done]
    if answers["stock"] != answers["plugin"]:
        raise SystemExit("stock and plugin give different tokens")
    return found


def row(name: str, stock: list[float], plugin: list[float], unit: str) -> tuple[str, float]:
    """Format one figure of both as a row: medians, and the paired ratio with its quartiles."""
    ratios = [p / s for s, p in zip(stock, plugin, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    medians = " | ".join(f"{statistics.median(values):.1f} {unit}" for values in (stock, plugin))
    text = f"| {name} | {medians} | {middle:.3f} ({low:.3f} to {high:.3f}) |"
    return text, middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--release", default="0.5.23")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        draft = pin(scratch / "draft", "--states", "3,5,7", "--for-stock", f"=={options.release}")
        starts: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        for turn in range(options.pairs):
            for kind in sorted(KINDS, reverse=bool(turn % 2)):
                starts[kind].append(launch(options.release, kind, draft, scratch))
        rates = speeds(options.release, draft, scratch)
        called, ours = profile(options.release, draft, scratch)
    rows = [
        row("launch to ready", *([s for s, _ in starts[kind]] for kind in KINDS), "s"),
        row("peak memory, all processes", *([m for _, m in starts[kind]] for kind in KINDS), "MB"),
        row("tokens per second", rates["stock"], rates["plugin"], "tok/s"),
    ]
    lines = [
        f"SGLang {options.release}; {options.pairs} launches and {ROUNDS} batches each, in turn.",
        "",
        "| | stock | plugin | paired ratio, median (quartiles) |",
        "|---|---|---|---|",
        *(text for text, _ in rows),
    ]
    lines += [
        "",
        f"Profile of decode batches: {called} functions were called, {ours} of them of the plugin "
        "or of wrapt.",
    ]
    names = ["launch to ready", "peak memory", "tokens per second"]
    picture = bars("cost", names, {"plugin / stock": [ratio for _, ratio in rows]}, "ratio")
    write_report("cost", "What the plugin costs", [*lines, "", picture])


if __name__ == "__main__":
    main()
