"""Other people's packages beside the plugin, written for a test: a folder for PYTHONPATH."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent


def plugin_package(folder: Path, name: str, body: str) -> Path:
    """Write a plugin for SGLang named ``name`` whose ``plugin()`` is ``body``."""
    lines = dedent(body).strip().splitlines()
    _write(folder / f"{name}.py", "\n    ".join(["def plugin():", *lines]) + "\n")
    info = folder / f"{name}-1.0.dist-info"
    _write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    _write(info / "entry_points.txt", f"[sglang.srt.plugins]\n{name} = {name}:plugin\n")
    return folder


def model_package(folder: Path, source: str) -> Path:
    """Write the package ``their_models``, for SGLANG_EXTERNAL_MODEL_PACKAGE."""
    _write(folder / "their_models" / "__init__.py", "")
    _write(folder / "their_models" / "kimi.py", dedent(source))
    return folder


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
