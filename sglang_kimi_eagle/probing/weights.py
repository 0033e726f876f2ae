"""Tensors of a checkpoint, read by their headers' offsets: whole, or some rows of them.

Only plain numbers are read, through `Folder`, which follows no link out of the checkpoint; nothing
is mapped, so that what is not kept does not count as memory of the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_kimi_eagle.drafter import Drafter, TensorHeader, UnreadableDrafter
from sglang_kimi_eagle.drafter.folder import Folder
from sglang_kimi_eagle.drafter.headers import read_headers
from sglang_kimi_eagle.drafter.index import find_shards
from sglang_kimi_eagle.drafter.location import locate
from sglang_kimi_eagle.drafter.problems import TRUNCATED, UNREADABLE
from sglang_kimi_eagle.measuring import all_finite
from sglang_kimi_eagle.probing.findings import NOT_FINITE

if TYPE_CHECKING:
    import torch

FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
"""Dtypes that weights may have, and torch's names for them."""
MAX_SHARDS = 512


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a folder."""

    folder: Folder
    headers: Mapping[str, TensorHeader]

    @staticmethod
    def of(drafter: Drafter) -> Checkpoint:
        """Return the tensors of a drafter that was read."""
        return Checkpoint(Folder(drafter.location, drafter.folder), drafter.tensors)

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor of a dtype of `FLOATS`, in that dtype.

        Raises:
            KeyError: there is none of that name, or it is of another dtype.
            UnreadableDrafter: the file went away or was cut, or its numbers are not finite.
        """
        header = self.headers[name]
        read = self._read(header, [(0, header.length)]).view(_dtype(header))
        return self._finite(name, read).view(header.shape)

    def rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        """Read rows of a matrix: [len(indices), its width]; raises as `tensor`."""
        header = self.headers[name]
        count, width = header.shape
        if any(not 0 <= index < count for index in indices):
            raise IndexError(f"{name} has {count} rows")
        size = header.length // count
        read = self._read(header, [(index * size, size) for index in indices])
        return self._finite(name, read.view(_dtype(header))).view(len(indices), width)

    def _finite(self, name: str, values: torch.Tensor) -> torch.Tensor:
        if all_finite(values):
            return values
        count = int((~values.isfinite()).sum())
        raise UnreadableDrafter(
            [
                NOT_FINITE.found(
                    "A tensor that the drafter computes with is not finite.",
                    where=self.folder.show(self.headers[name].file),
                    seen=f"{name}: NaN or infinity in {count} of {values.numel()} numbers",
                    leads_to="Nothing is scored.",
                    mend="Fetch or export the checkpoint again; if it was trained so, take an "
                    "earlier one.",
                )
            ]
        )

    def _read(self, header: TensorHeader, parts: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Read parts (offset, length) of a tensor's bytes, one after the other."""
        import torch

        buffer = bytearray(sum(length for _, length in parts))
        view, done = memoryview(buffer), 0
        with self.folder.open(header.file) as file:
            for offset, length in parts:
                file.seek(header.offset + offset)
                end = done + length
                while done < end:
                    # One system call reads 2 GB at most.
                    try:
                        count = file.readinto(view[done:end])  # type: ignore[attr-defined]
                    except OSError as problem:
                        raise UnreadableDrafter([_failed(self.folder, header, problem)]) from None
                    if not count:
                        raise UnreadableDrafter([_cut(self.folder, header)])
                    done += count
        return torch.frombuffer(buffer, dtype=torch.uint8)


def target_checkpoint(location: str) -> Checkpoint:
    """Read the headers of the target's embedding and head; of no other tensor.

    Raises:
        UnreadableDrafter: the target is not on this machine, or not readable.
    """
    folder = locate(location)
    shards = find_shards(folder)
    wanted = {
        file
        for name, file in shards.placed.items()
        if name.endswith(("embed_tokens.weight", "lm_head.weight"))
    }
    headers: dict[str, TensorHeader] = {}
    for file in sorted(wanted) if shards.placed else shards.files[:MAX_SHARDS]:
        headers |= {
            name: header
            for name, header in read_headers(folder, file).items()
            if name.endswith(("embed_tokens.weight", "lm_head.weight")) and len(header.shape) == 2
        }
    return Checkpoint(folder, headers)


def find(checkpoint: Checkpoint, *names: str) -> str | None:
    """Return the first of these names that the checkpoint has as floats."""
    for name in names:
        header = checkpoint.headers.get(name)
        if header is not None and header.dtype in FLOATS:
            return name
    return None


def _dtype(header: TensorHeader) -> Any:
    import torch

    return getattr(torch, FLOATS[header.dtype])


def _failed(folder: Folder, header: TensorHeader, problem: OSError) -> Any:
    return UNREADABLE.found(
        "A safetensors file cannot be read.",
        where=folder.show(header.file),
        seen=problem.strerror or str(problem),
        leads_to="Nothing can be said about the drafter.",
        mend="See that the disk is sound, or fetch the file again.",
    )


def _cut(folder: Folder, header: TensorHeader) -> Any:
    return TRUNCATED.found(
        "A safetensors file became shorter while it was read.",
        where=folder.show(header.file),
        leads_to="Nothing can be said about the drafter.",
        mend="Wait until the download has finished.",
    )
