"""Files written by ``torch.save``: looked at without unpickling, then opened as data only.

``torch.load(weights_only=True)`` runs no code, but calls what tensors are made of with the numbers
it finds, ``bytearray`` among them, so that a small file can ask for any amount of memory.  So the
archive and the names in its pickle are checked first, against what plain tensors need.
"""

from __future__ import annotations

import pickle
import pickletools
import struct
import zipfile
from typing import Any

from sglang_kimi_eagle.dumps.files import OpenFile, too_large
from sglang_kimi_eagle.dumps.findings import DAMAGED, PICKLE, DumpRefused

ZIP = b"PK\x03\x04"
MAX_RECORDS = 10_000
MAX_DIRECTORY = 4 << 20
"""Bytes of an archive's list of entries."""
MAX_PICKLE = 16 << 20
"""Bytes of the pickle, which describes tensors; tokens as a list of numbers are in it too."""

_ALLOWED = {
    "collections OrderedDict",
    "torch Size",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2",
} | {
    f"torch {kind}Storage"
    for kind in ("BFloat16", "Half", "Float", "Double", "Long", "Int", "Short", "Char", "Byte")
}
_ALLOWED.add("torch BoolStorage")
# The end of a zip file's directory, and the same of its 64-bit kind.
_END, _END_SIZE = b"PK\x05\x06", 22
_END_64, _END_64_SIZE = b"PK\x06\x06", 56
_TAIL = 1 << 16


def load(file: OpenFile) -> Any:
    """Return what was saved, its tensors mapped from the file and not yet read.

    Raises:
        DumpRefused: it is no archive of plain tensors.
    """
    import torch

    _check(file)
    try:
        return torch.load(file.path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as error:
        raise DumpRefused(_refused(file, str(error).split("\n")[0])) from None
    except Exception as error:
        # A damaged pickle ends in any exception: IndexError, struct.error, TypeError...
        raise DumpRefused(_damaged(file, f"torch: {error!r}")) from None


def legacy(file: OpenFile) -> DumpRefused:
    """Return the refusal of a pickle that is no archive."""
    return DumpRefused(
        PICKLE.found(
            "A bare pickle is not opened.",
            where=file.shown,
            seen="a pickle outside of an archive: torch.save before 1.6, or pickle.dump",
            leads_to="The file is not read.",
            mend="Where you trust it, load it with weights_only=True and torch.save it again.",
        )
    )


def _check(file: OpenFile) -> None:
    """Look at the archive's list of entries and at the names in its pickle."""
    size = file.size
    listed = _directory_size(file, size)
    if listed > MAX_DIRECTORY:
        raise DumpRefused(
            too_large(file.shown, f"a list of entries of {listed} bytes", "Archives have a few KB.")
        )
    try:
        with zipfile.ZipFile(file.file) as archive:
            records = archive.infolist()
            pickles = [record for record in records if record.filename.endswith("/data.pkl")]
            if len(records) > MAX_RECORDS or any(r.file_size > MAX_PICKLE for r in pickles):
                seen = f"{len(records)} entries, pickles of {[r.file_size for r in pickles]} bytes"
                raise DumpRefused(too_large(file.shown, seen, f"At most {MAX_PICKLE} bytes."))
            # torch.save stores; a compressed entry is none of its own, and can be a bomb.
            if any(r.compress_type != zipfile.ZIP_STORED or r.flag_bits & 1 for r in records):
                raise DumpRefused(_damaged(file, "compressed or encrypted entries in the archive"))
            if sum(record.file_size for record in records) > size:
                raise DumpRefused(_damaged(file, "entries that overlap"))
            if len(pickles) != 1:
                raise DumpRefused(_damaged(file, f"a zip file with {len(pickles)} data.pkl"))
            content = archive.read(pickles[0])
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError) as error:
        raise DumpRefused(_damaged(file, str(error))) from None
    _check_names(file, content)


def _check_names(file: OpenFile, content: bytes) -> None:
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "GLOBAL" and argument not in _ALLOWED:
                raise DumpRefused(_refused(file, f"it names {argument}"))
            if opcode.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"):
                raise DumpRefused(_refused(file, f"it has the instruction {opcode.name}"))
    except (ValueError, IndexError, struct.error) as error:
        raise DumpRefused(_damaged(file, f"pickle: {error}")) from None


def _directory_size(file: OpenFile, size: int) -> int:
    """Return the size of the archive's list of entries, by its end.

    `zipfile` reads the list as a whole, whatever its size.
    """
    tail = file.read_at(max(0, size - _TAIL), _TAIL)
    end = tail.rfind(_END)
    if end < 0 or len(tail) - end < _END_SIZE:
        raise DumpRefused(_damaged(file, "an archive without an end: the file was cut"))
    listed: int = struct.unpack_from("<I", tail, end + 12)[0]
    if listed == 0xFFFFFFFF:
        long = tail.rfind(_END_64, 0, end)
        if long < 0 or len(tail) - long < _END_64_SIZE:
            raise DumpRefused(_damaged(file, "an archive whose end is damaged"))
        listed = struct.unpack_from("<Q", tail, long + 40)[0]
    return listed


def _refused(file: OpenFile, seen: str) -> Any:
    return PICKLE.found(
        "The file holds more than plain tensors, and is not opened.",
        where=file.shown,
        seen=seen,
        leads_to="The file is not read.",
        mend="Save it again as a dict of torch tensors (numpy arrays with torch.from_numpy).",
    )


def _damaged(file: OpenFile, seen: str) -> Any:
    return DAMAGED.found(
        "The file is damaged, or no archive of torch.save.",
        where=file.shown,
        seen=seen,
        leads_to="The file is not read.",
        mend="Copy or dump it again.",
    )
