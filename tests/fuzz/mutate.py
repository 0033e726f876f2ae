"""Broken checkpoints at random; ``python -m benchmarks.fuzz`` makes 200,000.

Each case is a healthy drafter whose config, shard index or safetensors header was changed: values
of the JSON replaced, keys moved, doubled or lost, bytes flipped, files cut.  Reading and checking
it must end in findings, not in a traceback, soon, and within bounded memory.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafter_files import Checkpoint, Tensor, llama, mla, tiny_target
from sglang_kimi_eagle.checks import Context, run_checks
from sglang_kimi_eagle.drafter import UnreadableDrafter, read_drafter
from sglang_kimi_eagle.drafter.checkpoint import QUANTISER
from sglang_kimi_eagle.launch import wiring_of
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.server_arguments import ServerArguments
from sglang_kimi_eagle.settings import Settings
from sglang_kimi_eagle.target import UnreadableTarget, target_of

INDEX = "model.safetensors.index.json"
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 3, 2**31, 2**63, 10**400, -(10**30), 0.5, 1e308, "", "1",
    "x" * 300, "\x1b[2J", "\u202e", "\ud800", "a\0b", "../..", [], [[]], {}, [None], {"": {}},
    [2, 30, 58], ["2"], [1.5], [-1], [10**9], "EAGLE", "bfloat16", {"rope_type": "yarn"},
    {"factor": "x"}, [[1] * 50],
    list(range(2000)),
]  # fmt: skip


def mutate(value: Any, rng: random.Random) -> Any:
    """Change a JSON value somewhere."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        action = rng.random()
        if action < 0.55:
            value[key] = mutate(value[key], rng)
        elif action < 0.7:
            del value[key]
        elif action < 0.8:
            value[key + rng.choice(["", "x", ".weight", "\0", "_scale"])] = value.pop(key)
        elif action < 0.9:
            value[rng.choice(list(value))] = copy.deepcopy(value[key])
        else:
            value[rng.choice(KEYS)] = copy.deepcopy(rng.choice(ODD))
        return value
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        value[place] = mutate(value[place], rng)
        return value
    if isinstance(value, int) and rng.random() < 0.4:
        return value + rng.choice([-1, 1, value, -value, 2**20])
    return copy.deepcopy(rng.choice(ODD))


KEYS = [
    "eagle_config", "num_aux_hidden_states", "target_hidden_size", "quantization_config",
    "rope_scaling", "rope_parameters", "fc_norm", "norm_before_fc", "norm_output", "bias",
    "tie_word_embeddings", "use_aux_hidden_state", "draft_vocab_size", "speculators_config",
    "dtype", "head_dim", "bos_token_id", "eos_token_id", "__metadata__", "weight_map",
    "eagle_aux_hidden_state_layer_ids", "max_sequence_length", "text_config",
]  # fmt: skip


def encode(value: Any, rng: random.Random) -> bytes:
    """Encode JSON, sometimes in a broken way."""
    data = json.dumps(value).encode("utf-8", "surrogatepass")
    action = rng.random()
    if action < 0.85:
        return data
    if action < 0.9:
        flipped = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            if flipped:
                flipped[rng.randrange(len(flipped))] = rng.randrange(256)
        return bytes(flipped)
    if action < 0.93:
        return data[: rng.randrange(len(data) + 1)]
    if action < 0.96:
        return data.replace(b"1", rng.choice([b"NaN", b"1e999", b"-0", b"9" * 5000]), 1)
    if action < 0.98:
        return b"[" * rng.choice([10, 1000, 100_000]) + data
    return data + rng.choice([b"\0", b" ", b"{}", b"\xff"])


@dataclass
class Case:
    """The files of one checkpoint, before they are broken."""

    config: dict[str, Any]
    index: dict[str, Any]
    headers: dict[str, dict[str, Any]]
    data: dict[str, bytes]


def case_of(checkpoint: Checkpoint) -> Case:
    """Split a small checkpoint into its files."""
    names = list(checkpoint.tensors)
    case = Case(checkpoint.config, {"metadata": {}, "weight_map": {}}, {}, {})
    for number in range(2):
        file, header, data = f"model-{number + 1:05}-of-00002.safetensors", {}, b""
        for name in names[number::2]:
            tensor: Tensor = checkpoint.tensors[name]
            offsets = [len(data), len(data) + tensor.length]
            shape = list(tensor.shape)
            header[name] = {"dtype": tensor.dtype, "shape": shape, "data_offsets": offsets}
            data += tensor.data or bytes(tensor.length)
            case.index["weight_map"][name] = file
        case.headers[file], case.data[file] = header, data
    return case


