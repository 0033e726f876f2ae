"""Traces on disk: a folder of safetensors files, one for each prefill forward of a rank.

Tensors of a file, n being the tokens of that forward:

- ``tokens`` int64 [n], ``positions`` int64 [n]: what the target was given;
- ``h.K`` [n, hidden size], the target's dtype: h[K] as this rank has it;
- ``fed`` [n, states x hidden size], the target's dtype: what the draft model was given beside
  those tokens; ``fed_tokens`` int64 [n]: the tokens it was given with it (each row's next one).
  Neither is there when the draft model did not run after that forward.

The metadata has one entry, ``trace``: the JSON of `Facts`.
"""

from __future__ import annotations

import math
import re
import stat
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.states import State, States

if TYPE_CHECKING:
    import torch

SCHEMA = 1
SUFFIX = ".safetensors"
FACTS_KEY = "trace"
MAX_FILES = 100_000
MAX_TOKENS = 1 << 20
"""Tokens of one file; a prefill forward of SGLang has at most some ten thousand."""
MAX_HEADER = 8 << 20
"""Bytes of one header; a thousand prompts in one forward make some 100 KB."""
_SHOWN_RANKS = 16
_BITS = {"BF16": 16, "F16": 16, "F32": 32, "F64": 64, "I64": 64}
"""The dtypes of a trace: the target's, and that of tokens."""

TRACE_UNREADABLE = rule(
    "KE801",
    "trace-unreadable",
    Severity.ERROR,
    "The trace cannot be read: the folder or its files are missing, damaged, or were not written "
    "by a server with `SGLANG_KIMI_EAGLE_TRACE` set.",
    example="sglang-kimi-eagle probe DRAFTER --trace ./empty-folder",
)


class UnreadableTrace(Exception):
    """A trace that cannot be used; ``finding`` says why."""

    def __init__(self, finding: Diagnostic) -> None:
        super().__init__(finding.message)
        self.finding = finding


class Piece(msgspec.Struct, frozen=True):
    """A run of rows of one file that belong to one sequence."""

    sequence: str
    """Names the sequence among the files of a rank; a prefill in chunks has it in many files."""
    row: Annotated[int, Meta(ge=0)]
    """The first row."""
    rows: Annotated[int, Meta(ge=1)]
    """How many."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the rows of a file."""

    schema: int = SCHEMA
    plugin: str
    """Version of this package."""
    sglang: str
    """Version of the running release."""
    mode: str
    """SGLang's name of the forward mode, ``EXTEND``."""
    rank: int
    """Rank within the tensor-parallel group."""
    tp_size: int
    order: int
    """Number of the forward in its process, from 0."""
    target: str
    drafter: str
    num_layers: Annotated[int, Meta(ge=1)]
    hidden_size: Annotated[int, Meta(ge=1)]
    wired: tuple[int, ...]
    """The states that the draft model gets, in the order of its ``fc``."""
    reason: str
    """Why those: the reason and the evidence of the resolved wiring."""
    partial: tuple[int, ...] = ()
    """States that may be this rank's share of a sum (`TraceRequest.every_rank`)."""
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Sequence:
    """One traced prompt (of one rank), possibly in pieces."""

    tokens: tuple[int, ...]
    """Token ids of the rows."""
    start: int
    """Position of the first row; above 0 when a prefix came from the cache and was not run."""
    pieces: tuple[tuple[Path, Piece], ...]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Trace:
    """A trace, its tensors still on disk."""

    folder: Path
    facts: Facts
    """Those of its first file; ``pieces`` and ``order`` are of no use here."""
    sequences: tuple[Sequence, ...]
    states: States
    """The states that every file has, ascending."""
    has_fed: bool = True
    """Every file has what the draft model was given."""

    @property
    def token_count(self) -> int:
        """Rows over all sequences."""
        return sum(len(sequence) for sequence in self.sequences)

    def state(self, sequence: Sequence, k: State) -> torch.Tensor:
        """Read h[k] of a sequence: [len(sequence), hidden size] in the target's dtype.

        Raises:
            UnreadableTrace: the file went away or lacks it.
        """
        return self._read(sequence, f"h.{k}")

    def fed(self, sequence: Sequence) -> torch.Tensor:
        """Read what the draft model was given: [len(sequence), states x hidden size].

        Raises:
            UnreadableTrace: the file went away or lacks it.
        """
        return self._read(sequence, "fed")

    def fed_tokens(self, sequence: Sequence) -> torch.Tensor:
        """Read the tokens that the draft model was given with it: int64 [len(sequence)].

        Raises:
            UnreadableTrace: the file went away or lacks it.
        """
        return self._read(sequence, "fed_tokens")

    def _read(self, sequence: Sequence, name: str) -> torch.Tensor:
        import torch
        from safetensors import safe_open

        parts = []
        for path, piece in sequence.pieces:
            with _reading(path), safe_open(path, framework="pt") as file:
                parts.append(file.get_slice(name)[piece.row : piece.row + piece.rows])
        return torch.cat(parts)


