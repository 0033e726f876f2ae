"""A soak: SGLang's own ``bench_serving`` in rounds, with clients that go away, and the memory.

    python -m benchmarks.load [--rounds 6] [--requests 200]

The tiny Kimi-K2.5 with the pinned drafter of the story, plugin on, SGLang 0.5.23, 16 requests at
once.  The texts of every round are compared with those of the target alone.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.acceptance import pin
from benchmarks.reporting import bars, write_report
from cpu_engine.environments import ensure
from cpu_engine.load import (
    Answers,
    bench_serving,
    impatient_clients,
    resident_megabytes,
    write_requests,
)
from cpu_engine.server import Server
from tiny_models.paths import CHECKPOINTS, TARGET
from tiny_models.prompt_file import load_prompts

RELEASE = "0.5.23"
CONCURRENCY = 16
ARGS = ("--max-running-requests", str(CONCURRENCY))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=200)
    options = parser.parse_args()
    prompts = load_prompts(CHECKPOINTS)
    target = CHECKPOINTS / TARGET
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        texts = [prompt.text for prompt in prompts]
        requests = write_requests(scratch / "requests.jsonl", texts, options.requests)
        draft = pin(scratch / "draft", "--states", "3,5,7")
        plain = ensure(RELEASE, plugin=False, progress=print)
        with Server(plain, target, args=ARGS, log=scratch / "plain.log") as server:
            expected = bench_serving(server, target, requests, concurrency=CONCURRENCY)
        environment = ensure(RELEASE, plugin=True, progress=print)
        rounds: list[tuple[Answers, float, int]] = []
        with Server(environment, target, draft, args=ARGS, log=scratch / "log") as server:
            for _ in range(options.rounds):
                with impatient_clients(server, [prompt.ids for prompt in prompts]) as gone:
                    answers = bench_serving(server, target, requests, concurrency=CONCURRENCY)
                rounds.append((answers, resident_megabytes(server.pid), len(gone)))
            log = server.log_text
    lines = [
        f"SGLang {RELEASE}, plugin on, {options.requests} requests a round, "
        f"{CONCURRENCY} at once, streaming.",
        "",
        "| round | errors | texts equal to the target's | clients gone | resident, MB |",
        "|---|---|---|---|---|",
    ]
    for number, (answers, memory, gone_count) in enumerate(rounds, start=1):
        equal = sum(a == b for a, b in zip(answers.texts, expected.texts, strict=True))
        errors = sum(bool(error) for error in answers.errors)
        lines.append(
            f"| {number} | {errors} | {equal} of {len(expected.texts)} | {gone_count} "
            f"| {memory:.0f} |"
        )
    growth = rounds[-1][1] / rounds[min(1, len(rounds) - 1)][1]
    lines += [
        "",
        f"Memory, last round to second: {growth:.3f}. "
        f"Leaks in SGLang's own count: {log.count('leak')}.",
    ]
    names = [f"round {number}" for number in range(1, len(rounds) + 1)]
    picture = bars("load", names, {"resident": [memory for _, memory, _ in rounds]}, "MB")
    write_report("load", "Load, and clients that go away", [*lines, "", picture])


if __name__ == "__main__":
    main()
