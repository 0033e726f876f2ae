"""Read ``config.json`` of a checkpoint, and nothing else of it."""

from __future__ import annotations

from typing import Any

from sglang_kimi_eagle.drafter.document import NotADocument, brief, decode
from sglang_kimi_eagle.drafter.folder import Folder
from sglang_kimi_eagle.drafter.location import locate
from sglang_kimi_eagle.drafter.problems import CONFIG_MISSING, NOT_JSON, UnreadableDrafter

CONFIG = "config.json"
MAX_CONFIG = 1024 * 1024
"""Bytes. Real ones have a few KB."""


def read_config(location: str, revision: str | None = None) -> dict[str, Any]:
    """Read the config of the checkpoint at ``location``.

    Raises:
        UnreadableDrafter: there is none, or it is no JSON object.
    """
    return config_of(locate(location, revision))


def config_of(folder: Folder) -> dict[str, Any]:
    """Read the config of the checkpoint in ``folder``; raises as `read_config`."""
    if not folder.has(CONFIG):
        raise UnreadableDrafter(
            [
                CONFIG_MISSING.found(
                    "The folder has no config.json.",
                    where=str(folder.path),
                    seen=brief(folder.names()),
                    leads_to="SGLang cannot tell what model it is.",
                    mend="Give the folder that holds config.json beside the weights.",
                )
            ]
        )
    return read_object(folder, CONFIG, MAX_CONFIG)


def read_object(folder: Folder, name: str, limit: int) -> dict[str, Any]:
    """Read a JSON object from a file of ``folder``.

    Raises:
        UnreadableDrafter: it is larger than ``limit``, or no JSON object.
    """
    try:
        document = decode(folder.read(name, limit))
        if not isinstance(document, dict):
            raise NotADocument(f"{brief(document, 60)}, which is no JSON object")
    except NotADocument as problem:
        raise UnreadableDrafter(
            [
                NOT_JSON.found(
                    f"{name} cannot be read as JSON.",
                    where=folder.show(name),
                    seen=str(problem),
                    leads_to="SGLang fails on it, or reads something else than was meant.",
                    mend=f"Correct {name} there, or fetch it again.",
                )
            ]
        ) from problem
    return document