def write_file(path: Path, tensors: Mapping[str, torch.Tensor], facts: Facts) -> None:
    """Write one file, whole or not at all.

    Args:
        path: where to; a name that ends in `SUFFIX`.
        tensors: those of the module's description, contiguous and on the CPU.
        facts: its metadata.

    Raises:
        OSError: the folder cannot be written to, or is full.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    unfinished = path.with_suffix(".partial")
    metadata = {FACTS_KEY: msgspec.json.encode(facts).decode()}
    try:
        save_file(dict(tensors), unfinished, metadata=metadata)
        unfinished.replace(path)
    except (OSError, SafetensorError) as error:
        unfinished.unlink(missing_ok=True)
        raise OSError(str(error)) from error


def read_trace(folder: Path, rank: int = 0) -> Trace:
    """Read the facts and the tokens of the trace of ``rank`` in ``folder``; needs no torch.

    The states stay on disk until they are asked for.  Every read is bounded, links are not
    followed, and what the headers say of the tensors is checked against the files.

    Raises:
        UnreadableTrace: with what is wrong and how to mend it.
    """
    files = list(_files(folder))
    found = [file for file in files if file.facts.rank == rank]
    if not files:
        raise UnreadableTrace(
            _unreadable("The folder holds no trace files.", folder, f"no file named *{SUFFIX}")
        )
    if not found:
        ranks = sorted({file.facts.rank for file in files})
        raise UnreadableTrace(
            TRACE_UNREADABLE.found(
                f"The folder has no trace of rank {rank}.",
                where=str(folder),
                seen=f"{len(files)} trace files, of {_list_ranks(ranks)}",
                mend="Name a rank that is there, or trace all of them: "
                "SGLANG_KIMI_EAGLE_TRACE='FOLDER?ranks=all'.",
            )
        )
    first = found[0].facts
    for file in found:
        if _launch(file.facts) != _launch(first):
            raise UnreadableTrace(
                _unreadable(
                    "The folder has the traces of different launches.",
                    file.path,
                    f"{_launch(file.facts)}; the first file is of {_launch(first)}",
                )
            )
    states = frozenset[State].intersection(*(file.states for file in found))
    return Trace(
        folder,
        first,
        tuple(_join(found)),
        tuple(sorted(states)),
        all(file.has_fed for file in found),
    )


def _list_ranks(ranks: list[int]) -> str:
    listed = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed}{more}"


@dataclass(frozen=True)
class _File:
    """What is read of a file at once."""

    path: Path
    facts: Facts
    states: frozenset[State]
    has_fed: bool
    tokens: array[int]
    positions: array[int]


class _Tensor(msgspec.Struct, frozen=True):
    """One entry of a safetensors header."""

    dtype: str
    shape: tuple[Annotated[int, Meta(ge=0, le=1 << 32)], ...]
    data_offsets: tuple[int, int]


def _launch(facts: Facts) -> str:
    """Format what two files of one launch have in common."""
    return (
        f"{facts.target}, {facts.drafter}, sglang {facts.sglang}, states {list(facts.wired)}, "
        f"{facts.num_layers} layers of {facts.hidden_size}"
    )


def _files(folder: Path) -> Iterator[_File]:
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)
    except OSError as error:
        raise UnreadableTrace(
            _unreadable("The folder of the trace cannot be read.", folder, str(error))
        ) from None
    if len(paths) > MAX_FILES:
        raise UnreadableTrace(
            _unreadable("The folder has too many files.", folder, f"{len(paths)} files")
        )
    for path in paths:
        with _reading(path):
            yield _read_file(path)


def _read_file(path: Path) -> _File:
    """Read the header, the tokens and the positions of a file.

    Raises:
        OSError, ValueError, KeyError: it is no such file, or is damaged.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("not an ordinary file")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MAX_HEADER, status.st_size - 8):
            raise ValueError(f"a header of {length} bytes in a file of {status.st_size}")
        header: dict[str, Any] = msgspec.json.decode(file.read(length), type=dict[str, Any])
        metadata = msgspec.convert(header.pop("__metadata__", {}), dict[str, str])
        if FACTS_KEY not in metadata:
            raise ValueError("no trace: its metadata has no facts of one")
        facts: Facts = msgspec.json.decode(metadata[FACTS_KEY], type=Facts)
        if facts.schema != SCHEMA:
            raise ValueError(f"schema {facts.schema}, and {SCHEMA} is read here")
        tensors = msgspec.convert(header, dict[str, _Tensor])
        rows = _rows(tensors)
        states = _check(tensors, facts, rows, status.st_size - 8 - length)

        def numbers(name: str) -> array[int]:
            file.seek(8 + length + tensors[name].data_offsets[0])
            values = array("q")
            values.frombytes(file.read(8 * rows))
            return values

        tokens, positions = numbers("tokens"), numbers("positions")
    return _File(path, facts, states, "fed" in tensors, tokens, positions)


