"""Judging a launch by its server arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drafter_files import KIMI
from sglang_kimi_eagle.launch import Verdict, judge
from sglang_kimi_eagle.server_arguments import ServerArguments
from sglang_kimi_eagle.settings import Settings
from sglang_kimi_eagle.target import read_target
from sglang_kimi_eagle.upstream import Installation
from wheels import unpacked

pytestmark = pytest.mark.wheels


def verdict(folder: Path, algorithm: str, drafter: Path) -> Verdict:
    """Judge a launch of a target of Kimi's size."""
    target = folder / "target"
    target.mkdir()
    (target / "config.json").write_text(json.dumps(KIMI))
    arguments = ServerArguments.from_command_line(
        f"--model-path {target} --speculative-algorithm {algorithm} "
        f"--speculative-draft-model-path {drafter}".split()
    )
    installation = Installation(unpacked("0.5.23"), "0.5.23")
    return judge(arguments, read_target(str(target)), Settings(), installation)


@pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN", "EAGLE3"])
def test_only_eagle3_needs_a_drafter_that_can_be_read(tmp_path: Path, algorithm: str) -> None:
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    (drafter / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle"]}')
    (drafter / "pytorch_model.bin").write_bytes(b"")
    found = [finding.code for finding in verdict(tmp_path, algorithm, drafter).findings]
    assert found == (["KE108"] if algorithm == "EAGLE3" else [])
