"""The documentation: what is generated in it is current."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from interpreters import ROOT


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_what_the_generator_makes() -> None:
    for path, text in _generator().generated():
        assert path.read_text("utf-8") == text, f"run python docs/generate.py: {path.name}"


def test_a_page_without_its_marks_is_an_error() -> None:
    with pytest.raises(SystemExit, match="once"):
        _generator()._fill("no marks here", "releases", "", "page.md")
