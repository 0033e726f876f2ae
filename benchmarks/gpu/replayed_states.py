"""Are the states of replayed graphs those of eager forwards?

The eager forward of a prefill captures what the resolved wiring says.  A verify step replays a
graph.  For the same token at the same place of the same sequence both must give the same states; on
0.5.9 - 0.5.10.post1 stock SGLang's graphs give those of its default ids instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """Verified rows beside the prefilled ones of the same tokens."""

    rows: int
    """Rows of verify steps that were found in a prefill as well."""
    replayed: int
    """Those that came from a replayed graph."""
    worst_cosine: float
    """The smallest cosine of a row with its prefilled one; 1 without rows."""
    median_cosine: float


def compare(folder: Path, sequences: Sequence[Sequence[int]], drafts: int) -> Comparison:
    """Compare what ``target_forwards`` wrote in ``folder``.

    Args:
        folder: the files.
        sequences: prompts with their continuations, each of which was prefilled once.
        drafts: tokens of a verify step, the drafted ones and the one before them.
    """
    import torch
    from safetensors import safe_open

    prefilled: dict[tuple[int, ...], Any] = {}
    verified: list[tuple[tuple[int, ...], Any, bool]] = []
    wholes = [tuple(sequence) for sequence in sequences]
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            facts = file.metadata()
            tokens = file.get_tensor("tokens").tolist()
            positions = file.get_tensor("positions").tolist()
            hidden = file.get_tensor("hidden")
        if facts["mode"] == "EXTEND":
            if facts["graph"] == "1":
                continue
            for first, last in _runs(positions):
                whole = tuple(tokens[first:last])
                if whole in wholes:
                    for row in range(first, last):
                        prefilled[whole[: row - first + 1]] = hidden[row]
            continue
        for first in range(0, len(tokens), drafts):
            _match(tokens, positions, first, drafts, wholes, hidden, facts["graph"], verified)
    cosines = []
    replayed = 0
    for prefix, row, graph in verified:
        if prefix in prefilled:
            cosines.append(float(torch.cosine_similarity(row, prefilled[prefix], dim=0)))
            replayed += graph
    cosines.sort()
    if not cosines:
        return Comparison(0, 0, 1.0, 1.0)
    return Comparison(len(cosines), replayed, cosines[0], cosines[len(cosines) // 2])


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Split a prefill batch into its sequences: each starts again at position 0."""
    starts = [row for row, position in enumerate(positions) if position == 0]
    return list(zip(starts, [*starts[1:], len(positions)], strict=True))


def _match(
    tokens: Sequence[int],
    positions: Sequence[int],
    first: int,
    drafts: int,
    wholes: Sequence[tuple[int, ...]],
    hidden: Any,
    graph: str,
    verified: list[tuple[tuple[int, ...], Any, bool]],
) -> None:
    """Keep the rows of one request's chain as far as it agrees with one of the sequences."""
    begin = positions[first]
    chain = tokens[first : first + drafts]
    found = [whole for whole in wholes if whole[begin : begin + 1] == (chain[0],)]
    if len(found) != 1:
        return
    for step, token in enumerate(chain):
        if found[0][begin + step : begin + step + 1] != (token,):
            return
        verified.append((found[0][: begin + step + 1], hidden[first + step], graph == "1"))
