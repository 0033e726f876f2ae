"""What may happen to an installed plugin: other plugins, vanishing files, killed processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Sequence
from pathlib import Path

import pytest

from cpu_engine.server import Server, ServerFailed
from engine_tools import RECORDS, Drafters, Engines, records_of, states_fed, tokens
from foreign_packages import model_package, plugin_package
from interpreters import ROOT
from tiny_models.paths import LLAMA

pytestmark = pytest.mark.engine

_BENIGN = """
def noting(setter, *args, **kwargs):
    print("their setter ran", flush=True)
    return setter(*args, **kwargs)
"""
_HOSTILE = """
def noting(setter, target, *args, **kwargs):
    setter(target, *args, **kwargs)
    target.model.layers_to_capture = [1, 2, 3]
"""
# A hook of SGLang's own registry is put in place after every plugin has been loaded.
_AFTER_OURS = """
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
path = "sglang.srt.models.deepseek_v2.DeepseekV2ForCausalLM.set_eagle3_layers_to_capture"
HookRegistry.register(path, noting, HookType.AROUND)
"""
# What is on PYTHONPATH is loaded first, and this one patches as it is loaded.
_BEFORE_OURS = """
import functools
from sglang.srt.models.deepseek_v2 import DeepseekV2ForCausalLM as cls
cls.set_eagle3_layers_to_capture = functools.partialmethod(
    functools.partial(noting, cls.set_eagle3_layers_to_capture)
)
"""


class TestTwoPluginsThatPatchTheSameMethod:
    """0.5.23, whose plugin framework loads both."""

    @pytest.mark.parametrize("order", [_BEFORE_OURS, _AFTER_OURS], ids=["theirs", "ours"])
    def test_a_wrapper_around_the_setter_is_no_harm_whoever_is_first(
        self,
        engines: Engines,
        drafters: Drafters,
        prompts: list[list[int]],
        tmp_path: Path,
        order: str,
    ) -> None:
        theirs = plugin_package(tmp_path, "their_plugin", _BENIGN + order)
        folder = engines.records_folder()
        with engines.server(
            "0.5.23",
            drafters.pinned(LLAMA),
            cold=True,
            environ={"PYTHONPATH": str(theirs), RECORDS: str(folder)},
        ) as server:
            server.generate(prompts[:1], 6)
            assert "their setter ran" in server.log_text
        assert states_fed(records_of(folder)) == {LLAMA.trained_on}

    def test_one_that_changes_the_states_in_the_setter_changes_nothing(
        self, engines: Engines, drafters: Drafters, prompts: list[list[int]], tmp_path: Path
    ) -> None:
        """Ours wraps the setter last of all, when the launch has been judged."""
        theirs = plugin_package(tmp_path, "their_plugin", _HOSTILE + _AFTER_OURS)
        folder = engines.records_folder()
        with engines.server(
            "0.5.23",
            drafters.pinned(LLAMA),
            cold=True,
            environ={"PYTHONPATH": str(theirs), RECORDS: str(folder)},
        ) as server:
            server.generate(prompts[:1], 6)
        assert states_fed(records_of(folder)) == {LLAMA.trained_on}


class TestAnExternalModelPackage:
    """SGLANG_EXTERNAL_MODEL_PACKAGE, which replaces SGLang's class for the target."""

    DERIVED = """
        from sglang.srt.models.kimi_k25 import KimiK25ForConditionalGeneration as Stock


        class KimiK25ForConditionalGeneration(Stock):
            pass


        EntryClass = KimiK25ForConditionalGeneration
    """
    OF_THEIR_OWN = """
        import torch


        class KimiK25ForConditionalGeneration(torch.nn.Module):
            pass


        EntryClass = KimiK25ForConditionalGeneration
    """

    def environ(self, folder: Path, source: str) -> dict[str, str]:
        package = model_package(folder, source)
        return {"PYTHONPATH": str(package), "SGLANG_EXTERNAL_MODEL_PACKAGE": "their_models"}

    def test_a_class_derived_from_sglangs_has_the_methods(
        self, engines: Engines, drafters: Drafters, prompts: list[list[int]], tmp_path: Path
    ) -> None:
        folder = engines.records_folder()
        environ = {**self.environ(tmp_path, self.DERIVED), RECORDS: str(folder)}
        with engines.server("0.5.9", drafters.pinned(LLAMA), cold=True, environ=environ) as server:
            server.generate(prompts[:1], 6)
        assert states_fed(records_of(folder)) == {LLAMA.trained_on}

    def test_a_class_without_them_is_refused_before_weights_are_read(
        self, engines: Engines, drafters: Drafters, tmp_path: Path
    ) -> None:
        environ = self.environ(tmp_path, self.OF_THEIR_OWN)
        with (
            pytest.raises(ServerFailed) as failure,
            engines.server("0.5.23", drafters.pinned(LLAMA), cold=True, environ=environ),
        ):
            pass
        assert failure.value.returncode == 3
        assert "KE009 error" in failure.value.log and "their_models.kimi" in failure.value.log
        assert "Load weight begin" not in failure.value.log


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
@pytest.mark.parametrize("change", ["removed", "cut", "replaced"])
def test_a_drafter_that_changes_while_the_server_starts_is_judged_as_it_is_loaded(
    engines: Engines, drafters: Drafters, release: str, change: str
) -> None:
    draft = drafters.pinned(LLAMA)
    environ = {
        "CPU_ENGINE_DRAFTER": str(draft),
        "CPU_ENGINE_CHANGE": change,
        # The other one is wired otherwise, and rightly: it is served as what it is.
        "CPU_ENGINE_OTHER": str(drafters.pinned(LLAMA, (1, 2, 3))),
    }
    server = engines.server(release, draft, probes="drafter_changes", environ=environ)
    if change == "replaced":
        with server:
            assert "captures h[1], h[2], h[3] (declaration" in server.log_text
        return
    with pytest.raises(ServerFailed) as failure, server:
        pass
    assert failure.value.returncode == 3
    assert "launch refused; no weight was read" in failure.value.log
    assert "KE1" in failure.value.log


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_a_killed_scheduler_ends_the_answers_and_a_new_server_gives_the_same(
    engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str
) -> None:
    draft = drafters.pinned(LLAMA)
    with engines.server(release, draft) as server:
        before = tokens(server.generate(prompts[:2], 16))
        os.kill(scheduler_of(server), signal.SIGKILL)
        with pytest.raises((urllib.error.URLError, OSError)):
            server.post("/generate", {"input_ids": [prompts[2]], "sampling_params": {}}, 20.0)
    with engines.server(release, draft) as again:
        assert tokens(again.generate(prompts[:2], 16)) == before


