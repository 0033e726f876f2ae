"""From what the user wrote to a folder on this machine; the network is never asked."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sglang_kimi_eagle.drafter.folder import Folder
from sglang_kimi_eagle.drafter.problems import NOT_FOUND, UnreadableDrafter
from sglang_kimi_eagle.ordinary_files import read_ordinary

# What huggingface_hub accepts (validate_repo_id): one or two parts, no "--" and no "..".
_HUB_ID = re.compile(r"[A-Za-z0-9_.-]{1,96}(?:/[A-Za-z0-9_.-]{1,96})?")
_REVISION = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def locate(location: str, revision: str | None = None) -> Folder:
    """Find the folder that ``location`` (a path, or a hub id in the cache) stands for.

    Raises:
        UnreadableDrafter: there is none.
    """
    try:
        path = Path(location).expanduser()
        if location and path.is_dir():
            return Folder(location, path.resolve())
        if location and os.path.lexists(path):
            raise _no_folder(path)
    except (OSError, ValueError, RuntimeError) as problem:
        # A NUL in the path, a name too long, a loop of links, an unknown ~user.
        raise _not_found(location, f"the path cannot be used: {problem}") from problem
    try:
        snapshot = _snapshot(location, revision)
    except (OSError, RuntimeError) as problem:
        # No home directory, or a cache that may not be read.
        raise _not_found(location, f"the cache cannot be used: {problem}") from problem
    if snapshot is not None:
        return Folder(location, snapshot)
    looked_in = f"no such folder, and no snapshot in {hub_cache()}"
    if revision is not None:
        looked_in += f" of revision {revision!r}"
    raise _not_found(location, looked_in)


def hub_cache() -> Path:
    """Return the folder of the Hugging Face cache, as huggingface_hub finds it."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            return Path(os.path.expandvars(os.environ[name])).expanduser()
    home = os.environ.get("HF_HOME")
    if not home:
        home = str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.path.expandvars(home)).expanduser() / "hub"


def _snapshot(hub_id: str, revision: str | None) -> Path | None:
    if not _HUB_ID.fullmatch(hub_id) or ".." in hub_id or "--" in hub_id:
        return None
    repository = hub_cache() / ("models--" + hub_id.replace("/", "--"))
    wanted = revision or "main"
    if not _REVISION.fullmatch(wanted) or ".." in wanted:
        return None
    commit = wanted
    if not _COMMIT.fullmatch(wanted):
        try:
            reference = read_ordinary(repository / "refs" / wanted)
            commit = reference.decode("ascii", "replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not _COMMIT.fullmatch(commit):
            return None
    folder = repository / "snapshots" / commit
    return folder.resolve() if folder.is_dir() else None


def _no_folder(path: Path) -> UnreadableDrafter:
    # A model is a folder to SGLang too; people give its config or its weights instead.
    inside = path.is_file()
    return UnreadableDrafter(
        [
            NOT_FOUND.found(
                "The path is not that of a folder.",
                where=repr(str(path)[:200]),
                seen="a file" if inside else "no folder, and no link to one",
                leads_to="SGLang takes it for a hub id and fails.",
                mend="Give the folder that the file is in."
                if inside
                else "Give the path of the model's folder.",
            )
        ]
    )


def _not_found(location: str, looked_in: str) -> UnreadableDrafter:
    return UnreadableDrafter(
        [
            NOT_FOUND.found(
                "The model is not on this machine.",
                where=repr(location[:200]),
                seen=looked_in,
                leads_to="Nothing about it can be checked before the launch.",
                mend="Give the path of its folder, or fetch it first with `hf download`.",
            )
        ]
    )
