"""The header of a safetensors file: names, dtypes, shapes; never the data.

The format: 8 bytes of little-endian length, that many bytes of JSON, then the tensors' bytes
without holes.  The same conditions as in safetensors' own ``Metadata::validate``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.drafter.document import NotADocument, brief, decode
from sglang_kimi_eagle.drafter.folder import LFS_MAGIC, Folder, lfs_pointer, too_large
from sglang_kimi_eagle.drafter.problems import HEADER, OFFSETS, TRUNCATED, UnreadableDrafter

MAX_HEADER = 2 * 1024 * 1024
"""Bytes of one header. safetensors allows 100 MB; a drafter's has a few KB."""

BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class TensorHeader(NamedTuple):
    """What a checkpoint says about one tensor, and where its bytes are."""

    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    """Of the first byte in ``file``."""
    length: int
    """In bytes."""

    def __str__(self) -> str:
        return f"{self.dtype} {brief(self.shape)}"


class _Entry(NamedTuple):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_headers(folder: Folder, name: str) -> dict[str, TensorHeader]:
    """Read the header of a safetensors file of ``folder``.

    Raises:
        UnreadableDrafter: the file is no safetensors file, or an incomplete one.
    """
    path = folder.show(name)
    size = folder.size(name)
    start = folder.read_at(name, 0, max(8, len(LFS_MAGIC)))
    if start.startswith(LFS_MAGIC):
        raise UnreadableDrafter([lfs_pointer(path)])
    length = int.from_bytes(start[:8], "little")
    if size < 8 or (8 + length > size and length <= MAX_HEADER):
        raise UnreadableDrafter([_truncated(path, size, 8 + length)])
    if length > size:
        raise UnreadableDrafter([_malformed(path, f"a header length of {length} bytes")])
    if length > MAX_HEADER:
        raise UnreadableDrafter([too_large(f"{path}, header", length, MAX_HEADER)])
    try:
        document = decode(folder.read_at(name, 8, length))
    except NotADocument as problem:
        raise UnreadableDrafter([_malformed(path, f"header: {problem}")]) from problem
    if not isinstance(document, dict):
        raise UnreadableDrafter([_malformed(path, f"header: {brief(document, 60)}")])
    metadata = document.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise UnreadableDrafter([_malformed(path, f"__metadata__: {brief(metadata, 60)}")])
    entries: dict[str, _Entry] = {}
    for tensor, fields in document.items():
        entry = _entry(fields)
        if entry is None:
            seen = f"tensor {brief(tensor, 80)}: {brief(fields, 80)}"
            raise UnreadableDrafter([_malformed(path, seen)])
        entries[tensor] = entry
    data_size = size - 8 - length
    findings = list(_contradictions(path, entries, size, data_size))
    if findings:
        raise UnreadableDrafter(findings)
    return {
        tensor: TensorHeader(
            entry.dtype,
            tuple(entry.shape),
            name,
            8 + length + entry.data_offsets[0],
            entry.data_offsets[1] - entry.data_offsets[0],
        )
        for tensor, entry in entries.items()
    }


def _entry(fields: object) -> _Entry | None:
    """Return the fields of a tensor; None when one is missing or of another type."""
    if not isinstance(fields, dict):
        return None
    dtype, shape, offsets = (fields.get(name) for name in _Entry._fields)
    if not (isinstance(dtype, str) and _numbers(shape) and _numbers(offsets, 2)):
        return None
    return _Entry(dtype, shape, (offsets[0], offsets[1]))


def _numbers(value: object, count: int | None = None) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and all(type(item) is int for item in value)
        and count in (None, len(value))
    )


def _contradictions(
    path: str, entries: dict[str, _Entry], size: int, data_size: int
) -> Iterator[Diagnostic]:
    """Yield the first contradiction of each kind; one broken save breaks every tensor."""
    expected = 0
    for tensor, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        where = f"{path}, tensor {brief(tensor, 80)}"
        if entry.dtype not in BITS:
            yield _offsets(where, f"dtype {brief(entry.dtype, 40)}, which safetensors has not")
            return
        bits = _count(entry.shape)
        if bits is None:
            yield _offsets(where, f"shape {brief(entry.shape, 60)}")
            return
        bits *= BITS[entry.dtype]
        if bits % 8 or bits // 8 != end - begin:
            seen = f"{entry.dtype} {brief(entry.shape, 60)} in bytes {begin} to {end}"
            yield _offsets(where, f"{seen}, which should be {-(-bits // 8)} bytes")
            return
        if begin != expected:
            kind = "overlaps the tensor before it" if begin < expected else "leaves a hole"
            yield _offsets(where, f"begins at byte {begin}, not {expected}: it {kind}")
            return
        expected = end
    if expected != data_size:
        yield _truncated(path, size, size - data_size + expected)


def _count(shape: list[int]) -> int | None:
    """Return the number of elements; None when no file can hold as many."""
    if any(side < 0 for side in shape):
        return None
    if 0 in shape:
        return 0
    count = 1
    for side in shape:
        count *= side
        if count > 1 << 62:
            return None
    return count


def _truncated(path: str, size: int, expected: int) -> Diagnostic:
    kind = "shorter" if size < expected else "longer"
    return TRUNCATED.found(
        f"A safetensors file is {kind} than its header says.",
        where=path,
        seen=f"{size} bytes, and {expected} by the header",
        leads_to="SGLang fails to open it after the target is loaded.",
        mend="Fetch the file again; if it was saved here, save the checkpoint again.",
    )


def _malformed(path: str, seen: str) -> Diagnostic:
    return HEADER.found(
        "A file named *.safetensors has no safetensors header.",
        where=path,
        seen=seen,
        leads_to="SGLang fails to open it after the target is loaded.",
        mend="Fetch the file again, or save the checkpoint again with safetensors.",
    )


def _offsets(where: str, seen: str) -> Diagnostic:
    return OFFSETS.found(
        "The header of a safetensors file contradicts itself.",
        where=where,
        seen=seen,
        leads_to="safetensors refuses the file after the target is loaded.",
        mend="Fetch the file again, or save the checkpoint again with safetensors.",
    )
