from __future__ import annotations

import numpy as np
import pytest

from sglang_kimi_eagle.probing.acceptance import (
    BLOCK,
    SEQUENCES,
    Comparison,
    simulate,
    tally,
)
from sglang_kimi_eagle.probing.scoring import Hits

STEPS = 3


def hits(*rows: str) -> Hits:
    """``x`` is right, ``.`` is wrong; a short row is cut off by the end of the sequence."""
    right = np.array([[c == "x" for c in row.ljust(STEPS, " ")] for row in rows])
    known = np.array([[c != " " for c in row.ljust(STEPS, " ")] for row in rows])
    return Hits(right, known)


def drafts(chance: float, rows: int, seed: int) -> Hits:
    random = np.random.default_rng(seed)
    known = np.arange(rows)[:, None] + np.arange(STEPS) < rows
    return Hits((random.random((rows, STEPS)) < chance) & known, known)


class TestSimulation:
    def test_a_verify_step_gives_its_accepted_tokens_and_the_bonus(self) -> None:
        # Chains of rows 0, 3 and 4; the token of the prefill is counted with the first.
        assert simulate(hits("xx.", "xxx", "xxx", "...", "x..", "xx", "x")) == [
            (0, 4),
            (3, 1),
            (4, 2),
            (6, 1),
        ]

    def test_tokens_add_up_to_the_generation(self) -> None:
        for seed in range(20):
            sample = drafts(0.6, 50, seed)
            assert sum(tokens for _, tokens in simulate(sample)) == 51

    def test_a_right_token_behind_a_wrong_one_counts_for_nothing(self) -> None:
        assert simulate(hits(".xx", ".xx", ".x", ".")) == [(0, 2), (1, 1), (2, 1), (3, 1)]


class TestTally:
    def test_units_are_sequences_when_there_are_enough(self) -> None:
        found = tally([drafts(0.5, 100, seed) for seed in range(SEQUENCES)])
        assert len(found.tokens) == SEQUENCES
        assert found.tokens.tolist() == [101] * SEQUENCES

    def test_units_are_blocks_when_there_are_few(self) -> None:
        found = tally([drafts(0.5, 3 * BLOCK, 1)])
        assert len(found.tokens) == 3 and found.tokens.sum() == 3 * BLOCK + 1

    def test_chains_end_at_the_first_wrong_token(self) -> None:
        found = tally([hits("x.x", "xxx", "xx", "x")])
        assert found.right.sum(0).tolist() == [4, 2, 2]
        assert found.through.sum(0).tolist() == [4, 2, 1]
        assert found.rows.sum(0).tolist() == [4, 3, 2]


class TestComparison:
    def compared(self, *chances: float, sequences: int = 24, rows: int = 100) -> Comparison:
        tallies = [
            tally([drafts(chance, rows, 100 * n + seed) for seed in range(sequences)])
            for n, chance in enumerate(chances)
        ]
        return Comparison(tallies, sequences * rows)

    def test_intervals_hold_the_estimate(self) -> None:
        scores = self.compared(0.7).scores(0)
        for interval in (scores.acceptance_length, *scores.teacher_forced, *scores.self_fed):
            assert interval.low <= interval.value <= interval.high
        assert scores.first_step.value == pytest.approx(0.7, abs=0.03)
        assert scores.self_fed[2].value == pytest.approx(0.343, abs=0.05)

    def test_intervals_cover_what_is_true_about_as_often_as_they_say(self) -> None:
        chance = 0.6
        true = 1 + chance + chance**2 + chance**3
        covered = 0
        for seed in range(60):
            one = tally([drafts(chance, 200, 1000 * seed + n) for n in range(16)])
            interval = Comparison([one], 3200).scores(0).acceptance_length
            # The token of the prefill makes a generation of 200 tokens a hundredth longer.
            covered += interval.low <= true * 1.005 <= interval.high
        assert covered >= 51

    def test_a_clear_difference_is_settled(self) -> None:
        assert self.compared(0.8, 0.6).difference(0, 1).settled

    def test_equal_candidates_are_not(self) -> None:
        difference = self.compared(0.6, 0.6).difference(0, 1)
        assert not difference.settled

    def test_the_sample_that_is_asked_for_settles_it(self) -> None:
        small = self.compared(0.7, 0.6, sequences=12, rows=30)
        found = small.difference(0, 1)
        assert not found.settled and found.rows_needed is not None
        assert found.rows_needed > small.rows
        # The difference that was seen is itself uncertain: twice as many.
        sequences = 2 * -(-found.rows_needed // 30)
        assert self.compared(0.7, 0.6, sequences=sequences, rows=30).difference(0, 1).settled

    def test_no_sample_settles_what_is_equal(self) -> None:
        one = tally([drafts(0.6, 100, seed) for seed in range(12)])
        assert Comparison([one, one], 1200).difference(0, 1).rows_needed is None

    def test_the_same_draws_give_the_same_numbers(self) -> None:
        assert self.compared(0.7, 0.6).difference(0, 1) == self.compared(0.7, 0.6).difference(0, 1)
