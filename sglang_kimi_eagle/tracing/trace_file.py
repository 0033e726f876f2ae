"""Traces on disk: a folder of safetensors files, one for each prefill forward of a rank.

Tensors of a file, n being the tokens of that forward:

- ``tokens`` int64 [n], ``positions`` int64 [n]: what the target was given;
- ``h.K`` [n, hidden size], the target's dtype: h[K] as this rank has it;
- ``fed`` [n, states x hidden size], the target's dtype: what the draft model was given beside
  those tokens; ``fed_tokens`` int64 [n]: the tokens it was given with it (each row's next one).

The metadata has one entry, ``trace``: the JSON of `Facts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

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
    row: int
    """The first row."""
    rows: int
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
    num_layers: int
    hidden_size: int
    wired: tuple[int, ...]
    """The states that the draft model gets, in the order of its ``fc``."""
    reason: str
    """Why those: the reason and the evidence of the resolved wiring."""
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

    Raises:
        OSError: the folder cannot be written to.
    """
    from safetensors.torch import save_file

    unfinished = path.with_suffix(".partial")
    metadata = {FACTS_KEY: msgspec.json.encode(facts).decode()}
    save_file(dict(tensors), unfinished, metadata=metadata)
    unfinished.replace(path)


def read_trace(folder: Path, rank: int = 0) -> Trace:
    """Read the facts and the tokens of the trace of ``rank`` in ``folder``.

    Raises:
        UnreadableTrace: with what is wrong and how to mend it.
    """
    files = list(_files(folder))
    found = [(path, facts, tokens) for path, facts, tokens in files if facts.rank == rank]
    if not found:
        raise UnreadableTrace(
            _unreadable(
                "The folder has no trace of this rank.",
                folder,
                f"{len(files)} trace files, none of rank {rank}",
            )
        )
    first = found[0][1]
    for path, facts, _ in found:
        if (facts.target, facts.drafter, facts.sglang) != (
            first.target,
            first.drafter,
            first.sglang,
        ):
            raise UnreadableTrace(
                _unreadable(
                    "The folder has the traces of different launches.",
                    path,
                    f"{facts.target}, {facts.drafter}, sglang {facts.sglang}; the first file is of "
                    f"{first.target}, {first.drafter}, sglang {first.sglang}",
                )
            )
    states = set(_states_in(found[0][0]))
    for path, _, _ in found[1:]:
        states &= set(_states_in(path))
    return Trace(folder, first, tuple(_join(found)), tuple(sorted(states)))


_Found = tuple[Path, Facts, tuple[list[int], list[int]]]


def _files(folder: Path) -> Iterator[_Found]:
    from safetensors import safe_open

    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)
    except OSError as error:
        raise UnreadableTrace(
            _unreadable("The folder of the trace cannot be read.", folder, str(error))
        ) from None
    for path in paths[:MAX_FILES]:
        with _reading(path), safe_open(path, framework="numpy") as file:
            facts: Facts = msgspec.json.decode((file.metadata() or {})[FACTS_KEY], type=Facts)
            if facts.schema != SCHEMA:
                raise ValueError(f"schema {facts.schema}, and {SCHEMA} is read here")
            rows = file.get_slice("tokens").get_shape()
            if len(rows) != 1 or rows[0] > MAX_TOKENS:
                raise ValueError(f"tokens of shape {rows}")
            tokens, positions = file.get_tensor("tokens"), file.get_tensor("positions")
            if positions.shape != tokens.shape:
                raise ValueError(f"positions of shape {positions.shape}")
            for piece in facts.pieces:
                if piece.row < 0 or piece.rows < 1 or piece.row + piece.rows > rows[0]:
                    raise ValueError(f"a piece that is not in its {rows[0]} rows: {piece}")
            yield path, facts, (tokens.tolist(), positions.tolist())


def _join(found: Iterable[_Found]) -> Iterator[Sequence]:
    """Join the pieces of each sequence, in the order of the forwards."""
    open_pieces: dict[str, list[tuple[Path, Piece]]] = {}
    rows: dict[str, list[tuple[int, int]]] = {}
    for path, facts, (tokens, positions) in sorted(found, key=lambda item: item[1].order):
        for piece in facts.pieces:
            span = slice(piece.row, piece.row + piece.rows)
            new = list(zip(positions[span], tokens[span], strict=True))
            old = rows.get(piece.sequence)
            if old is not None and new[0][0] != old[-1][0] + 1:
                # The name was taken by another prompt meanwhile.
                yield _sequence(rows.pop(piece.sequence), open_pieces.pop(piece.sequence))
            rows.setdefault(piece.sequence, []).extend(new)
            open_pieces.setdefault(piece.sequence, []).append((path, piece))
    for name, pieces in open_pieces.items():
        yield _sequence(rows[name], pieces)


def _sequence(rows: list[tuple[int, int]], pieces: list[tuple[Path, Piece]]) -> Sequence:
    return Sequence(tuple(token for _, token in rows), rows[0][0], tuple(pieces))


def _states_in(path: Path) -> list[State]:
    from safetensors import safe_open

    with _reading(path), safe_open(path, framework="numpy") as file:
        names = [name[2:] for name in file.keys() if name.startswith("h.")]  # noqa: SIM118
        return [int(name) for name in names if name.isdigit()]


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """Turn what can go wrong with a file into `UnreadableTrace`."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, KeyError, ValueError, msgspec.MsgspecError) as error:
        raise UnreadableTrace(
            _unreadable("A file of the trace cannot be read.", path, repr(error)[:200])
        ) from None


def _unreadable(message: str, where: Path, seen: str) -> Diagnostic:
    return TRACE_UNREADABLE.found(
        message,
        where=str(where),
        seen=seen,
        mend="Name the folder that a server wrote with SGLANG_KIMI_EAGLE_TRACE=FOLDER, or record "
        "it again.",
    )
