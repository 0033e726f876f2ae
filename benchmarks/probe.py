"""What it costs to find out a drafter's wiring with ``probe``.

    python -m benchmarks.probe [--part memory|time]

*Memory*: one candidate over 512 tokens with a drafter of Kimi-K2.5's size.  Its files are sparse
(real headers, weights of zero); they are read like any others, so memory and time are real, and
what is drafted is not.

*Time*: one launch with the probe, beside two launches that each try one wiring on the same prompts
- what people do without it.  The engine runs on CPU with a tiny target, where a launch takes less
time than anywhere else: on eight GPUs the probe is a smaller part of it.  Rounds alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import drafter_files
from benchmarks.reporting import bars, write_report
from cpu_engine.environments import Environment, ensure
from cpu_engine.launch import launch_args, launch_environ
from cpu_engine.server import free_port
from drafter_files import Checkpoint, Tensor
from sglang_kimi_eagle.probing.calibration import PROMPTS
from sglang_kimi_eagle.probing.recording import NEW_TOKENS
from sglang_kimi_eagle.probing.serving import running
from tiny_models.paths import CHECKPOINTS, LLAMA, TARGET

ROOT = Path(__file__).resolve().parent.parent
RELEASE = "0.5.23"
TOKENS = 512
HIDDEN, VOCABULARY = 7168, 163840
LIMIT_GB = 8.0
ROUNDS = 3
DRAFTERS = ("modelopt_mla", "reduced_mha")

# Not ru_maxrss, which a child takes over from the process that started it.
PEAK = """
import re
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
ONE_CANDIDATE = """
import json, sys, time
from pathlib import Path
import torch
from sglang_kimi_eagle.drafter import read_drafter
from sglang_kimi_eagle.probing.acceptance import tally
from sglang_kimi_eagle.probing.loading import load
from sglang_kimi_eagle.probing.samples import choose
from sglang_kimi_eagle.probing.scoring import score
from sglang_kimi_eagle.tracing.trace_file import read_trace
drafter, target, folder, device = sys.argv[1:5]
began = time.perf_counter()
trace = read_trace(Path(folder))
samples = choose(trace, None)
loaded = load(read_drafter(drafter), target, samples.tokens, device=device)
read = time.perf_counter()
tally(score(loaded, trace, samples.chosen, (2, 30, 58), 3))
done = time.perf_counter()
print(json.dumps({"memory": peak(), "read": read - began, "scored": done - read,
                  "tokens": samples.rows, "threads": torch.get_num_threads()}))
"""
WRITE_TRACE = """
import sys
from pathlib import Path
import torch
from sglang_kimi_eagle.tracing.trace_file import Facts, Piece, write_file
folder, target, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
random = torch.Generator().manual_seed(1)
tokens = torch.randint(163840, (count,), generator=random)
states = {k: torch.randn(count, 7168, generator=random).bfloat16() for k in (2, 30, 58)}
write_file(
    folder / "0.safetensors",
    {
        "tokens": tokens,
        "positions": torch.arange(count),
        "fed": torch.cat(list(states.values()), dim=-1),
        "fed_tokens": tokens.roll(-1),
        **{f"h.{k}": state for k, state in states.items()},
    },
    Facts(plugin="0", sglang="0.5.23", mode="EXTEND", rank=0, tp_size=8, order=0, target=target,
          drafter="drafter", num_layers=61, hidden_size=7168, wired=(2, 30, 58), reason="",
          pieces=(Piece("a", 0, count),)),
)
"""


