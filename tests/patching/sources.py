"""The few files of a release that its patch and the inspection look at, copied for a test."""

from __future__ import annotations

import shutil
from pathlib import Path

from sglang_kimi_eagle.patching.diffs import ABSENT
from sglang_kimi_eagle.patching.shipped import patch_of
from wheels import unpacked

_INSPECTED = (
    "srt/server_args.py",
    "srt/managers/scheduler.py",
    "srt/models/deepseek_v2.py",
    "srt/models/kimi_k25.py",
    "srt/models/kimi_k25_eagle3.py",
    "srt/models/registry.py",
    "srt/model_executor/model_runner.py",
    "srt/plugins/__init__.py",
    "srt/speculative/spec_info.py",
)


def stock_copy(version: str, package: Path) -> None:
    """Copy files of a release's wheel to the package folder ``package``."""
    wheel = unpacked(version)
    changed = [file.path for file in patch_of(version).files if file.before != ABSENT]
    for path in {*_INSPECTED, *changed}:
        if (wheel / path).exists():
            (package / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(wheel / path, package / path)
