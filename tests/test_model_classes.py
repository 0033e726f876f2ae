"""Following SGLang's model classes by name, in sources that are made up here."""

from __future__ import annotations

import textwrap
from pathlib import Path

from sglang_kimi_eagle.model_classes import ModelClasses
from sglang_kimi_eagle.upstream import Sources


def models(folder: Path, **files: str) -> ModelClasses:
    """An SGLang with these modules below ``srt/models``."""
    root = folder / "sglang" / "srt" / "models"
    root.mkdir(parents=True)
    for name, text in files.items():
        (root / f"{name}.py").write_text(textwrap.dedent(text))
    return ModelClasses(Sources(folder / "sglang", "0.0"))


def test_methods_are_inherited_from_other_modules(tmp_path: Path) -> None:
    found = models(
        tmp_path,
        base="""
        class Base:
            def forward(self): ...
        """,
        derived="""
        from sglang.srt.models.base import Base as Renamed
        class Derived(Renamed, nn.Module):
            def own(self): ...
        EntryClass = [Derived]
        """,
    ).find("Derived")
    assert found is not None
    assert [cls.name for cls in found.lineage] == ["Derived", "Base"]
    assert found.method("forward") is not None and found.method("own") is not None
    assert found.method("other") is None


def test_what_a_constructor_builds_is_held(tmp_path: Path) -> None:
    found = models(
        tmp_path,
        text="""
        class One: ...
        class Two: ...
        """,
        wrapper="""
        class Wrapper:
            def __init__(self, config):
                from sglang.srt.models.text import One, Two
                if config.two:
                    self.language_model = Two(config)
                else:
                    self.language_model = One(config)
                self.tower = SomethingElse()
                self.model = self._init_model(config)
            def _init_model(self, config):
                return One(config)
            def forward(self):
                self.not_built_here = Two()
        """,
    ).defined("Wrapper", "sglang.srt.models.wrapper")
    assert found is not None
    held = {name: {cls.name for cls in classes} for name, classes in found.holds.items()}
    assert held == {"language_model": {"One", "Two"}, "model": {"One"}}


def test_a_class_that_is_a_parameter_is_the_default_of_the_nearest_class(tmp_path: Path) -> None:
    found = models(
        tmp_path,
        vl="""
        class Dense: ...
        class Experts: ...
        class Wrapper:
            def __init__(self, config, language_model_cls=Dense):
                self.model = language_model_cls(config)
        class WrapperOfExperts(Wrapper):
            def __init__(self, config, language_model_cls=Experts):
                super().__init__(config, language_model_cls)
        EntryClass = [Wrapper, WrapperOfExperts]
        """,
    )
    held = {cls.name: [inner.name for inner in cls.holds["model"]] for cls in found.entries()}
    assert held == {"Wrapper": ["Dense"], "WrapperOfExperts": ["Experts"]}


def test_a_base_that_is_its_own_base_ends(tmp_path: Path) -> None:
    found = models(
        tmp_path,
        a="from sglang.srt.models.b import B\nclass A(B): ...\n",
        b="from sglang.srt.models.a import A\nclass B(A): ...\n",
    )
    cls = found.defined("A", "sglang.srt.models.a")
    assert cls is not None and [c.name for c in cls.lineage] == ["A", "B"]


def test_names_that_import_each_other_end(tmp_path: Path) -> None:
    found = models(
        tmp_path,
        a="from sglang.srt.models.b import X\n",
        b="from sglang.srt.models.a import X\n",
    )
    assert found.resolve("X", "sglang.srt.models.a") is None


def test_a_file_that_does_not_parse_is_passed_over(tmp_path: Path) -> None:
    found = models(tmp_path, broken="class Broken(:\n", fine="class Fine: ...\nEntryClass = Fine\n")
    assert [cls.name for cls in found.entries()] == ["Fine"]
    assert found.find("Broken") is None
