"""Broken checkpoints at random: is there a traceback, a hang, or memory without bound?

    python -m benchmarks.fuzz [--cases 200000] [--seed 1]

Healthy drafters whose config, shard index, safetensors headers, maps or quantiser's file were
changed are read and checked on a release chosen at random (``tests/fuzz/mutate.py``).  The run
stops at the first traceback, and at the first case of more than two seconds of processor time.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.reporting import bars, write_report
from fuzz.mutate import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    def progress(number: int) -> None:
        if number % 10_000 == 0:
            print(f"{number} of {options.cases}", flush=True)

    began = time.perf_counter()
    outcome = run(options.cases, options.seed, progress)
    passed = time.perf_counter() - began
    common = outcome.codes.most_common(12)
    lines = [
        f"{outcome.cases} cases, seed {options.seed}: no traceback.",
        "",
        "| | |",
        "|---|---|",
        f"| time of all, s | {passed:.0f} |",
        f"| slowest case, ms of processor time | {1e3 * outcome.slowest:.0f} |",
        f"| growth of the largest memory, MB | {outcome.peak_growth_mb:.0f} |",
        f"| diagnostics that were found | {len(outcome.codes)} |",
        f"| cases without any | {outcome.codes['clean']} |",
        "",
        "The most common ones:",
        "",
    ]
    labels, counts = [code for code, _ in common], [float(count) for _, count in common]
    picture = bars("fuzz", labels, {"": counts}, "cases")
    write_report("fuzz", "Broken checkpoints at random", [*lines, picture])


if __name__ == "__main__":
    main()
