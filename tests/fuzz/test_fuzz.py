"""A short run of the fuzzer; ``python -m benchmarks.fuzz`` is the long one."""

from __future__ import annotations

from fuzz.mutate import run


def test_broken_checkpoints() -> None:
    outcome = run(2000)
    assert outcome.cases == 2000
    assert outcome.peak_growth_mb < 100
    # Not everything is refused alike: the cases reach deep into the checks.
    assert len(outcome.codes) > 30
