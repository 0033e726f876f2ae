"""The table of releases, against the sources of the releases themselves."""

import pytest

from sglang_kimi_eagle import upstream
from sglang_kimi_eagle.releases import NEWEST, OLDEST, RELEASES, SetterRule, spans
from sglang_kimi_eagle.states import Convention
from wheels import unpacked


@pytest.mark.wheels
@pytest.mark.parametrize("version", RELEASES)
def test_each_row_is_what_the_sources_of_the_release_do(version: str) -> None:
    inspection = upstream.inspect(upstream.Installation(unpacked(version), version))
    assert inspection.findings == ()
    assert inspection.release == RELEASES[version]


@pytest.mark.wheels
def test_only_the_oldest_release_lacks_the_methods() -> None:
    lacking = [
        version
        for version in (OLDEST, "0.5.10", NEWEST)
        if upstream.inspect(upstream.Installation(unpacked(version), version)).missing_methods
    ]
    assert lacking == [OLDEST]


def test_the_story_in_two_rows() -> None:
    ids = [2, 30, 58]
    assert RELEASES["0.5.12.post1"].stock_states(ids, 61) == (3, 31, 59)
    assert RELEASES["0.5.13"].stock_states(ids, 61) == (2, 30, 58)
    assert {release.stock_states([1, 29, 57], 61) for release in RELEASES.values()} == {(2, 30, 58)}


def test_the_newer_rule_looks_at_the_first_id_only() -> None:
    rule = SetterRule.OUTPUT_IF_FIRST_IS_ONE
    assert rule.convention([1, 2, 3]) is Convention.LAYER_OUTPUT
    assert rule.convention([2, 1, 3]) is Convention.LAYER_INPUT
    assert rule.convention([]) is Convention.LAYER_INPUT


def test_spans_join_neighbours() -> None:
    assert spans(list(RELEASES)) == f"{OLDEST} - {NEWEST}"
    assert spans(["0.5.14", "0.5.9", "0.5.10"]) == "0.5.9 - 0.5.10, 0.5.14"
    assert spans([]) == ""