def memory(device: str) -> list[str]:
    """Score one candidate in an interpreter of its own; return the report's lines."""
    python = ensure(RELEASE, plugin=True, progress=print).python
    lines = [
        f"One candidate over {TOKENS} tokens, 3 steps, on {device}; a bound of {LIMIT_GB:.0f} GB.",
        "",
        "| drafter | its weights, GB | peak memory, GB | read, s | scored, s |",
        "|---|---|---|---|---|",
    ]
    sizes: dict[str, list[float]] = {"its weights": [], "peak memory": []}
    for name in DRAFTERS:
        with tempfile.TemporaryDirectory() as scratch:
            checkpoint: Checkpoint = getattr(drafter_files, name)()
            drafter = checkpoint.write(Path(scratch) / "drafter", shards=4)
            target = _target(Path(scratch) / "target")
            trace = Path(scratch) / "trace"
            trace.mkdir()
            # Two more than are scored: the last chain has a token to be compared with.
            _run(python, WRITE_TRACE, trace, target, TOKENS + 2)
            found = json.loads(_run(python, PEAK + ONE_CANDIDATE, drafter, target, trace, device))
        assert found["tokens"] == TOKENS
        size = sum(tensor.length for tensor in checkpoint.tensors.values()) / 1e9
        peak = found["memory"] / 1e9
        for figures, figure in zip(sizes.values(), (size, peak), strict=True):
            figures.append(figure)
        cells = [name.replace("_", "-"), f"{size:.2f}", f"{peak:.2f}"]
        cells += [f"{found['read']:.1f}", f"{found['scored']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1])
        if peak > LIMIT_GB:
            raise SystemExit(f"{name}: {peak:.2f} GB is more than {LIMIT_GB} GB")
    lines += ["", f"{found['threads']} threads. The peak has torch's own {_torch(python):.2f} GB."]
    return [*lines, "", bars("probe_memory", DRAFTERS, sizes, "GB")]


def durations() -> list[str]:
    """Time a probe and two launches, in turns; return the report's lines."""
    environment = ensure(RELEASE, plugin=True, progress=print)
    probes, pairs, bare = [], [], []
    for number in range(ROUNDS):
        probes.append(_probe(environment))
        launches = [_launch(environment) for _ in range(2)]
        pairs.append(sum(whole for whole, _ in launches))
        bare.append(sum(ready for _, ready in launches))
        print(
            f"round {number + 1}: probe {probes[-1]:.1f} s, two launches {pairs[-1]:.1f} s, "
            f"{bare[-1]:.1f} s until they are ready"
        )
    seconds = [statistics.median(times) for times in (probes, pairs, bare)]
    labels = ["probe", "two launches", "two launches\nuntil ready"]
    picture = bars("probe_time", labels, {"": seconds}, "s")
    ratios = [ours / theirs for ours, theirs in zip(probes, pairs, strict=True)]
    to_ready = [ours / theirs for ours, theirs in zip(probes, bare, strict=True)]
    return [
        f"SGLang {RELEASE}, {len(PROMPTS)} prompts of {NEW_TOKENS} new tokens, {ROUNDS} rounds, "
        "medians.",
        "",
        "| | s | probe / it |",
        "|---|---|---|",
        f"| `probe --launch`: one launch, recording, 12 candidates | {seconds[0]:.1f} | 1.00 |",
        f"| two launches, each with the same prompts | {seconds[1]:.1f} | "
        f"{statistics.median(ratios):.2f} |",
        f"| the same two, only until they are ready | {seconds[2]:.1f} | "
        f"{statistics.median(to_ready):.2f} |",
        "",
        picture,
    ]


def _probe(environment: Environment) -> float:
    draft = CHECKPOINTS / LLAMA.folder
    command = [str(environment.python), "-m", "sglang_kimi_eagle", "probe", str(draft)]
    command += ["--launch", "--json", "--"]
    command += launch_args(RELEASE, CHECKPOINTS / TARGET, draft, port=free_port())
    began = time.perf_counter()
    done = subprocess.run(
        command, env=launch_environ(environment), capture_output=True, text=True, cwd=ROOT
    )
    passed = time.perf_counter() - began
    assert json.loads(done.stdout)["verdict"]["states"] == list(LLAMA.trained_on), done.stderr
    return passed


def _launch(environment: Environment) -> tuple[float, float]:
    """Start, ask and end a server; return the seconds, and those until it was ready."""
    draft = CHECKPOINTS / LLAMA.folder
    words = launch_args(RELEASE, CHECKPOINTS / TARGET, draft, port=free_port())
    environ = launch_environ(environment)
    with tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        with running(words, str(environment.python), environ, Path(scratch), keep=False) as server:
            server.wait(600, lambda _passed: None)
            ready = time.perf_counter() - began
            prompts = [server.client.tokenize(prompt.messages) or () for prompt in PROMPTS]
            server.client.generate(prompts, NEW_TOKENS)
        return time.perf_counter() - began, ready


def _target(folder: Path) -> Path:
    """A target of which only the embedding and the head are there."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(drafter_files.KIMI))
    names = ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight")
    tensors = {name: Tensor((VOCABULARY, HIDDEN)) for name in names}
    drafter_files.write_safetensors(folder / "model.safetensors", tensors)
    return folder


def _torch(python: Path) -> float:
    return int(_run(python, f"{PEAK}import torch; print(peak())")) / 1e9


def _run(python: Path, code: str, *arguments: object) -> str:
    words = [str(python), "-c", code, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=dict(os.environ))
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("memory", "time"))
    parser.add_argument("--device", default="cpu", help="of the memory part")
    options = parser.parse_args()
    if options.part != "time":
        title = "A probe with a drafter of Kimi-K2.5's size"
        write_report("probe_memory", title, memory(options.device))
    if options.part != "memory":
        write_report("probe_time", "A probe beside two launches", durations())


if __name__ == "__main__":
    main()
