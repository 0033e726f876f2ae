"""Bring a drafter named by a hub id to this machine before the target is touched.

SGLang would download it too, but after the target, whose weights are hundreds of times larger.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

log = logging.getLogger(__name__)

_HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
# The files that are checked: SGLang itself fetches the rest.
_PATTERNS = ["*.json", "*.safetensors"]


def fetch(location: str, revision: str | None) -> None:
    """Download the drafter's snapshot into the Hugging Face cache if it is a hub id.

    Does nothing for a folder, without ``huggingface_hub`` (SGLang depends on it), offline
    (``HF_HUB_OFFLINE``), or when SGLang would take it from another hub
    (``SGLANG_USE_MODELSCOPE``).  A failed download is left to the reader, which reports that
    there is no such drafter on this machine.
    """
    if Path(location).exists() or not _HUB_ID.fullmatch(location):
        return
    if os.environ.get("SGLANG_USE_MODELSCOPE", "").lower() in ("1", "true"):
        return
    try:
        from huggingface_hub import constants, snapshot_download
    except ImportError:
        return
    if constants.HF_HUB_OFFLINE:
        return
    try:
        snapshot_download(location, revision=revision, allow_patterns=_PATTERNS)
    except Exception as error:
        log.warning("sglang-kimi-eagle: drafter %s could not be fetched: %s", location, error)
