"""The attention backend of the CPU engine on a processor without AMX."""

from typing import Any

from redirections.after_import import after_import


def register() -> None:
    after_import("sglang.srt.arg_groups.overrides", _keep_the_backend)


def _keep_the_backend(module: Any) -> None:
    """``arg_groups/overrides.py``, 0.5.16 and 0.5.17: no fallback from intel_amx to torch_native.

    These releases build both phases' backend from ``attention_backend``, which falls back,
    when the two phases name the same one; later ones build what the phases name.
    """
    if hasattr(module, "cpu_has_amx_support"):
        module.cpu_has_amx_support = lambda: True
