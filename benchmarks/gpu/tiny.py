"""The tiny Kimi-K2.5 on a GPU, CUDA graphs on: are the replayed states the drafter's?

    PYTHONPATH=tests python -m benchmarks.gpu.tiny [--states 3,5,7]

Run it with a Python that has torch for CUDA, SGLang 0.5.9 - 0.5.23 and this project installed.  It
starts the server with the drafter of the story, pinned; generates; prefills what was generated
once more; and compares the states of both.  The report goes to ``benchmarks/reports/gpu_tiny.md``.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path

from packaging.version import Version

from benchmarks.gpu.replayed_states import Comparison, compare
from benchmarks.gpu.requests import continued, flush, generate
from benchmarks.reporting import write_report
from sglang_kimi_eagle.drafter import read_drafter
from sglang_kimi_eagle.pinning import pin_states, write_copy
from sglang_kimi_eagle.settings import parse_states
from sglang_kimi_eagle.wiring import read_ids
from tiny_models.paths import CHECKPOINTS, LLAMA, TARGET
from tiny_models.prompt_file import load_prompts

RECORDING = Path(__file__).resolve().parent / "recording"
TOKENS = 96
DRAFTS = 4
# States of other layers than these differ by far more on the tiny target: it was trained so.
CLOSE = 0.999


def launch(draft: Path, records: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    """Start the server, in a process group of its own."""
    words = f"""
        {sys.executable} -m sglang.launch_server --model-path {CHECKPOINTS / TARGET}
        --trust-remote-code --port {port} --host 127.0.0.1 --attention-backend triton
        --speculative-algorithm EAGLE3 --speculative-draft-model-path {draft}
        --speculative-num-steps {DRAFTS - 1} --speculative-eagle-topk 1
        --speculative-num-draft-tokens {DRAFTS} --mem-fraction-static 0.5
        {eager_prefill(version("sglang"))}
    """
    path = os.pathsep.join([str(RECORDING), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("wb") as output:
        return subprocess.Popen(
            words.split(),
            env={**os.environ, "PYTHONPATH": path, "TARGET_FORWARDS": str(records)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def eager_prefill(release: str) -> str:
    """Return the argument that keeps graphs out of the prefill that is compared with.

    ``srt/server_args.py``: 0.5.9 has such graphs on request only.
    """
    if Version(release) < Version("0.5.10"):
        return ""
    if Version(release) < Version("0.5.14"):
        return "--disable-piecewise-cuda-graph"
    return "--disable-prefill-cuda-graph"


def wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until the server answers.

    Raises:
        SystemExit: it ended, or did not answer within ten minutes.
    """
    end = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(url + "/health", timeout=10):
                return
        except OSError:
            time.sleep(1)
    raise SystemExit(f"the server did not start:\n{log.read_text(errors='replace')[-4000:]}")


def render(comparison: Comparison, length: float, states: str) -> list[str]:
    """Format the report."""
    import torch

    good = comparison.replayed > 0 and comparison.worst_cosine >= CLOSE
    return [
        f"SGLang {version('sglang')}, torch {torch.__version__}, {torch.cuda.get_device_name()}, "
        f"states {states}.",
        "",
        "| verified rows | from replayed graphs | worst cosine | median cosine | "
        "acceptance length |",
        "|---|---|---|---|---|",
        f"| {comparison.rows} | {comparison.replayed} | {comparison.worst_cosine:.5f} | "
        f"{comparison.median_cosine:.5f} | {length:.2f} |",
        "",
        "Replayed graphs hand on the drafter's states."
        if good
        else "NOT SHOWN: no graph was replayed, or what it handed on differs.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", default="3,5,7", help="what the drafter was trained on")
    parser.add_argument("--port", type=int, default=31999)
    options = parser.parse_args()
    states = parse_states(options.states)
    if states is None:
        parser.error(f"--states {options.states}: no states")
    source = read_drafter(str(CHECKPOINTS / LLAMA.folder))
    prompts = [prompt.ids for prompt in load_prompts(CHECKPOINTS)]
    with tempfile.TemporaryDirectory() as folder:
        draft, records, log = (Path(folder) / name for name in ("draft", "records", "log"))
        records.mkdir()
        pinned = pin_states(states, read_ids(source.config).effective)
        write_copy(source.folder, draft, pinned.applied_to(source.config))
        url = f"http://127.0.0.1:{options.port}"
        process = launch(draft, records, options.port, log)
        try:
            wait(process, url, log)
            answers = generate(url, prompts, TOKENS)
            whole = continued(prompts, answers)
            flush(url)
            generate(url, whole, 1)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        verifies = sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
        length = sum(answer["meta_info"]["completion_tokens"] for answer in answers) / verifies
        lines = render(compare(records, whole, DRAFTS), length, options.states)
    write_report("gpu_tiny", "The tiny target on a GPU", lines)
    if lines[-1].startswith("NOT SHOWN"):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
