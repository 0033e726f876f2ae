"""Which adapters there are, and what happens to those that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drafter_files import KIMI, llama
from sglang_kimi_eagle import entry, extending, launch
from sglang_kimi_eagle.adapters import KIMI_K25, Adapter, Reading, builtin
from sglang_kimi_eagle.diagnostics import Rule, Severity
from sglang_kimi_eagle.extending import hookimpl
from sglang_kimi_eagle.releases import SetterRule
from sglang_kimi_eagle.server_arguments import ServerArguments
from sglang_kimi_eagle.settings import Settings, read_settings
from sglang_kimi_eagle.target import read_target
from sglang_kimi_eagle.upstream import METHODS, Installation
from wheels import unpacked

NOTED = Rule("KE999", "theirs", Severity.NOTE, "A check of another package's adapter.")


class Theirs(Adapter):
    name = "Theirs"
    architectures = ("TheirsForCausalLM",)

    def module_of(self, architecture: str) -> str:
        return "sglang.srt.models.theirs"

    def missing(self, sources: Any, architecture: str) -> tuple[str, ...]:
        return METHODS

    def read(self, sources: Any, architecture: str, config: Any) -> Reading:
        return Reading(SetterRule.ALWAYS_INPUT, captures_embedding=False, captures_last=True)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    extending.extensions.cache_clear()
    yield
    extending.extensions.cache_clear()


def bring(monkeypatch: pytest.MonkeyPatch, *adapters: Any) -> None:
    """Install a package that brings these."""

    @hookimpl
    def kimi_eagle_adapters() -> Any:
        return adapters

    package = SimpleNamespace(kimi_eagle_adapters=kimi_eagle_adapters)
    entry_point = SimpleNamespace(name="theirs", load=lambda: package)
    monkeypatch.setattr(extending.metadata, "entry_points", lambda group: [entry_point])


def verdict(folder: Path, adapter: Adapter) -> launch.Verdict:
    """Judge the launch of a healthy drafter with a target of ``TheirsForCausalLM``."""
    target = folder / "target"
    target.mkdir()
    config = {**KIMI, "architectures": ["TheirsForCausalLM"]}
    (target / "config.json").write_text(json.dumps(config))
    arguments = ServerArguments.from_command_line(
        f"--model-path {target} --speculative-algorithm EAGLE3 "
        f"--speculative-draft-model-path {llama().write(folder / 'draft')}".split()
    )
    installation = Installation(unpacked("0.5.23"), "0.5.23")
    return launch.judge(arguments, read_target(str(target)), Settings(), installation, adapter)


def test_kimi_k25_comes_first_by_the_hook_of_everybody() -> None:
    assert next(iter(builtin.kimi_eagle_adapters())) is KIMI_K25
    assert next(iter(extending.adapters().values())) is KIMI_K25


def test_the_door_knows_the_model_types_of_the_built_in_ones() -> None:
    types = {name for adapter in builtin.kimi_eagle_adapters() for name in adapter.model_types}
    assert types == entry.SERVED


def test_a_class_that_may_be_adapted_needs_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["--speculative-algorithm", "EAGLE3", "--model-path", "/none"]
    monkeypatch.setattr(entry, "_may_be_kimi", lambda config: False)
    assert not entry.needs_plugin(argv)
    monkeypatch.setenv("SGLANG_KIMI_EAGLE_ADAPT", "Qwen2AudioForConditionalGeneration")
    assert entry.needs_plugin(argv)


def test_an_adapter_of_another_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Theirs()
    bring(monkeypatch, theirs)
    assert extending.adapters()["TheirsForCausalLM"] is theirs
    assert extending.extensions().findings == ()


def test_two_adapters_for_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rival(Theirs):
        architectures = KIMI_K25.architectures

    bring(monkeypatch, Rival())
    (finding,) = extending.extensions().findings
    assert finding.code == "KE871"
    assert extending.adapters()[KIMI_K25.architectures[0]] is KIMI_K25


@pytest.mark.parametrize("brought", [5, Adapter(), Theirs])
def test_what_is_no_adapter_is_reported(monkeypatch: pytest.MonkeyPatch, brought: Any) -> None:
    bring(monkeypatch, brought)
    assert [finding.code for finding in extending.extensions().findings] == ["KE019"]


@pytest.mark.wheels
class TestLaunch:
    def test_its_reading_decides(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        theirs = Theirs()
        bring(monkeypatch, theirs)
        found = verdict(tmp_path, theirs)
        assert found.release is not None and found.wiring is not None
        assert found.release.setter_rule is SetterRule.ALWAYS_INPUT
        assert found.release.reachable(61) == range(1, 62)
        assert not found.release.wrapper_methods

    def test_its_checks_are_made(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        class Checking(Theirs):
            checks = (lambda context: [NOTED.found("Seen.")],)

        theirs = Checking()
        bring(monkeypatch, theirs)
        assert "KE999" in {finding.code for finding in verdict(tmp_path, theirs).findings}

    @pytest.mark.parametrize("method", ["missing", "read", "readings", "reliances"])
    def test_one_that_fails_refuses_the_launch(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str
    ) -> None:
        def fail(*args: Any) -> Any:
            raise RuntimeError("broken")

        theirs = type("Broken", (Theirs,), {method: fail})()
        bring(monkeypatch, theirs)
        found = verdict(tmp_path, theirs)
        assert found.release is None
        (finding,) = found.findings
        assert finding.code == "KE872" and "broken" in finding.seen

    def test_one_that_cannot_read_a_config_is_not_asked(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def fail(*args: Any) -> Any:
            raise RuntimeError("broken")

        theirs = type("Broken", (Theirs,), {"text_config": fail})()
        bring(monkeypatch, theirs)
        assert verdict(tmp_path, theirs).release is not None


class TestSetting:
    def test_classes_are_named_with_commas(self) -> None:
        settings = read_settings({"SGLANG_KIMI_EAGLE_ADAPT": " One, Two ,"})
        assert settings.adapt == {"One", "Two"}
        assert read_settings({}).adapt == frozenset()

    def test_what_is_no_name_is_refused(self) -> None:
        settings = read_settings({"SGLANG_KIMI_EAGLE_ADAPT": "One;Two"})
        assert settings.adapt == frozenset()
        assert [finding.code for finding in settings.findings] == ["KE010"]