def small() -> list[Case]:
    """The drafters that cases are made from: as small as shapes allow."""
    sizes: dict[str, Any] = {"hidden": 4, "inner": 4, "vocab": 24, "draft_vocab": 8}
    return [
        case_of(llama(heads=2, groups=1, head=2, **sizes)),
        case_of(mla(heads=2, q_rank=2, kv_rank=2, nope=2, rope=2, value=2, **sizes)),
    ]


def write(case: Case, folder: Path, rng: random.Random) -> None:
    """Write a case, with one or two of its files broken."""
    kinds = ["config", "index", "header", "data"]
    broken = set(rng.choices(kinds, weights=[5, 1, 2, 2], k=rng.randint(1, 2)))
    config, index = case.config, case.index
    if "config" in broken:
        config = several(copy.deepcopy(config), rng)
    if "index" in broken:
        index = several(copy.deepcopy(index), rng)
    text = encode(config, rng) if "config" in broken else json.dumps(config).encode()
    (folder / "config.json").write_bytes(text)
    (folder / INDEX).unlink(missing_ok=True)
    if rng.random() < 0.7:
        text = encode(index, rng) if "index" in broken else json.dumps(index).encode()
        (folder / INDEX).write_bytes(text)
    (folder / QUANTISER).unlink(missing_ok=True)
    if rng.random() < 0.1:
        said = several({"quantization": {"quant_algo": "FP8", "exclude_modules": ["fc"]}}, rng)
        (folder / QUANTISER).write_bytes(encode(said, rng))
    for file, header in case.headers.items():
        if "header" in broken:
            header = several(copy.deepcopy(header), rng)
            text = encode(header, rng)
        else:
            text = json.dumps(header).encode()
        length = len(text) if rng.random() < 0.99 else rng.choice([0, 1, 2**24, 2**40, 2**64 - 1])
        content = struct.pack("<Q", length) + text + case.data[file]
        if "data" in broken:
            content = damaged(content, rng)
        (folder / file).write_bytes(content)


def several(value: Any, rng: random.Random) -> Any:
    """Change a value once to four times."""
    for _ in range(rng.randint(1, 4)):
        value = mutate(value, rng)
    return value


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Cut bytes, or change some (the maps lie among them)."""
    if rng.random() < 0.3:
        return content[: rng.randrange(len(content) + 1)]
    changed = bytearray(content)
    for _ in range(rng.randint(1, 20)):
        changed[rng.randrange(len(changed))] = rng.choice([0, 1, 127, 255])
    return bytes(changed)


@dataclass
class Outcome:
    """What came of a run."""

    cases: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    peak_growth_mb: float = 0.0


def run(
    count: int, seed: int = 0, progress: Callable[[int], None] = lambda number: None
) -> Outcome:
    """Read and check ``count`` broken checkpoints.

    Raises:
        AssertionError: one of them took more than two seconds of processor time.
        Exception: whatever the reader or a check let through; ``seed`` and the case are noted.
    """
    outcome, releases, cases = Outcome(), list(RELEASES.values()), small()
    target = target_of(tiny_target(hidden_size=4, vocab_size=24), "target")
    launch = ServerArguments(
        model_path="target", speculative_algorithm="EAGLE3", draft_model_path="drafter"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
        folder = Path(scratch)
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            try:
                write(rng.choice(cases), folder, rng)
                started = time.process_time()
                found = examine(folder, rng, Context(None, target, launch, rng.choice(releases)))
                elapsed = time.process_time() - started
            except Exception as error:
                raise RuntimeError(f"seed {seed}, case {number}") from error
            assert elapsed < 2, f"seed {seed}, case {number}: {elapsed:.1f} s"
            outcome.cases += 1
            outcome.codes.update(found or ["clean"])
            outcome.slowest = max(outcome.slowest, elapsed)
            progress(number)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome.peak_growth_mb = (after - before) / 1024
    return outcome


def examine(folder: Path, rng: random.Random, context: Context) -> list[str]:
    """Read a checkpoint as a drafter, and now and then as a target; check it."""
    try:
        drafter = read_drafter(str(folder))
    except UnreadableDrafter as problem:
        findings = list(problem.findings)
    else:
        findings = run_checks(
            Context(drafter, context.target, context.arguments, context.release), Settings()
        )
        findings += wiring_of(drafter, 8, context.release, Settings()).findings
        if rng.random() < 0.1:
            try:
                target_of(drafter.config, "target")
            except UnreadableTarget as problem:
                findings += problem.findings
    for finding in findings:
        text = finding.render()
        assert len(text) < 10_000, finding.code
        assert text.replace("\n", "").isprintable(), finding.code
    return [finding.code for finding in findings]
