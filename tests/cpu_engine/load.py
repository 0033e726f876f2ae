"""Load on a server: SGLang's own ``bench_serving``, and clients that go away."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_engine.environments import bench_packages
from cpu_engine.launch import launch_environ
from cpu_engine.server import Server


@dataclass(frozen=True)
class Answers:
    """What ``bench_serving`` got, in the order of its requests."""

    texts: list[str]
    output_lengths: list[int]
    errors: list[str]
    figures: dict[str, Any]


def write_requests(path: Path, texts: Sequence[str], count: int) -> Path:
    """Write ``count`` conversations of mixed lengths for ``bench_serving --dataset-name custom``.

    It sends the first message, and asks for as many tokens as the second one has.
    """
    with path.open("w") as file:
        for number in range(count):
            words = texts[number % len(texts)].split()
            prompt = " ".join([f"{number}", *(words * (1 + number % 3))])
            answer = "word " * (4 + number * 7 % 29)
            turns = [{"content": prompt}, {"content": answer}]
            file.write(json.dumps({"conversations": turns}) + "\n")
    return path


def bench_serving(server: Server, target: Path, requests: Path, *, concurrency: int) -> Answers:
    """Send all requests of a file, streaming and greedily; 0.5.9 to 0.5.23."""
    environment = server.environment
    output = requests.with_suffix(".answers")
    output.unlink(missing_ok=True)
    count = len(requests.read_text().splitlines())
    command = f"""
        {environment.python} -m sglang.bench_serving --backend sglang
        --base-url {server.base_url} --model {target} --tokenizer {target}
        --dataset-name custom --dataset-path {requests} --num-prompts {count}
        --max-concurrency {concurrency} --request-rate inf --seed 1 --warmup-requests 0
        --output-file {output} --output-details --disable-tqdm
    """
    done = subprocess.run(
        command.split(),
        env=launch_environ(environment, {"PYTHONPATH": str(bench_packages())}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode or not output.exists():
        raise RuntimeError(f"bench_serving failed:\n{done.stdout[-4000:]}")
    result = json.loads(output.read_text().splitlines()[-1])
    return Answers(
        result.pop("generated_texts"), result.pop("output_lens"), result.pop("errors"), result
    )


@contextlib.contextmanager
def impatient_clients(server: Server, prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Open streams and go away after a few chunks, one after the other, meanwhile.

    Yields a list that grows by one for each.
    """
    gone: list[int] = []
    finished = threading.Event()

    def cancel() -> None:
        while not finished.is_set():
            body = {
                "input_ids": list(prompts[len(gone) % len(prompts)]),
                "sampling_params": {"temperature": 0.0, "max_new_tokens": 200, "ignore_eos": True},
                "stream": True,
            }
            request = urllib.request.Request(
                server.base_url + "/generate",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(request, timeout=60) as answer,
            ):
                for _ in range(2 + len(gone) % 3):
                    answer.readline()
            gone.append(len(gone))
            finished.wait(0.2)

    thread = threading.Thread(target=cancel, daemon=True)
    thread.start()
    try:
        yield gone
    finally:
        finished.set()
        thread.join()


def processes(group: int) -> list[Path]:
    """Return the folders in ``/proc`` of a process group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(state[2]) == group and state[0] != "Z":
                found.append(folder)
    return found


def resident_megabytes(group: int, key: str = "VmRSS:") -> float:
    """Sum the resident memory, or with ``VmHWM:`` its peak, over a process group."""
    total = 0
    for folder in processes(group):
        with contextlib.suppress(OSError):
            for line in (folder / "status").read_text().splitlines():
                if line.startswith(key):
                    total += int(line.split()[1])
    return total / 1024
