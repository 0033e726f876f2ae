"""Time and memory of validating a drafter of Kimi-K2.5's size, beside just opening it.

The drafter is a sparse file of 4 shards: its headers are real, its weights are holes.  Every
measurement is a fresh interpreter of one environment, that of SGLang 0.5.23, which has them all;
ours and theirs alternate, so that a busy machine slows all.
Run from the repository: ``python -m benchmarks.validate_drafter [--rounds 15]``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import drafter_files
from benchmarks.reporting import bars, write_report
from cpu_engine.environments import ensure

ROOT = Path(__file__).resolve().parent.parent
RELEASE = "0.5.23"
TEMPLATES = ("reduced-mha", "torchspec-mla")

START = """
import json, re, sys, time
folder, target = sys.argv[1:3]
# Not ru_maxrss, which a child takes over from the process that started it.
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
memory, began, spent = peak(), time.perf_counter(), time.process_time()
"""
END = """
done, spent = time.perf_counter(), time.process_time() - spent
print(json.dumps({"import": imported - began, "work": done - imported,
                  "total": done - began, "cpu": spent, "memory": peak() - memory}))
"""
SCRIPTS = {
    "sglang-kimi-eagle": """
from sglang_kimi_eagle.checks import Context, run_checks
from sglang_kimi_eagle.drafter import read_drafter
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.server_arguments import ServerArguments
from sglang_kimi_eagle.settings import Settings
from sglang_kimi_eagle.target import read_target
imported = time.perf_counter()
arguments = ServerArguments(model_path=target, speculative_algorithm="EAGLE3",
                            draft_model_path=folder)
findings = run_checks(Context(read_drafter(folder), read_target(target), arguments,
                              RELEASES["0.5.23"]), Settings())
assert findings == [], findings
""",
    "safetensors": """
from pathlib import Path
from safetensors import safe_open
imported = time.perf_counter()
config = json.loads((Path(folder) / "config.json").read_text())
index = json.loads((Path(folder) / "model.safetensors.index.json").read_text())
for name in sorted(set(index["weight_map"].values())):
    with safe_open(Path(folder) / name, framework="numpy") as file:
        for tensor in file.keys():
            piece = file.get_slice(tensor)
            piece.get_shape(), piece.get_dtype()
        for tensor in {"d2t", "t2d"} & set(file.keys()):
            file.get_tensor(tensor)
""",
    "transformers' config loader": """
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
imported = time.perf_counter()
# As SGLang does: kimi_k2 is its name for deepseek_v3.
kind = json.load(open(f"{folder}/config.json"))["model_type"].replace("kimi_k2", "deepseek_v3")
config = CONFIG_MAPPING[kind].from_pretrained(folder)
assert config.hidden_size == 7168
""",
}


def measure(python: Path, script: str, folder: Path, target: Path) -> dict[str, float]:
    code = START + SCRIPTS[script] + END
    # As installed: modules are compiled once, wherever this runs.
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder.parent / "compiled")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [str(python), "-c", code, str(folder), str(target)],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environ,
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    lines: list[str] = []
    totals: dict[str, list[float]] = {}

    def say(line: str) -> None:
        print(line)
        lines.append(line)

    python, names = ensure(RELEASE, plugin=True, progress=print).python, list(SCRIPTS)
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "target"
        target.mkdir()
        (target / "config.json").write_text(json.dumps(drafter_files.KIMI))
        for template in TEMPLATES:
            folder = drafter_files.TEMPLATES[template]().write(Path(scratch) / template, shards=4)
            size = sum(file.stat().st_size for file in folder.iterdir()) / 1e9
            say(f"\n{template}: {size:.2f} GB in 4 shards, {rounds} rounds, medians\n")
            for name in names:
                measure(python, name, folder, target)
            results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
            for _ in range(rounds):
                for name in names:
                    results[name].append(measure(python, name, folder, target))
            columns = ("import, ms", "work, ms", "together, ms", "best, ms", "CPU, ms")
            say(f"| | {' | '.join(columns)} | memory, MB | ours / it |")
            say("|---" * 8 + "|")
            for name in names:
                median = {
                    key: statistics.median(result[key] for result in results[name])
                    for key in ("import", "work", "total", "cpu", "memory")
                }
                best = min(result["total"] for result in results[name])
                totals.setdefault(name, []).append(1e3 * median["total"])
                ratio = statistics.median(
                    ours["total"] / theirs["total"]
                    for ours, theirs in zip(results[names[0]], results[name], strict=True)
                )
                milliseconds = [median[key] for key in ("import", "work", "total")]
                cells = [f"{1e3 * value:.1f}" for value in (*milliseconds, best, median["cpu"])]
                cells += [f"+{median['memory']:.1f}", f"{ratio:.2f}"]
                say(f"| {name} | {' | '.join(cells)} |")
    shown = {name: totals[name] for name in names[:2]}
    picture = bars("validate_drafter", list(TEMPLATES), shown, "ms, with imports")
    write_report("validate_drafter", "Validating a drafter of real size", [*lines[1:], "", picture])


if __name__ == "__main__":
    main()
