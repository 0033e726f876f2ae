"""The sweep over the model classes of every release."""

from __future__ import annotations

import dataclasses

import pytest

from sglang_kimi_eagle import extending
from sglang_kimi_eagle.adapters.routes import Kind
from sglang_kimi_eagle.adapters.wrappers import PROVED
from sglang_kimi_eagle.releases import NEWEST, OLDEST, RELEASES
from sglang_kimi_eagle.sweeping import known_sweep, new_classes, sweep
from sglang_kimi_eagle.upstream import Sources
from wheels import unpacked

DELEGATES = {
    "0.5.9": 25,
    "0.5.10": 24,
    "0.5.10.post1": 24,
    "0.5.11": 27,
    "0.5.12": 27,
    "0.5.12.post1": 27,
    "0.5.13": 27,
    "0.5.13.post1": 27,
    "0.5.14": 27,
    "0.5.15": 28,
    "0.5.15.post1": 28,
    "0.5.16": 28,
    "0.5.17": 28,
    "0.5.18": 28,
    "0.5.19": 28,
    "0.5.20": 28,
    "0.5.21": 30,
    "0.5.22": 30,
    "0.5.23": 30,
}


@pytest.mark.wheels
@pytest.mark.parametrize("version", RELEASES)
def test_the_shipped_table_is_what_the_sources_have(version: str) -> None:
    found = sweep(Sources(unpacked(version), version), frozenset(extending.adapters()))
    assert found == known_sweep(version)
    assert not list(new_classes(found))


def test_wrappers_that_only_have_to_delegate() -> None:
    assert {version: len(known_sweep(version).delegates) for version in RELEASES} == DELEGATES


def test_kimi_k25_lacks_something_on_the_oldest_release_only() -> None:
    def lacks(version: str) -> bool:
        names = {cls.name for cls in known_sweep(version).lacking}
        return "KimiK25ForConditionalGeneration" in names

    assert [version for version in RELEASES if lacks(version)] == [OLDEST]


def test_what_is_proved_lacks_methods_there() -> None:
    for name, versions in PROVED.items():
        for version in versions:
            assert name in {cls.name for cls in known_sweep(version).lacking}


def test_how_each_is_served() -> None:
    adapters = extending.adapters()
    coverage = {cls.name: cls.coverage(adapters, NEWEST) for cls in known_sweep(NEWEST).lacking}
    assert coverage["Qwen2AudioForConditionalGeneration"] == "served"
    assert (
        coverage["KimiVLForConditionalGeneration"]
        == "SGLANG_KIMI_EAGLE_ADAPT=KimiVLForConditionalGeneration"
    )
    assert coverage["KimiK3ForConditionalGeneration"] == "adapter Kimi-K3"


def test_a_class_that_is_new_is_found() -> None:
    known = known_sweep(NEWEST)
    newcomer = dataclasses.replace(known.lacking[0], name="NewVLForConditionalGeneration")
    found = dataclasses.replace(known, version="0.5.24", lacking=(*known.lacking, newcomer))
    (finding,) = new_classes(found)
    assert finding.code == "KE878"
    assert "NewVLForConditionalGeneration" in finding.message
    assert newcomer.kind is not Kind.NONE
