"""Judging an SGLang by its sources: what has moved is named, what is unknown is not guessed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sglang_kimi_eagle import upstream
from sglang_kimi_eagle.adapters.kimi_k25 import KIMI_CLASS, KIMI_K25, KIMI_MODULE
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.upstream import Inspection, Installation, inspect
from wheels import unpacked

pytestmark = pytest.mark.wheels
MODULES = {
    *(reliance.module for reliance in upstream.RELIANCES),
    *(reliance.module for reliance in KIMI_K25.reliances(KIMI_CLASS)),
    "sglang.srt.model_executor.cuda_graph_runner",
    "sglang.srt.models.kimi_k25_eagle3",
    "sglang.srt.plugins",
}


@pytest.fixture
def copied(tmp_path: Path) -> Installation:
    """The files of 0.5.23 that the plugin looks at, free to be changed."""
    return copy_of("0.5.23", tmp_path)


def copy_of(version: str, folder: Path) -> Installation:
    package = folder / "sglang"
    for module in MODULES:
        for name in (module.replace(".", "/") + ".py", module.replace(".", "/") + "/__init__.py"):
            source = unpacked(version).parent / name
            if source.is_file():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
    return Installation(package, version)


def change(installation: Installation, module: str, old: str, new: str) -> Inspection:
    path = upstream.Sources(installation.package).path(module)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return inspect(installation)


def test_the_copied_files_are_all_that_is_needed(copied: Installation) -> None:
    assert inspect(copied).release == RELEASES["0.5.23"]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (upstream.DEEPSEEK_MODULE, "def set_eagle3_layers_to_capture"),
        (upstream.DEEPSEEK_MODULE, "def get_embed_and_head"),
        (upstream.DEEPSEEK_MODULE, "def set_embed_and_head"),
        (upstream.DEEPSEEK_MODULE, "class DeepseekV2Model("),
        (KIMI_MODULE, "class KimiK25ForConditionalGeneration("),
        (upstream.RUNNER_MODULE, "class ModelRunner:"),
        (upstream.SERVER_ARGS_MODULE, "class ServerArgs:"),
    ],
)
def test_an_attribute_that_moved_is_named_with_its_purpose(
    copied: Installation, module: str, name: str
) -> None:
    keyword, attribute = name.rstrip("(:").split()
    found = change(copied, module, name, name.replace(attribute, attribute + "Renamed"))
    assert found.release is None
    (finding,) = found.findings
    assert finding.code == "KE001"
    assert attribute in finding.message and module in finding.message
    assert "0.5.23" in finding.where and "SGLANG_KIMI_EAGLE=0" in finding.mend
    assert keyword in ("def", "class")


def test_a_module_that_is_gone_is_named(copied: Installation) -> None:
    upstream.Sources(copied.package).path(KIMI_MODULE).unlink()
    found = inspect(copied)
    assert {finding.code for finding in found.findings} == {"KE001"}
    assert found.missing_methods == upstream.METHODS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[val + 1 for val in layer_ids]", "[val + 2 for val in layer_ids]"),
        ("layer_ids[0] == 1", "layer_ids[-1] == 1"),
        ("[2, num_layers // 2, num_layers - 3]", "[1, num_layers // 2, num_layers - 4]"),
        ("self.layers_to_capture", "self.capture_layers"),
    ],
)
def test_a_rule_that_no_release_has_is_not_guessed(
    copied: Installation, old: str, new: str
) -> None:
    found = change(copied, upstream.DEEPSEEK_MODULE, old, new)
    assert found.release is None
    assert [finding.code for finding in found.findings] == ["KE003"]


def test_a_release_of_tomorrow_is_judged_by_its_sources(copied: Installation) -> None:
    found = inspect(Installation(copied.package, "0.5.24"))
    assert found.release is not None and found.release.version == "0.5.24"
    assert [finding.code for finding in found.findings] == ["KE004"]


def test_a_build_that_differs_from_its_release_is_noted(copied: Installation) -> None:
    found = change(
        copied,
        upstream.DEEPSEEK_MODULE,
        "if layer_ids and layer_ids[0] == 1:",
        "if True:",
    )
    assert found.release is not None
    assert [finding.code for finding in found.findings] == ["KE005"]
    assert "setter_rule" in found.findings[0].seen


def test_sources_that_do_not_parse_are_refused(copied: Installation) -> None:
    path = upstream.Sources(copied.package).path(upstream.DEEPSEEK_MODULE)
    path.write_text("def broken(:\n")
    found = inspect(copied)
    assert found.release is None
    assert {finding.code for finding in found.findings} == {"KE001"}
