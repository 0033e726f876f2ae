"""The door through which SGLang, or the start-up hook, loads the plugin.

SGLang logs and swallows every exception of a plugin function.  So this module imports nothing
that can fail, and when the plugin itself fails it stops a launch that needs it.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

SERVED = frozenset({"kimi_k25", "kimi_k3", "kimi_linear"})
"""``model_type`` of the targets of the built-in adapters, which cannot be asked when they fail."""


def plugin() -> None:
    """Activate the plugin: the entry point of the group ``sglang.srt.plugins``."""
    activate(found_by="sglang.srt.plugins")


def activate(found_by: str) -> None:
    """Activate the plugin, or stop a launch that cannot do without it.

    Raises:
        SystemExit: status 3, when the plugin failed and the command line asks for EAGLE3 with a
            target that is, or may be, one of the plugin's.
    """
    try:
        from sglang_kimi_eagle.activation import activate as activate_here

        activate_here(found_by)
    except Exception as error:
        if switched_off():
            return
        sys.stderr.write(
            "sglang-kimi-eagle: KE007 error: the plugin itself failed to load.\n"
            f"  where:    {found_by}, Python {sys.version.split()[0]} ({sys.executable})\n"
            f"  seen:     {error!r}\n"
            "  leads to: an EAGLE-3 drafter for Kimi would be served without the plugin.\n"
            "  mend:     reinstall sglang-kimi-eagle with its dependencies, or switch it off "
            "with SGLANG_KIMI_EAGLE=0.\n"
        )
        if needs_plugin(sys.argv):
            raise SystemExit(3) from error


def needs_plugin(argv: list[str]) -> bool:
    """Tell whether a launch command line asks for EAGLE3 with what may be one of the targets."""
    words = [part for argument in argv for part in argument.split("=", 1)]
    for flag, value in itertools.pairwise(words):
        if flag == "--config":
            return b"eagle3" in _read(Path(value)).lower()
    if not any(word.upper() == "EAGLE3" for word in words):
        return False
    if os.environ.get("SGLANG_KIMI_EAGLE_ADAPT", "").strip():
        return True
    for flag, value in itertools.pairwise(words):
        if flag in ("--model-path", "--model"):
            return _may_be_kimi(Path(value) / "config.json")
    return True


def switched_off() -> bool:
    """Tell whether the plugin is switched off, without the module that reads its settings."""
    return os.environ.get("SGLANG_KIMI_EAGLE", "").strip().lower() in ("0", "false", "off", "no")


def _may_be_kimi(config: Path) -> bool:
    try:
        model_type = json.loads(_read(config)).get("model_type")
    except (ValueError, AttributeError):
        return True
    return model_type in SERVED


def _read(path: Path) -> bytes:
    try:
        from sglang_kimi_eagle.ordinary_files import read_ordinary

        return read_ordinary(path)
    except (OSError, ValueError, ImportError):
        return b""
