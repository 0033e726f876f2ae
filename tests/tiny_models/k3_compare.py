"""Names what a Kimi-K3's records hold: ``python -m tiny_models.k3_compare``.

Reads one JSON object from stdin and writes one to stdout:

    {"checkpoint": PATH, "records": PATH, "sequences": [[id, ...], ...], "states": [k, ...]}

The sequences are what was generated, prompts included.  Every row that SGLang captured is compared
with the twin's states and mixtures of the same position; rows of drafts that were not accepted
belong to no sequence and are passed over.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from tiny_models.k3_export import load_k3_target
from tiny_models.k3_target import K3TargetModel

Run = tuple[list[Tensor], list[Tensor]]
"""h[k] and m[k] of one sequence, each [T, C]."""


def main() -> None:
    """Compare."""
    request = json.load(sys.stdin)
    torch.set_num_threads(1)
    model = load_k3_target(Path(request["checkpoint"]))
    runs = [(ids, _run(model, ids)) for ids in request["sequences"]]
    json.dump(compare(Path(request["records"]), runs, request["states"]), sys.stdout)


@torch.no_grad()
def _run(model: K3TargetModel, ids: list[int]) -> Run:
    _, states, mixtures = model.run(torch.tensor([ids]))
    return [state[0] for state in states], [mixture[0] for mixture in mixtures]


def compare(folder: Path, runs: list[tuple[list[int], Run]], states: list[int]) -> dict[str, Any]:
    """For each state: rows compared, the largest difference, and likeness to the mixture.

    ``cosine`` is the mean cosine between h[k] and m[k] over the rows compared, ``to_mixture`` the
    largest difference between what was captured and m[k].
    """
    found = {k: {"rows": 0, "difference": 0.0, "to_mixture": 0.0, "cosine": 0.0} for k in states}
    modes: dict[str, int] = {}
    for path in sorted(folder.glob("*-target.safetensors")):
        with safe_open(path, "pt") as file:
            facts = json.loads(file.metadata()["facts"])
            captured = file.get_tensor("captured")
        for ids, (prefixes, mixtures) in runs:
            rows, at = _rows_of(facts, ids)
            if not rows:
                continue
            modes[facts["mode"]] = modes.get(facts["mode"], 0) + len(rows)
            parts = captured[rows].chunk(len(states), dim=-1)
            for k, part in zip(states, parts, strict=True):
                entry, prefix, mixture = found[k], prefixes[k][at], mixtures[k][at]
                entry["rows"] += len(rows)
                entry["difference"] = max(entry["difference"], _largest(part - prefix))
                entry["to_mixture"] = max(entry["to_mixture"], _largest(part - mixture))
                entry["cosine"] += F.cosine_similarity(prefix, mixture, dim=-1).sum().item()
            break
    for entry in found.values():
        entry["cosine"] /= max(entry["rows"], 1)
    return {"states": found, "modes": modes}


def _rows_of(facts: dict[str, Any], ids: list[int]) -> tuple[list[int], list[int]]:
    """The leading rows of a forward of one request that are ``ids`` at their positions."""
    rows, at = [], []
    for row, (token, position) in enumerate(
        zip(facts["input_ids"], facts["positions"], strict=True)
    ):
        if position >= len(ids) or ids[position] != token:
            break
        rows.append(row)
        at.append(position)
    return rows, at


def _largest(difference: Tensor) -> float:
    return difference.abs().max().item()


if __name__ == "__main__":
    main()
