"""How long a launch with a broken drafter takes to say so.

    python -m benchmarks.refusal [--pairs 5]

Beside each other, in turn: ``import sglang.srt.server_args`` alone, which every launch begins with,
and ``python -m sglang.launch_server`` with a broken drafter until it has exited with status 3.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.reporting import bars, write_report
from cpu_engine.environments import ensure
from cpu_engine.launch import launch_command, launch_environ
from tiny_models.paths import CHECKPOINTS, LLAMA, TARGET

ROOT = Path(__file__).resolve().parent.parent
RELEASES = ("0.5.9", "0.5.13.post1", "0.5.23")


def timed(command: Sequence[str], environ: dict[str, str], status: int) -> float:
    """Run a command that must exit with ``status``; return its time in seconds."""
    begin = time.perf_counter()
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    spent = time.perf_counter() - begin
    if done.returncode != status:
        raise SystemExit(f"{command} exited with {done.returncode}:\n{done.stderr[-2000:]}")
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    medians: dict[str, float] = {}
    lines = ["| SGLang | import, s | refused after, s | ratio |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as scratch:
        drafter = Path(scratch) / "drafter"
        shutil.copytree(CHECKPOINTS / LLAMA.folder, drafter)
        config = json.loads((drafter / "config.json").read_text())
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [-1, 2, 4]
        (drafter / "config.json").write_text(json.dumps(config))
        for release in RELEASES:
            environment = ensure(release, plugin=True, progress=print)
            environ = launch_environ(environment)
            python = str(environment.python)
            importing = [python, "-c", "import sglang.srt.server_args"]
            launching = launch_command(environment, CHECKPOINTS / TARGET, drafter, port=29999)
            timed(importing, environ, 0)
            timed(launching, environ, 3)
            imports, launches = [], []
            for _ in range(pairs):
                imports.append(timed(importing, environ, 0))
                launches.append(timed(launching, environ, 3))
            ratios = [b / a for a, b in zip(imports, launches, strict=True)]
            medians[release] = statistics.median(ratios)
            lines.append(
                f"| {release} | {statistics.median(imports):.1f} "
                f"| {statistics.median(launches):.1f} | {medians[release]:.2f} |"
            )
    picture = bars("refusal", list(medians), {"refusal / import": list(medians.values())}, "ratio")
    title = "From launch to diagnostic, with a broken drafter"
    write_report("refusal", title, [f"Medians of {pairs} pairs.", "", *lines, "", picture])


if __name__ == "__main__":
    main()
