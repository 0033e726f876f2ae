"""The tiny Kimi-K3 in both of SGLang's classes, and what its records hold."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cpu_engine.environments import Environment
from tiny_models.paths import CHECKPOINTS, K3_TARGET
from wheels import ROOT

WRAPPED = CHECKPOINTS / K3_TARGET
_PREFIX = "language_model."


def text_only(folder: Path) -> Path:
    """Write the language model alone, as ``KimiK3LinearForCausalLM`` loads it."""
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(WRAPPED / name, folder / name)
    config = json.loads((WRAPPED / "config.json").read_text())["text_config"]
    (folder / "config.json").write_text(json.dumps(config))
    raw = (WRAPPED / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = {name.removeprefix(_PREFIX): about for name, about in json.loads(raw[8:end]).items()}
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + raw[end:]
    (folder / "model.safetensors").write_bytes(content)
    return folder


@dataclass(frozen=True)
class Captured:
    """What was captured for one state, against the twin's."""

    rows: int
    difference: float
    """The largest, from h[k]."""
    to_mixture: float
    """The largest difference from the mixture that layer k reads."""
    cosine: float
    """Between h[k] and that mixture, the mean over the rows."""


def compare(
    environment: Environment,
    records: Path,
    sequences: Sequence[Sequence[int]],
    states: Sequence[int],
) -> tuple[dict[int, Captured], set[str]]:
    """Compare a folder of records with the twin; second come the kinds of forwards compared."""
    request = {
        "checkpoint": str(WRAPPED),
        "records": str(records),
        "sequences": [list(ids) for ids in sequences],
        "states": list(states),
    }
    done = subprocess.run(
        [environment.python, "-m", "tiny_models.k3_compare"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"},
    )
    answer = json.loads(done.stdout)
    found = {int(k): Captured(**about) for k, about in answer["states"].items()}
    return found, set(answer["modes"])