def scheduler_of(server: Server) -> int:
    """Return the scheduler's process: the first that the server's process starts."""
    children = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == server.pid:
                children.append(int(folder.name))
    return min(children)


def test_a_plugin_in_a_read_only_folder_serves_and_may_be_upgraded_meanwhile(
    engines: Engines, drafters: Drafters, prompts: list[list[int]], tmp_path: Path
) -> None:
    site = tmp_path / "site-packages"
    install(site)
    with engines.server(
        "0.5.23",
        drafters.pinned(LLAMA),
        plugin=False,
        probes="read_only",
        cold=True,
        environ={
            "PYTHONPATH": str(site),
            "CPU_ENGINE_READ_ONLY": str(site),
            "CPU_ENGINE_PROBES": "read_only",
        },
    ) as server:
        assert "captures h[3], h[5], h[7] (declaration" in server.log_text
        before = tokens(server.generate(prompts[:2], 16))
        shutil.rmtree(site / "sglang_kimi_eagle")
        (site / "sglang_kimi_eagle").mkdir()
        for module in ("__init__", "entry", "activation", "capture"):
            broken = site / "sglang_kimi_eagle" / f"{module}.py"
            broken.write_text("raise ImportError('half an upgrade')\n")
        assert tokens(server.generate(prompts[:2], 16)) == before
        assert "half an upgrade" not in server.log_text
    assert tokens_without_speculation(engines, prompts[:2], 16) == before


def tokens_without_speculation(
    engines: Engines, prompts: Sequence[Sequence[int]], count: int
) -> list[list[int]]:
    found: list[list[int]] = engines.plain_tokens("0.5.23", prompts, count)
    return found


def install(site: Path) -> None:
    """Install the project's wheel with what it needs into a folder of its own."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "--no-compile", "--target", str(site), str(ROOT)], check=True)
