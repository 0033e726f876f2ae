"""What the start-up hook adds to the start of an interpreter.

    python -m benchmarks.startup_hook [--pairs 40]

Two virtual environments that differ in one thing, the installed wheel, start an interpreter in
turn.  Reports the median of the paired differences and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.reporting import bars, write_report

ROOT = Path(__file__).resolve().parent.parent


def environment(folder: Path, *, wheel: Path | None) -> Path:
    """Build a virtual environment, with the wheel or without; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    if wheel is not None:
        subprocess.run(
            [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel],
            check=True,
        )
    return python


def start(python: Path) -> float:
    """Start an interpreter that does nothing; return the time in ms."""
    begin = time.perf_counter()
    pid = os.posix_spawn(python, [str(python), "-c", "pass"], {"PATH": os.environ["PATH"]})
    os.waitpid(pid, 0)
    return (time.perf_counter() - begin) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT],
            check=True,
        )
        (wheel,) = folder.glob("*.whl")
        without = environment(folder / "without", wheel=None)
        with_hook = environment(folder / "with", wheel=wheel)
        for python in (without, with_hook) * 5:  # file caches and bytecode
            start(python)
        plain, hooked = [], []
        for turn in range(pairs):
            order = ((without, plain), (with_hook, hooked))
            for python, times in order if turn % 2 else reversed(order):
                times.append(start(python))
    differences = [b - a for a, b in zip(plain, hooked, strict=True)]
    added = statistics.median(differences)
    ratio = statistics.median(hooked) / statistics.median(plain)
    quarter, _, three_quarters = statistics.quantiles(differences, n=4)
    medians = [statistics.median(plain), statistics.median(hooked)]
    lines = [
        f"{pairs} pairs, order alternated, Python {sys.version.split()[0]}.",
        "",
        "| | median, ms |",
        "|---|---|",
        f"| without the wheel | {medians[0]:.2f} |",
        f"| with the wheel | {medians[1]:.2f} |",
        f"| paired difference | {added:.2f} (quartiles {quarter:.2f} to {three_quarters:.2f}) |",
        f"| ratio | {ratio:.3f} |",
    ]
    picture = bars("startup_hook", ["without the wheel", "with the wheel"], {"": medians}, "ms")
    title = "Start of an interpreter, with and without the start-up hook"
    write_report("startup_hook", title, [*lines, "", picture])


if __name__ == "__main__":
    main()
