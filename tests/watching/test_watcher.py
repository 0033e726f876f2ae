"""Verdicts over many readings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cli_drafters import write_drafter
from sglang_kimi_eagle.settings import Settings
from sglang_kimi_eagle.watching.baseline import Baseline
from sglang_kimi_eagle.watching.evidence import Standing, examine
from sglang_kimi_eagle.watching.findings import WatchFailed
from sglang_kimi_eagle.watching.judgement import Verdict
from sglang_kimi_eagle.watching.server import Counts, Draft, Reading
from sglang_kimi_eagle.watching.watcher import Assessment, Watcher

CHAIN = Draft(3, 1, 4)
RIGHT, WRONG = 3.5, 2.2


def reading(drafter: Path | str = "nowhere", **changes: Any) -> Reading:
    plain = Reading(
        at=0.0,
        version="0.5.23",
        algorithm="EAGLE3",
        target="nowhere",
        drafter=str(drafter),
        drafter_revision=None,
        draft=CHAIN,
        tp_size=8,
        graphs=True,
        log_interval=40,
        lengths=(None,),
        recent_length=None,
        counts=None,
        decode_tokens=None,
        throughput=50.0,
        running=4.0,
        metrics=False,
    )
    return dataclasses.replace(plain, **changes)


def seen(drafter: Path | str, length: float, steps: float = 5000, **changes: Any) -> Reading:
    """A reading of a server that has done so many steps at one length."""
    counts = Counts(steps, steps * length)
    return reading(drafter, lengths=(length,), counts=counts, **changes)


def watcher(baseline: Baseline | None = None, **options: Any) -> Watcher:
    return Watcher(lambda now: examine(now, None, Settings()), baseline, **options)


def verdict(found: Assessment) -> tuple[Verdict, bool | None]:
    return found.judgement.verdict, found.judgement.likely


@pytest.fixture
def undeclared(tmp_path: Path) -> Path:
    return write_drafter(tmp_path / "undeclared", ids=[2, 4, 6])


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    return write_drafter(tmp_path / "declared", ids=[2, 4, 6], convention="layer_output")


@pytest.fixture
def native(tmp_path: Path) -> Path:
    """Declared, and read so by 0.5.23 itself."""
    return write_drafter(tmp_path / "native", ids=[3, 5, 7], convention="layer_input")


class TestStanding:
    def test_of_each_kind_of_drafter(
        self, undeclared: Path, declared: Path, native: Path, tmp_path: Path
    ) -> None:
        def standing(drafter: Path | str, **changes: Any) -> Standing:
            return examine(reading(drafter, **changes), None, Settings()).standing

        assert standing(undeclared) is Standing.AMBIGUOUS
        assert standing(declared) is Standing.NEEDS_PLUGIN
        assert standing(native) is Standing.SETTLED
        assert standing("nowhere") is Standing.UNKNOWN
        assert standing("") is Standing.UNKNOWN
        assert standing(native, version="0.6.0") is Standing.UNKNOWN
        assert standing(native, algorithm="NGRAM") is Standing.NO_STATES
        assert standing(write_drafter(tmp_path / "e", ids=[])) is Standing.AMBIGUOUS

    def test_of_old_releases_and_their_defects(self, declared: Path) -> None:
        def standing(**changes: Any) -> Standing:
            return examine(reading(declared, **changes), None, Settings()).standing

        # 0.5.9 does not serve at all without the plugin.
        assert standing(version="0.5.9") is Standing.SETTLED
        assert standing(version="0.5.10", tp_size=1) is Standing.NEEDS_PLUGIN
        assert standing(version="0.5.10", tp_size=1, graphs=False) is Standing.SETTLED
        assert standing(version="0.5.12", tp_size=8) is Standing.NEEDS_PLUGIN
        assert standing(version="0.5.12", tp_size=1) is Standing.SETTLED

    def test_the_drafter_may_be_somewhere_else_on_this_machine(self, native: Path) -> None:
        found = examine(reading("/on/the/server"), str(native), Settings())
        assert found.standing is Standing.SETTLED

    def test_the_override_of_this_process_counts(self, undeclared: Path) -> None:
        found = examine(reading(undeclared), None, Settings(states=(3, 5, 7)))
        assert found.standing is Standing.NEEDS_PLUGIN


class TestWithoutBaseline:
    def test_an_ambiguous_drafter_that_accepts_little_is_suspected(self, undeclared: Path) -> None:
        found = watcher().feed(seen(undeclared, WRONG))
        assert verdict(found) == (Verdict.WRONG_WIRING, False)
        (finding,) = found.findings
        assert finding.code == "KE851" and "possibly" in finding.message
        assert "sglang-kimi-eagle wiring" in finding.mend and "probe --launch" in finding.mend
        assert verdict(watcher().feed(seen(undeclared, 1.5))) == (Verdict.WRONG_WIRING, True)

    def test_an_ambiguous_drafter_that_accepts_much_is_left_alone(self, undeclared: Path) -> None:
        assert verdict(watcher().feed(seen(undeclared, RIGHT))) == (Verdict.OK, None)

    def test_a_known_wiring_that_accepts_little_is_a_weak_drafter(self, native: Path) -> None:
        found = watcher().feed(seen(native, 1.5))
        assert verdict(found) == (Verdict.LOW_ACCEPTANCE, None)
        assert found.findings[0].code == "KE852" and "doctor" in found.findings[0].mend
        assert verdict(watcher().feed(seen(native, WRONG))) == (Verdict.OK, None)

    def test_a_wiring_that_needs_the_plugin_may_lack_it(self, declared: Path) -> None:
        found = watcher().feed(seen(declared, 1.5))
        assert verdict(found) == (Verdict.WRONG_WIRING, False)
        assert "plugin is not loaded" in found.findings[0].mend

    def test_an_unreadable_drafter_is_asked_for(self) -> None:
        found = watcher().feed(seen("nowhere", 1.5))
        assert verdict(found) == (Verdict.WRONG_WIRING, False)
        assert "--drafter" in found.findings[0].mend

    def test_nothing_accepted_is_for_the_doctor(self, undeclared: Path, native: Path) -> None:
        for drafter in (undeclared, native):
            found = watcher().feed(seen(drafter, 1.0))
            assert verdict(found) == (Verdict.NOTHING_ACCEPTED, None)
            assert "doctor" in found.findings[0].mend

    def test_an_algorithm_without_states_has_no_wiring(self) -> None:
        found = watcher().feed(seen("", 1.3, algorithm="NGRAM"))
        assert verdict(found) == (Verdict.LOW_ACCEPTANCE, None)


class TestWithBaseline:
    def test_other_states_than_the_baselines_are_likely_wrong(self, undeclared: Path) -> None:
        baseline = Baseline(RIGHT, "b", CHAIN, (3, 5, 7), "0.5.12.post1")
        found = watcher(baseline).feed(seen(undeclared, WRONG))
        assert verdict(found) == (Verdict.WRONG_WIRING, True)
        assert (
            "the baseline was fed h[3], h[5], h[7] on SGLang 0.5.12.post1" in found.findings[0].seen
        )

    def test_a_bare_length_beside_an_ambiguous_wiring(self, undeclared: Path) -> None:
        assert verdict(watcher(Baseline(3.1, "b")).feed(seen(undeclared, 1.9))) == (
            Verdict.WRONG_WIRING,
            True,
        )

    def test_the_same_states_as_the_baselines_are_not_why(self, native: Path) -> None:
        baseline = Baseline(RIGHT, "b", CHAIN, (3, 5, 7))
        found = watcher(baseline).feed(seen(native, WRONG))
        assert verdict(found) == (Verdict.LOW_ACCEPTANCE, None)

    def test_ambiguous_states_that_were_good_before_are_a_possibility(
        self, undeclared: Path
    ) -> None:
        baseline = Baseline(RIGHT, "b", CHAIN, (2, 4, 6))
        found = watcher(baseline).feed(seen(undeclared, WRONG))
        assert verdict(found) == (Verdict.WRONG_WIRING, False)

    @pytest.mark.parametrize(("length", "expected"), [(2.9, Verdict.OK), (2.6, None)])
    def test_other_traffic_alone_is_no_finding(
        self, native: Path, length: float, expected: Verdict | None
    ) -> None:
        found = watcher(Baseline(RIGHT, "b", CHAIN)).feed(seen(native, length))
        assert found.judgement.verdict is (expected or Verdict.LOW_ACCEPTANCE)

    def test_a_baseline_of_a_tree_is_not_compared_with(self, native: Path) -> None:
        found = watcher(Baseline(RIGHT, "b", Draft(3, 4, 16))).feed(seen(native, WRONG))
        assert found.limit.expected is None
        assert [finding.code for finding in found.findings] == ["KE868"]

    def test_speeds_are_compared_under_the_same_load_only(self, native: Path) -> None:
        baseline = Baseline(RIGHT, "b", CHAIN, throughput=100.0, running=4.0)
        same = watcher(baseline).feed(seen(native, RIGHT))
        assert same.throughput_ratio == 0.5
        other = watcher(baseline).feed(seen(native, RIGHT, running=8.0))
        assert other.throughput_ratio is None


def test_slower_than_without_speculation(native: Path) -> None:
    found = watcher(plain_rate=88.0).feed(seen(native, RIGHT))
    assert [finding.code for finding in found.findings] == ["KE854"]
    idle = watcher(plain_rate=88.0).feed(seen(native, RIGHT, running=0.0))
    assert idle.findings == ()


@pytest.mark.parametrize("steps", [0, 50, 99])
def test_few_steps_say_nothing(undeclared: Path, steps: float) -> None:
    found = watcher().feed(seen(undeclared, WRONG, steps) if steps else reading(undeclared))
    assert found.judgement.verdict is Verdict.NOT_ENOUGH_DATA
    assert "KE855" in [finding.code for finding in found.findings]


def test_a_mean_near_the_limit_needs_many_steps(undeclared: Path) -> None:
    near = 2.5
    assert watcher().feed(seen(undeclared, near, 1000)).judgement.verdict is (
        Verdict.NOT_ENOUGH_DATA
    )
    assert watcher().feed(seen(undeclared, near, 50_000)).judgement.verdict is Verdict.WRONG_WIRING


def test_a_server_without_speculation_is_refused() -> None:
    with pytest.raises(WatchFailed) as failure:
        watcher().feed(reading(algorithm="", draft=None))
    assert failure.value.finding.code == "KE866"


def follow(
    watched: Watcher, drafter: Path, lengths: Iterable[float], steps: float = 500
) -> list[Verdict]:
    """Verdicts after stretches of traffic, each at one length, on a release that counts."""
    verdicts = []
    done = tokens = 0.0
    for number, length in enumerate(lengths):
        done, tokens = done + steps, tokens + steps * length
        now = reading(
            drafter, at=float(number), lengths=(tokens / done,), counts=Counts(done, tokens)
        )
        verdicts.append(watched.feed(now).judgement.verdict)
    return verdicts


class TestOverTime:
    """The baseline is 3.5, so that 2.75 is the limit and 3.0 is recovered."""

    base = Baseline(RIGHT, "b", CHAIN)
    ok, bad = Verdict.OK, Verdict.WRONG_WIRING

    def test_the_right_wiring_stays_quiet(self, undeclared: Path) -> None:
        verdicts = follow(watcher(self.base), undeclared, [RIGHT, 3.2, 3.6, 3.3] * 5)
        assert set(verdicts) == {self.ok}

    def test_the_wrong_wiring_stays_flagged(self, undeclared: Path) -> None:
        verdicts = follow(watcher(self.base), undeclared, [WRONG, 2.3, 2.1] * 5)
        assert set(verdicts) == {self.bad}

    def test_one_odd_window_changes_nothing(self, undeclared: Path) -> None:
        verdicts = follow(watcher(self.base), undeclared, [RIGHT] * 3 + [WRONG] + [RIGHT] * 3)
        assert set(verdicts) == {self.ok}

    def test_two_windows_in_a_row_do(self, undeclared: Path) -> None:
        verdicts = follow(watcher(self.base), undeclared, [RIGHT] * 3 + [WRONG] * 3)
        assert verdicts == [self.ok] * 4 + [self.bad] * 2

    def test_between_the_limits_the_verdict_keeps(self, undeclared: Path) -> None:
        between = 2.85
        low = follow(watcher(self.base), undeclared, [WRONG] * 3 + [between] * 6, 5000)
        assert set(low) == {self.bad}
        high = follow(watcher(self.base), undeclared, [RIGHT] * 3 + [between] * 6, 5000)
        assert set(high) == {self.ok}

    def test_small_stretches_are_put_together(self, undeclared: Path) -> None:
        verdicts = follow(watcher(self.base), undeclared, [RIGHT] * 40 + [WRONG] * 40, 50)
        assert verdicts[-1] is self.bad and verdicts.count(self.bad) < 40

    def test_the_last_log_interval_serves_where_nothing_is_counted(self, undeclared: Path) -> None:
        watched = watcher(self.base)
        tokens, verdicts = 0.0, []
        for number, length in enumerate([RIGHT] * 4 + [WRONG] * 4):
            tokens += 500 * length
            found = watched.feed(
                reading(
                    undeclared,
                    at=float(number),
                    lengths=(RIGHT if number < 4 else 3.0,),
                    recent_length=length,
                    decode_tokens=tokens,
                )
            )
            verdicts.append(found.judgement.verdict)
        assert verdicts == [self.ok] * 5 + [self.bad] * 3
        assert found.throughput == pytest.approx(500 * WRONG) and found.measured
        assert found.length == pytest.approx(WRONG) and found.source == "window"

    def test_an_average_since_the_start_follows_slowly(self, undeclared: Path) -> None:
        watched = watcher(self.base)
        averages = [3501 / 1000, 3001 / 1200, 4401 / 2002]
        found = [watched.feed(reading(undeclared, lengths=(length,))) for length in averages]
        assert [one.judgement.verdict for one in found] == [self.ok, self.bad, self.bad]
        assert [finding.code for finding in found[0].findings] == ["KE857"]

    def test_a_restart_forgets(self, undeclared: Path, native: Path) -> None:
        watched = watcher(self.base)
        follow(watched, undeclared, [WRONG] * 4)
        found = watched.feed(reading(undeclared))
        assert found.judgement.verdict is Verdict.NOT_ENOUGH_DATA
        assert "KE856" in [finding.code for finding in found.findings]
        assert set(follow(watched, undeclared, [RIGHT] * 3)) == {self.ok}
        # Fewer steps than before; then another drafter, whose wiring is looked at anew.
        assert set(follow(watched, undeclared, [WRONG] * 2)) == {self.bad}
        found = watched.feed(seen(native, WRONG))
        assert found.judgement.verdict is Verdict.LOW_ACCEPTANCE

    def test_an_idle_server_measures_no_speed(self, undeclared: Path) -> None:
        watched = watcher()
        watched.feed(seen(undeclared, RIGHT, at=1.0))
        found = watched.feed(seen(undeclared, RIGHT, at=2.0))
        assert (found.throughput, found.measured) == (0.0, True)
