"""Reads back what ``redirections.recorder`` wrote, without torch.

folder = tmp_path / "records"; folder.mkdir()
with Server(..., environ={"CPU_ENGINE_RECORDS": str(folder)}) as server: ...
for record in read_records(folder):
    if record.kind == "draft":
        assert captured_states(record) == [3, 5, 7]
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Rows = list[bytes]


@dataclass(frozen=True)
class Record:
    """One forward of the target, or one of the drafter that starts from target states.

    ``states[k]`` is h[k], what enters layer k (the last one leaves the last layer), a row
    of bytes a token.  ``captured`` is what SGLang captured: as it left the target, or as it
    reached the drafter, in which case ``target`` is the forward it comes from.
    """

    kind: Literal["target", "draft"]
    rank: int
    order: int
    mode: str
    input_ids: list[int]
    positions: list[int]
    states: dict[int, Rows]
    captured: Rows
    layers_to_capture: list[int] | None
    target: "Record | None"


def read_records(folder: Path) -> list[Record]:
    """All records, by rank and in the order of the forwards."""
    records: list[Record] = []
    targets: dict[int, Record] = {}
    for path in sorted(folder.glob("*.safetensors")):
        facts, tensors = _read(path)
        record = Record(
            **{"layers_to_capture": None, **facts},
            states={int(name[1:]): rows for name, rows in tensors.items() if name[0] == "h"},
            captured=tensors.get("captured", []),
            target=targets.get(facts["rank"]) if facts["kind"] == "draft" else None,
        )
        if record.kind == "target":
            targets[record.rank] = record
        records.append(record)
    return records


def captured_states(record: Record) -> list[int | None]:
    """For each part of the captured tensor, the k whose h[k] it is, bit for bit.

    None stands for a part that is no h[k].  Rows of a drafter's record are a selection of
    its target's rows: those of accepted tokens.
    """
    source = record.target or record
    width = len(source.states[0][0])
    known = {index: set(rows) for index, rows in source.states.items()}
    parts: list[int | None] = []
    for start in range(0, len(record.captured[0]) if record.captured else 0, width):
        part = {row[start : start + width] for row in record.captured}
        parts.append(next((index for index, rows in known.items() if part <= rows), None))
    return parts


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Rows]]:
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    facts = json.loads(header.pop("__metadata__")["facts"])
    tensors = {}
    for name, about in header.items():
        first, last = (end + offset for offset in about["data_offsets"])
        stride = (last - first) // max(about["shape"][0], 1)
        tensors[name] = (
            [raw[at : at + stride] for at in range(first, last, stride)] if stride else []
        )
    return facts, tensors
