"""A drafter as its files describe it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.drafter.config import CONFIG, MAX_CONFIG, config_of, read_object
from sglang_kimi_eagle.drafter.document import brief
from sglang_kimi_eagle.drafter.folder import Folder
from sglang_kimi_eagle.drafter.headers import TensorHeader, read_headers
from sglang_kimi_eagle.drafter.index import INDEX, find_shards
from sglang_kimi_eagle.drafter.location import locate
from sglang_kimi_eagle.drafter.problems import (
    TENSOR_MISPLACED,
    TENSOR_TWICE,
    TRUNCATED,
    UnreadableDrafter,
)

MAX_TENSORS = 20_000
"""Over all shards; a drafter has some tens, and what has more is a target given by mistake."""
MAX_READ = 1 << 20
"""Elements of a tensor, of at most two dimensions, that is read; Kimi's vocabulary has 163840."""

_FORMATS: dict[str, Literal["B", "b", "h", "H", "i", "I", "q", "Q"]] = {
    "BOOL": "B",
    "U8": "B",
    "I8": "b",
    "I16": "h",
    "U16": "H",
    "I32": "i",
    "U32": "I",
    "I64": "q",
    "U64": "Q",
}

QUANTISED = ("quantization_config", "compression_config")
"""The keys of a config that declare a quantisation, in SGLang's order."""
QUANTISER = "hf_quant_config.json"
"""Model-Optimizer's file beside the config, read where that has none of the keys.

SGLang 0.5.9 - 0.5.23, ``configs/model_config.py`` ``_parse_quant_hf_config``.
"""


@dataclass(frozen=True)
class Drafter:
    """What is known of a drafter without its weights."""

    folder: Path
    config: dict[str, Any]
    tensors: Mapping[str, TensorHeader]
    location: str = ""
    """What the user wrote."""
    findings: tuple[Diagnostic, ...] = ()
    """What is odd about files that can be read all the same."""
    quantiser: Mapping[str, Any] | None = None
    """What `QUANTISER` says, where the config itself does not speak of quantisation."""

    @property
    def config_path(self) -> str:
        """The path of its config, for messages."""
        return str(self.folder / CONFIG)

    def can_read(self, name: str) -> bool:
        """Tell whether `read_tensor` reads this tensor."""
        header = self.tensors.get(name)
        return (
            header is not None
            and header.dtype in _FORMATS
            and math.prod(header.shape[:2]) <= MAX_READ
            and len(header.shape) <= 2
        )

    def read_tensor(self, name: str) -> memoryview[int]:
        """Read a small tensor as a flat view of its whole numbers (BOOL as 0 and 1).

        Raises:
            KeyError: there is none of that name.
            ValueError: `can_read` is false.
            UnreadableDrafter: the file went away or was cut since its header was read.
        """
        header = self.tensors[name]
        if not self.can_read(name):
            raise ValueError(f"{name} ({header}) is not read: its dtype or its size")
        folder = Folder(self.location, self.folder)
        data = folder.read_at(header.file, header.offset, header.length)
        if len(data) != header.length:
            raise UnreadableDrafter(
                [
                    TRUNCATED.found(
                        "A safetensors file became shorter while it was read.",
                        where=f"{folder.show(header.file)}, tensor {name}",
                        seen=f"{len(data)} of {header.length} bytes",
                        leads_to="SGLang fails to open it.",
                        mend="Wait until the download has finished.",
                    )
                ]
            )
        return memoryview(data).cast(_FORMATS[header.dtype])


def read_drafter(location: str, revision: str | None = None) -> Drafter:
    """Read the config and the tensor headers of the drafter at ``location``.

    ``location`` is a folder, or a hub id whose snapshot is in the Hugging Face cache.

    Raises:
        UnreadableDrafter: with what is wrong and how to mend it.
    """
    folder = locate(location, revision)
    config = config_of(folder)
    shards = find_shards(folder)
    tensors: dict[str, TensorHeader] = {}
    for name in shards.files:
        headers = read_headers(folder, name)
        twice = sorted(tensors.keys() & headers.keys())
        if twice:
            raise UnreadableDrafter([_twice(folder, twice, tensors[twice[0]].file, name)])
        tensors.update(headers)
        if len(tensors) > MAX_TENSORS:
            break
    misplaced = [
        tensor
        for tensor, name in shards.placed.items()
        if tensor not in tensors or tensors[tensor].file != name
    ]
    if misplaced and len(tensors) <= MAX_TENSORS:
        raise UnreadableDrafter([_misplaced(folder, misplaced, shards.placed)])
    quantiser = None
    if all(config.get(key) is None for key in QUANTISED) and folder.has(QUANTISER):
        quantiser = read_object(folder, QUANTISER, MAX_CONFIG)
    return Drafter(folder.path, config, tensors, location, shards.findings, quantiser)


def _twice(folder: Folder, tensors: list[str], first: str, second: str) -> Diagnostic:
    return TENSOR_TWICE.found(
        "Two files have a tensor of the same name.",
        where=f"{folder.show(second)}, tensor {brief(tensors[0], 80)}",
        seen=f"{len(tensors)} tensors are also in {first}",
        leads_to="The one that SGLang happens to read last wins.",
        mend="Delete the file that is not wanted, or name the right ones in a shard index.",
    )


def _misplaced(folder: Folder, tensors: list[str], placed: Mapping[str, str]) -> Diagnostic:
    return TENSOR_MISPLACED.found(
        "A shard does not have a tensor that the index says it has.",
        where=f"{folder.show(INDEX)}, weight_map.{brief(tensors[0], 80)}",
        seen=f"not in {placed[tensors[0]]}; {len(tensors)} tensors are misplaced",
        leads_to="The weights stay uninitialised, or are those of another save.",
        mend="Fetch the index and the shards again, all of the same revision.",
    )
