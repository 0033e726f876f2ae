"""Which safetensors files of a folder SGLang loads: all of them, or those of the shard index.

SGLang 0.5.9 - 0.5.23, ``model_loader/loader.py`` ``_prepare_weights`` and
``weight_utils.filter_duplicate_safetensors_files``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.drafter.config import read_object
from sglang_kimi_eagle.drafter.document import brief
from sglang_kimi_eagle.drafter.folder import Folder, plain
from sglang_kimi_eagle.drafter.problems import (
    INDEX_SHAPE,
    NO_WEIGHTS,
    PICKLED_WEIGHTS,
    SHARD_MISSING,
    SHARD_UNLISTED,
    UnreadableDrafter,
)

INDEX = "model.safetensors.index.json"
MAX_INDEX = 32 * 1024 * 1024
"""Bytes. That of Kimi-K2.5 itself, which people give by mistake, is about 23 MB."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_WHOLE = "pytorch_model.bin"
"""The weights of a folder that has it, whatever lies beside it."""
# What trainers save beside the weights; SGLang leaves most of it out too.
_TRAINING = re.compile(
    r"(optimizer|scheduler|scaler|rng_state|training_args|training_state)[\d_-]*\.\w+", re.ASCII
)
# Its name goes into a command: nothing in it may mean something to a shell or to Python.
_SHARD = re.compile(r"([\w.-]+)-(\d+)-of-(\d+)(\.\w+)", re.ASCII)


class Shards(NamedTuple):
    """The files to read and what the index says is in them."""

    files: tuple[str, ...]
    placed: dict[str, str]
    """Tensor name -> file name; empty without an index."""
    findings: tuple[Diagnostic, ...]


def find_shards(folder: Folder) -> Shards:
    """Find the safetensors files that SGLang loads from ``folder``.

    Raises:
        UnreadableDrafter: there are none, or the index is broken.
    """
    names = folder.names()
    present = [name for name in names if name.endswith(".safetensors")]
    if INDEX not in names:
        if not present:
            raise UnreadableDrafter([_no_weights(folder, names)])
        if present == ["consolidated.safetensors", "model.safetensors"]:
            present = ["model.safetensors"]
        return Shards(tuple(present), {}, ())
    placed = _weight_map(folder)
    wanted = sorted(set(placed.values()))
    missing = [name for name in wanted if name not in present]
    if missing:
        raise UnreadableDrafter([_missing(folder, missing, len(wanted))])
    unlisted = [name for name in present if name not in wanted]
    return Shards(tuple(wanted), placed, tuple(_unlisted(folder, name) for name in unlisted))


def _weight_map(folder: Folder) -> dict[str, str]:
    document = read_object(folder, INDEX, MAX_INDEX)
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UnreadableDrafter([_malformed(folder, "weight_map", weight_map)])
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not name.endswith(".safetensors") or "/" in name:
            raise UnreadableDrafter([_malformed(folder, f"weight_map.{brief(tensor, 80)}", name)])
    return weight_map


def _no_weights(folder: Folder, names: list[str]) -> Diagnostic:
    pickled = [name for name in names if name.endswith(_PICKLES) and not _TRAINING.fullmatch(name)]
    if not pickled:
        return NO_WEIGHTS.found(
            "The folder has no weights.",
            where=str(folder.path),
            seen=brief(names),
            leads_to="SGLang stops with `Cannot find any model weights` after loading the target.",
            mend=f"Fetch the whole repository again: {folder.fetch_command}",
        )
    return PICKLED_WEIGHTS.found(
        "The weights are pickle files only.",
        where=folder.show(pickled[0]) if len(pickled) == 1 else str(folder.path),
        seen=brief(pickled),
        leads_to="The drafter cannot be checked, and opening it can run anyone's code.",
        mend=(
            "Convert it once, where you trust it, in that folder: python -c "
            '"import torch, safetensors.torch as s; s.save_file({k: v.contiguous().clone() '
            f"{_tensors_of(pickled)}}}, 'model.safetensors')\""
        ),
    )


def _tensors_of(pickled: list[str]) -> str:
    """Return the loops over all tensors of the weights; FILE where it is not clear which they are.

    A shard that is not there stops them: a part of the weights is no drafter.
    """
    load = "for k, v in torch.load({}, 'cpu', weights_only=True).items()"
    shards = [shard for shard in map(_SHARD.fullmatch, pickled) if shard]
    sets = {(shard[1], len(shard[2]), shard[3], shard[4]) for shard in shards}
    if len(sets) != 1 or _WHOLE in pickled:
        one = _WHOLE if _WHOLE in pickled else pickled[0] if len(pickled) == 1 else ""
        return load.format(f"'{plain(one)}'")
    ((stem, digits, total, suffix),) = sets
    first = 0 if any(int(shard[2]) == 0 for shard in shards) else 1
    name = f"f'{stem}-{{i:0{digits}}}-of-{total}{suffix}'"
    return f"for i in range({first}, {first + int(total)}) {load.format(name)}"


def _malformed(folder: Folder, key: str, value: object) -> Diagnostic:
    return INDEX_SHAPE.found(
        "The shard index does not map tensors to files of this folder.",
        where=f"{folder.show(INDEX)}, {key}",
        seen=brief(value),
        leads_to="SGLang fails on it, or loads nothing, after the target is loaded.",
        mend="Save the checkpoint again, or delete the index if one file has all the weights.",
    )


def _missing(folder: Folder, missing: list[str], total: int) -> Diagnostic:
    return SHARD_MISSING.found(
        "The shard index names files that are not there.",
        where=folder.show(INDEX),
        seen=f"{len(missing)} of {total} missing: {brief(missing)}",
        leads_to="Their weights stay uninitialised on older releases; newer ones stop.",
        mend=f"Fetch the missing files: {folder.fetch_command}",
    )


def _unlisted(folder: Folder, name: str) -> Diagnostic:
    return SHARD_UNLISTED.found(
        "A safetensors file is not named by the shard index.",
        where=folder.show(name),
        seen=f"{INDEX} does not name it",
        leads_to="SGLang drops the file without a word.",
        mend=f"Delete the file, or name its tensors in {INDEX}.",
    )