def _rows(tensors: Mapping[str, _Tensor]) -> int:
    shape = tensors["tokens"].shape
    if len(shape) != 1 or shape[0] > MAX_TOKENS:
        raise ValueError(f"tokens of shape {list(shape)}")
    return shape[0]


def _check(tensors: Mapping[str, _Tensor], facts: Facts, rows: int, size: int) -> frozenset[State]:
    """Check the tensors of a file against its facts and its size; return its states."""
    states: set[State] = set()
    expected = {
        "tokens": (rows,),
        "positions": (rows,),
        "fed_tokens": (rows,),
        "fed": (rows, len(facts.wired) * facts.hidden_size),
    }
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        if re.fullmatch(r"h\.\d{1,6}", name, re.ASCII):
            states.add(int(name[2:]))
            shape: tuple[int, ...] | None = (rows, facts.hidden_size)
        else:
            shape = expected.get(name)
        kinds = ("I64",) if name in ("tokens", "positions", "fed_tokens") else _BITS
        if tensor.shape != shape or tensor.dtype not in kinds:
            raise ValueError(f"{name[:40]} is {tensor.dtype[:10]} {list(tensor.shape[:8])}")
        nbytes = math.prod(tensor.shape) * _BITS[tensor.dtype] // 8
        if tensor.data_offsets != (end, end + nbytes):
            raise ValueError(f"{name[:40]} is not in bytes {end} to {end + nbytes}")
        end += nbytes
    if end != size:
        raise ValueError(f"{size} bytes of tensors, and {end} by the header")
    for piece in facts.pieces:
        if piece.row + piece.rows > rows:
            raise ValueError(f"a piece that is not in its {rows} rows: {piece}")
    return frozenset(states)


def _join(found: Iterable[_File]) -> Iterator[Sequence]:
    """Join the pieces of each sequence, in the order of the forwards."""
    joined: dict[str, tuple[list[int], int, int, list[tuple[Path, Piece]]]] = {}
    for file in sorted(found, key=lambda item: item.facts.order):
        for piece in file.facts.pieces:
            span = slice(piece.row, piece.row + piece.rows)
            positions = file.positions[span]
            start, end = positions[0], positions[-1]
            known = joined.pop(piece.sequence, None)
            if known is not None and start != known[2] + 1:
                # The name was taken by another prompt meanwhile.
                yield _sequence(*known)
                known = None
            tokens, start, _, pieces = known or ([], start, end, [])
            tokens += file.tokens[span]
            joined[piece.sequence] = (tokens, start, end, [*pieces, (file.path, piece)])
    for known in joined.values():
        yield _sequence(*known)


def _sequence(
    tokens: list[int], start: int, _end: int, pieces: list[tuple[Path, Piece]]
) -> Sequence:
    return Sequence(tuple(tokens), start, tuple(pieces))


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """Turn what can go wrong with a file into `UnreadableTrace`."""
    from safetensors import SafetensorError

    foreign = (SafetensorError, msgspec.MsgspecError)
    try:
        yield
    except KeyError as error:
        seen = f"it has no {str(error)[:80]}"
    except (OSError, ValueError, OverflowError, RecursionError, *foreign) as error:
        seen = str(error)[:200]
    else:
        return
    raise UnreadableTrace(_unreadable("A file of the trace cannot be read.", path, seen))


def _unreadable(message: str, where: Path, seen: str) -> Diagnostic:
    return TRACE_UNREADABLE.found(
        message,
        where=str(where),
        seen=seen,
        mend="Name the folder that a server wrote with SGLANG_KIMI_EAGLE_TRACE=FOLDER, or record "
        "it again.",
    )
