"""Reading a target's config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drafter_files import KIMI, KIMI_TEXT
from sglang_kimi_eagle.adapters import KIMI_K25
from sglang_kimi_eagle.target import UnreadableTarget, read_target, target_of


def write(folder: Path, config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_kimi(tmp_path: Path) -> None:
    target = read_target(write(tmp_path, KIMI))
    assert target.adapter is KIMI_K25
    assert (target.num_layers, target.hidden_size, target.vocab_size) == (61, 7168, 163840)
    assert target.bos_token_ids == {163584}
    assert target.eos_token_ids == {163585, 163586}
    assert target.context_length == 262144
    assert target.dtype == "bfloat16"


def test_a_text_model(tmp_path: Path) -> None:
    target = read_target(write(tmp_path, KIMI_TEXT))
    assert target.adapter is None
    assert target.num_layers == 61
    assert target.model_type == "kimi_k2"


def test_nothing_there() -> None:
    with pytest.raises(UnreadableTarget) as caught:
        read_target("/no/such")
    assert [finding.code for finding in caught.value.findings] == ["KE101"]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"text_config": None},
        {"text_config": {**KIMI_TEXT, "num_hidden_layers": "61"}},
        {**KIMI, "text_config": {**KIMI_TEXT, "hidden_size": -1}},
    ],
)
def test_sizes_missing(config: dict[str, Any]) -> None:
    with pytest.raises(UnreadableTarget) as caught:
        target_of(config, "target")
    assert [finding.code for finding in caught.value.findings] == ["KE118"]


@pytest.mark.parametrize("architectures", [None, [], "x", [7]])
def test_architectures_of_another_type(architectures: Any) -> None:
    assert target_of({**KIMI, "architectures": architectures}, "target").architecture == ""
