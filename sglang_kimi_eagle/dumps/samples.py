"""Samples of a dump, whatever wrote them: tokens, and states of one hidden size each.

| written by | file | what is in it |
|---|---|---|
| SpecForge | torch.save, also gzipped | hidden_state [1, S, H], aux_hidden_state [1, S, k H] |
| Model-Optimizer | torch.save | hidden_states [S, H], aux_hidden_states [S, k H] |
| BaldEagle | torch.save | hidden_state [k, S, H] or [1, S, k H] |
| speculators, vLLM's extractor | safetensors | token_ids [S], hidden_states [S, k, H] |
| scripts | torch.save | a list or dict of states, each [S, H] |

S tokens, H the target's hidden size, k states.  The name of a file says nothing; what is in it
does.  Several samples in one file are a list of such dicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.drafter.folder import LFS_MAGIC
from sglang_kimi_eagle.dumps import torch_files
from sglang_kimi_eagle.dumps.files import GZIP, Budget, OpenFile, open_file, unpack
from sglang_kimi_eagle.dumps.findings import DAMAGED, SHAPES, WIDTH, DumpRefused
from sglang_kimi_eagle.states import MAX_STATES

if TYPE_CHECKING:
    import torch

MAX_ROWS = 1 << 20
"""Tokens of one sample."""
TOKEN_KEYS = ("input_ids", "token_ids", "prompt_token_ids", "tokens", "ids")
_MAX_HEADER = 8 << 20
_MAX_ITEMS = 200_000
_MAX_DEPTH = 4
_MIN_WIDTH = 8
_UNNAMED = "tensor"
"""What is not in a list or dict."""


@dataclass(frozen=True)
class Slot:
    """One dumped state: a tensor of its own, or a part of a concatenation."""

    name: str
    values: torch.Tensor
    """[S, H], mapped from the file, in the dtype of the dump."""


@dataclass(frozen=True)
class Sample:
    """One sample: what a training would use for one text."""

    name: str
    """Of the file, and of the sample in it."""
    written_by: str
    tokens: tuple[int, ...] | None
    slots: tuple[Slot, ...]
    rows: int
    """Rows of every slot: at most as many as tokens."""


def read_samples(
    path: Path, root: Path | None, hidden_size: int, budget: Budget
) -> tuple[Sample, ...]:
    """Read the samples of a file; their states stay on disk.

    Args:
        path: the file.
        root: the folder that it must not lead out of; None when the user named the file.
        hidden_size: the target's.
        budget: what may be unpacked.

    Raises:
        DumpRefused: the file is none of a dump, or not of this target.
    """
    file = _open(path, root, budget)
    parts, is_torch = _parts(file)
    return tuple(_sample(name, part, is_torch, hidden_size, file) for name, part in parts)


def read_tokens(path: Path, root: Path | None, budget: Budget) -> list[tuple[int, ...]]:
    """Read the token ids of the samples of a file; raises as `read_samples`."""
    file = _open(path, root, budget)
    found = (_tokens(list(_leaves(part, file)), file) for _, part in _parts(file)[0])
    return [tokens for tokens in found if tokens]


def _open(path: Path, root: Path | None, budget: Budget) -> OpenFile:
    file = open_file(path, root)
    return unpack(file, budget) if file.read_at(0, 2) == GZIP else file


def _parts(file: OpenFile) -> tuple[list[tuple[str, Any]], bool]:
    """Return the samples of a file with their names, and whether torch.save wrote it."""
    content, is_torch = _content(file)
    if isinstance(content, (list, tuple)) and content and all(_is_mapping(c) for c in content):
        if len(content) > MAX_ROWS:
            raise DumpRefused(_shapes(file, f"a list of {len(content)} samples"))
        return [(f"{file.shown}[{index}]", part) for index, part in enumerate(content)], is_torch
    return [(file.shown, content)], is_torch


def _content(file: OpenFile) -> tuple[Any, bool]:
    """Open the file by its first bytes; return what is in it, and whether torch.save wrote it."""
    start = file.read_at(0, 64)
    if start[:4] == torch_files.ZIP:
        return torch_files.load(file), True
    if start[8:9] == b"{" and 2 <= int.from_bytes(start[:8], "little") <= file.size - 8:
        return _safetensors(file, int.from_bytes(start[:8], "little")), False
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise torch_files.legacy(file)
    seen = f"a file that begins with {start[:8].hex(' ')}"
    if start.startswith(LFS_MAGIC):
        seen = "a Git LFS pointer in place of the file"
    raise DumpRefused(_damaged(file, seen if start else "an empty file"))


def _safetensors(file: OpenFile, header: int) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError, safe_open

    if header > _MAX_HEADER:
        raise DumpRefused(_damaged(file, f"a header of {header} bytes"))
    try:
        with safe_open(file.path, framework="pt") as tensors:
            # Tensors of safe_open are views of the mapped file.
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise DumpRefused(_damaged(file, str(error))) from None


def _sample(name: str, content: Any, is_torch: bool, hidden_size: int, file: OpenFile) -> Sample:
    import torch

    leaves = list(_leaves(content, file))
    tokens = _tokens(leaves, file)
    states = [
        (key, value)
        for key, value in leaves
        if isinstance(value, torch.Tensor)
        and not _is_token_key(key)
        and _has_rows(value, len(tokens or ()))
    ]
    # Whole numbers beside states are masks and positions; without states, they are a mistake.
    states = [(key, value) for key, value in states if value.is_floating_point()] or states
    fitting = [(key, value) for key, value in states if value.shape[-1] % hidden_size == 0]
    if states and not fitting:
        raise DumpRefused(_width(file, states, hidden_size))
    for key, value in fitting:
        _check_plain(key, value, file)
    slots = [
        slot for key, value in fitting for slot in _split(key, value, hidden_size, tokens, file)
    ]
    if not slots:
        raise DumpRefused(_shapes(file, _without_states(leaves)))
    counts = {slot.values.shape[0] for slot in slots}
    rows = min(counts)
    if len(counts) > 1 or rows == 0 or rows > MAX_ROWS:
        raise DumpRefused(_shapes(file, f"states of {sorted(counts)[:8]} rows"))
    if len(slots) > MAX_STATES * 2 or len({slot.name for slot in slots}) < len(slots):
        raise DumpRefused(_shapes(file, f"{len(slots)} states"))
    if tokens is not None and rows > len(tokens):
        raise DumpRefused(_shapes(file, f"{rows} rows of states and {len(tokens)} tokens"))
    return Sample(
        name, _written_by(is_torch, {key for key, _ in leaves}), tokens, tuple(slots), rows
    )


def _written_by(is_torch: bool, keys: set[str]) -> str:
    if not is_torch:
        known = {"token_ids", "hidden_states"} <= keys
        return "speculators or vLLM's extractor" if known else "safetensors"
    for key, name in (
        ("aux_hidden_states", "Model-Optimizer"),
        ("aux_hidden_state", "SpecForge"),
        ("hidden_state", "BaldEagle"),
    ):
        if key in keys:
            return name
    return "torch.save"


def _leaves(content: Any, file: OpenFile) -> Iterator[tuple[str, Any]]:
    """Yield the tensors, and lists of numbers, with the names that lead to them."""
    import torch

    stack: list[tuple[str, Any, int]] = [("", content, 0)]
    seen = 0
    while stack:
        name, value, depth = stack.pop()
        seen += 1
        if seen > _MAX_ITEMS or depth > _MAX_DEPTH:
            raise DumpRefused(_shapes(file, "lists in lists without end"))
        if isinstance(value, torch.Tensor) or _numbers(value):
            yield name or _UNNAMED, value
        elif _is_mapping(value):
            items = list(value.items())[: _MAX_ITEMS + 1]
            stack += [
                (f"{name}.{key}"[:80] if name else str(key)[:80], item, depth + 1)
                for key, item in reversed(items)
            ]
        elif isinstance(value, (list, tuple)):
            stack += [
                (f"{name}[{index}]", item, depth + 1)
                for index, item in reversed(list(enumerate(value[: _MAX_ITEMS + 1])))
            ]


def _numbers(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    )


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_token_key(key: str) -> bool:
    return key.rpartition(".")[2] in TOKEN_KEYS


def _tokens(leaves: list[tuple[str, Any]], file: OpenFile) -> tuple[int, ...] | None:
    """Return the token ids; None when the sample has none."""
    import torch

    found = {key.rpartition(".")[2]: value for key, value in reversed(leaves) if _is_token_key(key)}
    for key in TOKEN_KEYS:
        value = found.get(key)
        if value is None:
            continue
        if isinstance(value, torch.Tensor):
            _check_plain(key, value, file)
            while value.dim() > 1 and value.shape[0] == 1:
                value = value[0]
            if value.dim() != 1 or value.is_floating_point() or value.dtype is torch.bool:
                raise DumpRefused(_shapes(file, f"{key} {_describe(value)}"))
            if value.shape[0] > MAX_ROWS:
                raise DumpRefused(_shapes(file, f"{value.shape[0]} tokens"))
            value = value.tolist()
        elif not _numbers(value) or len(value) > MAX_ROWS:
            raise DumpRefused(_shapes(file, f"{key} is no list of token ids"))
        return tuple(value)
    return None


def _has_rows(value: torch.Tensor, token_count: int) -> bool:
    """Tell states, which are rows of some width, from vectors over the tokens."""
    if value.dim() < 2 or value.shape[-1] < _MIN_WIDTH:
        return False
    return not (math.prod(value.shape[:-1]) == 1 and value.shape[-1] == token_count)


def _check_plain(key: str, value: torch.Tensor, file: OpenFile) -> None:
    """Refuse tensors whose numbers are not in the file, one after the other."""
    import torch

    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
        raise DumpRefused(_shapes(file, f"{key} is sparse, quantised or not on the CPU"))
    # Strides of zero, or a storage that torch enlarged, make a huge tensor of a small file.
    if value.numel() * value.element_size() > max(file.size, 64):
        raise DumpRefused(_shapes(file, f"{key} {_describe(value)} in {file.size} bytes"))


def _split(
    key: str,
    value: torch.Tensor,
    hidden_size: int,
    tokens: tuple[int, ...] | None,
    file: OpenFile,
) -> list[Slot]:
    """Cut a tensor into states of ``hidden_size``, without reading it."""
    if not value.is_floating_point():
        raise DumpRefused(_shapes(file, f"{key} {_describe(value)}: whole numbers, no states"))
    value = value.detach()
    shape = list(value.shape)
    while value.dim() > 2 and value.shape[0] == 1:
        value = value[0]
    if value.dim() == 2:
        count = value.shape[1] // hidden_size
        parts = [value[:, i * hidden_size : (i + 1) * hidden_size] for i in range(count)]
    elif value.dim() == 4 and value.shape[1] == 1 and value.shape[-1] == hidden_size:
        # A state of a batch of one each: [k, 1, S, H].
        parts = list(value[:, 0])
    elif value.dim() == 3 and value.shape[-1] == hidden_size:
        states_first = _states_come_first(value, tokens)
        if states_first is None:
            raise DumpRefused(
                _shapes(file, f"{key} {shape}: either of the first two may be the tokens")
            )
        parts = list(value) if states_first else list(value.unbind(1))
    else:
        raise DumpRefused(_shapes(file, f"{key} {shape} for a hidden size of {hidden_size}"))
    if len(parts) == 1:
        return [Slot(key, parts[0])]
    return [Slot(f"{key}[{index}]", part) for index, part in enumerate(parts)]


def _states_come_first(value: torch.Tensor, tokens: tuple[int, ...] | None) -> bool | None:
    """Tell [k, S, H] from [S, k, H]; None when it could be both."""
    first, second = value.shape[0], value.shape[1]
    if tokens is not None and (first == len(tokens)) != (second == len(tokens)):
        return bool(second == len(tokens))
    if first == second or min(first, second) > MAX_STATES:
        return None
    return bool(first < second)


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is None:
        return "a list of 1 number" if len(value) == 1 else f"a list of {len(value)} numbers"
    return f"{str(value.dtype).removeprefix('torch.')} {list(shape)}"


def _without_states(leaves: list[tuple[str, Any]]) -> str:
    if not leaves:
        return "neither tensors nor token ids in it"
    if [key for key, _ in leaves] == [_UNNAMED]:
        return f"no hidden states: it holds {_describe(leaves[0][1])}"
    more = f" and {len(leaves) - 12} more" if len(leaves) > 12 else ""
    named = ", ".join(f"{key} ({_describe(value)})" for key, value in leaves[:12])
    return f"no hidden states among {named}{more}"


def _width(file: OpenFile, states: list[tuple[str, Any]], hidden_size: int) -> Diagnostic:
    return WIDTH.found(
        "The states of the dump are not as wide as the target's.",
        where=file.shown,
        seen=f"{', '.join(f'{key} {_describe(value)}' for key, value in states[:6])}; "
        f"the traced target's hidden size is {hidden_size}",
        leads_to="They are states of another model.",
        mend="Compare the dump with a trace of the model that it was made with.",
    )


def _shapes(file: OpenFile, seen: str) -> Diagnostic:
    return SHAPES.found(
        "The file holds no sample that is understood.",
        where=file.shown,
        seen=seen,
        leads_to="The file is not compared.",
        mend="Give states as [tokens, hidden size], [tokens, states, hidden size] or "
        "[1, tokens, states x hidden size], with the token ids beside them as input_ids.",
    )


def _damaged(file: OpenFile, seen: str) -> Diagnostic:
    return DAMAGED.found(
        "The file is no dump that is read here.",
        where=file.shown,
        seen=seen,
        leads_to="The file is not read.",
        mend="Give files of torch.save or of safetensors, or .gz files of them.",
    )
