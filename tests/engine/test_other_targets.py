"""Targets other than Kimi-K2.5, in the real engine: what was captured, and what was generated."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cpu_engine.server import ServerFailed
from engine_tools import (
    RECORDS,
    Drafters,
    Engines,
    records_of,
    states_fed,
    tokens,
)
from interpreters import ROOT
from sglang_kimi_eagle.adapters.wrappers import PROVED
from tiny_models import wrapped
from tiny_models.paths import LLAMA

pytestmark = pytest.mark.engine

TOKENS = 24
Writer = Callable[[Path], Path]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Writer], Path]:
    """Tiny targets, written when first asked for."""
    folder = tmp_path_factory.mktemp("targets")

    def target(write: Writer) -> Path:
        path = folder / write.__name__
        return path if path.exists() else write(path)

    return target


def architecture(target: Path) -> str:
    name: str = json.loads((target / "config.json").read_text())["architectures"][0]
    return name


@pytest.mark.parametrize(
    ("release", "write"),
    [
        pytest.param("0.5.9", wrapped.qwen3_vl, id="0.5.9-qwen3_vl"),
        pytest.param("0.5.23", wrapped.qwen2_audio, id="0.5.23-qwen2_audio"),
        pytest.param("0.5.23", wrapped.glm_asr, id="0.5.23-glm_asr"),
        pytest.param("0.5.23", wrapped.kimi_vl, id="0.5.23-kimi_vl"),
    ],
)
def test_a_wrapper_is_served_by_what_its_class_says(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    targets: Callable[[Writer], Path],
    release: str,
    write: Writer,
) -> None:
    """One for each kind of language model: Qwen3, Qwen2, Llama, DeepSeek."""
    target = targets(write)
    name = architecture(target)
    proved = release in PROVED.get(name, ())
    folder = engines.records_folder()
    environ = {RECORDS: str(folder)}
    if not proved:
        environ["SGLANG_KIMI_EAGLE_ADAPT"] = name
    with engines.server(release, drafters.pinned(LLAMA), target=target, environ=environ) as server:
        completions = server.generate(prompts[:3], TOKENS)
        log = server.log_text
    assert f"{name}; added set_eagle3_layers_to_capture, get_embed_and_head" in log
    assert "captures h[3], h[5], h[7] (declaration: " in log
    records = records_of(folder)
    assert states_fed(records) == {(3, 5, 7)}
    modes = {record.target.mode for record in records if record.target}
    assert {"EXTEND", "TARGET_VERIFY"} <= modes
    with engines.server(release, plugin=False, target=target) as server:
        assert tokens(completions) == tokens(server.generate(prompts[:3], TOKENS))


def test_undeclared_ids_are_read_as_the_class_reads_them(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    targets: Callable[[Writer], Path],
) -> None:
    """Qwen2 of 0.5.23 takes every id k as h[k+1], where DeepSeek's takes [2, 4, 6] as h[k]."""
    folder = engines.records_folder()
    with engines.server(
        "0.5.23",
        drafters.shipped(LLAMA),
        target=targets(wrapped.qwen2_audio),
        environ={RECORDS: str(folder)},
    ) as server:
        server.generate(prompts[:1], 6)
        assert "KE210" not in server.log_text
    assert states_fed(records_of(folder)) == {(3, 5, 7)}


def test_what_is_not_proved_is_left_alone_but_named(
    engines: Engines, drafters: Drafters, targets: Callable[[Writer], Path]
) -> None:
    with (
        pytest.raises(ServerFailed) as failure,
        engines.server("0.5.23", drafters.pinned(LLAMA), target=targets(wrapped.kimi_vl)),
    ):
        pass
    assert "KE876 warning: KimiVLForConditionalGeneration has no set_eagle3" in failure.value.log
    assert "does not implement set_eagle3_layers_to_capture" in failure.value.log or (
        "has no attribute 'get_embed_and_head'" in failure.value.log
    )


def test_a_target_without_a_capture_loop_is_refused(
    engines: Engines, drafters: Drafters, targets: Callable[[Writer], Path], tmp_path: Path
) -> None:
    target = tmp_path / "target"
    shutil.copytree(targets(wrapped.qwen2_audio), target)
    config = json.loads((target / "config.json").read_text())
    config["architectures"] = ["HunYuanMoEV1ForCausalLM"]
    (target / "config.json").write_text(json.dumps(config))
    with (
        pytest.raises(ServerFailed) as failure,
        engines.server(
            "0.5.23",
            drafters.pinned(LLAMA),
            target=target,
            environ={"SGLANG_KIMI_EAGLE_ADAPT": "HunYuanMoEV1ForCausalLM"},
        ),
    ):
        pass
    assert failure.value.returncode == 3
    assert "KE873 error: HunYuanMoEV1ForCausalLM has no loop" in failure.value.log
    assert "Traceback" not in failure.value.log


def test_the_adapter_of_another_package_serves_its_target(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    targets: Callable[[Writer], Path],
    tmp_path: Path,
) -> None:
    """The package is installed beside the plugin; nothing of the plugin knows of it."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source, wheels, site = tmp_path / "source", tmp_path / "wheels", tmp_path / "site"
    shutil.copytree(ROOT / "tests" / "example_adapter", source)
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(wheels), str(source)], check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    target = targets(wrapped.kimi_vl)
    folder = engines.records_folder()
    with engines.server(
        "0.5.23",
        drafters.pinned(LLAMA),
        target=target,
        environ={RECORDS: str(folder), "PYTHONPATH": str(site)},
        cold=True,
    ) as server:
        completions = server.generate(prompts[:3], TOKENS)
        log = server.log_text
    assert "Kimi-VL; added set_eagle3_layers_to_capture" in log
    assert states_fed(records_of(folder)) == {(3, 5, 7)}
    with engines.server("0.5.23", plugin=False, target=target) as server:
        assert tokens(completions) == tokens(server.generate(prompts[:3], TOKENS))
