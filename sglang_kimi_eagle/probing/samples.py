"""The sequences of a trace that are scored, and where in them."""

from __future__ import annotations

import random
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass

from sglang_kimi_eagle.probing.findings import NOTHING_TO_SCORE, ProbeRefused
from sglang_kimi_eagle.probing.prompts import FILE, Asked
from sglang_kimi_eagle.tracing.trace_file import Sequence, Trace


@dataclass(frozen=True)
class Sample:
    """A traced sequence, and how many of its tokens are prompt."""

    sequence: Sequence
    prompt: int
    """The first token is always prompt: nothing can draft it."""
    verifies: int | None = None
    """Verify steps that the server took for the rest; None where it is not known."""

    @property
    def first(self) -> int:
        """The row whose chain drafts first: it ends in the last token of the prompt's states.

        The token after the prompt comes from the prefill; chains begin behind it.
        """
        return self.prompt - 1

    @property
    def rows(self) -> int:
        """How many chains are compared with the tokens that follow."""
        return len(self.sequence) - 2 - self.first


@dataclass(frozen=True)
class Samples:
    """What is scored."""

    chosen: tuple[Sample, ...]
    generated: bool
    """The scored tokens are the target's own greedy choices."""
    left_out: int
    """Traced sequences that are not scored."""

    @property
    def rows(self) -> int:
        """Chains over all samples."""
        return sum(sample.rows for sample in self.chosen)

    @property
    def measured(self) -> float | None:
        """The acceptance length that the traced server had itself on the same tokens."""
        if any(sample.verifies is None for sample in self.chosen):
            return None
        tokens = sum(len(sample.sequence) - sample.prompt for sample in self.chosen)
        return tokens / sum(sample.verifies or 0 for sample in self.chosen)

    @property
    def tokens(self) -> set[int]:
        """The distinct tokens of the samples."""
        return {token for sample in self.chosen for token in sample.sequence.tokens}


def choose(
    trace: Trace,
    asked: Sequence_[Asked] | None,
    *,
    limit: int | None = None,
    seed: int = 0,
    vocabulary: int | None = None,
) -> Samples:
    """Choose what to score.

    With ``asked`` those sequences are, from the end of their prompts on; without it every whole
    sequence is, from its first token on.

    Args:
        trace: where the states are.
        asked: of `prompts.read_prompts`.
        limit: take sequences in random order until they have so many rows.
        seed: of that order.
        vocabulary: sequences with tokens beyond it, such as those of images, are left out.

    Raises:
        ProbeRefused: there is nothing to score.
    """
    # A sequence that starts behind a cached prefix lacks the states that its chains attend to.
    whole = {
        sequence.tokens: sequence
        for sequence in reversed(trace.sequences)
        if not sequence.start and _within(sequence.tokens, vocabulary)
    }
    if asked is None:
        found = [Sample(sequence, 1) for sequence in reversed(whole.values())]
    else:
        found = [
            Sample(whole[item.tokens], item.prompt, item.verifies)
            for item in asked
            if item.tokens in whole
        ]
    usable = [sample for sample in found if sample.rows > 0]
    if not usable:
        raise ProbeRefused(
            NOTHING_TO_SCORE.found(
                "No traced sequence can be scored.",
                where=str(trace.folder),
                seen=f"{len(trace.sequences)} sequences, {len(whole)} of them of text, from their "
                "first token on"
                + ("" if asked is None else f"; {FILE} names {len(asked)}, {len(found)} are there"),
                leads_to="There is nothing that the drafter could be compared with.",
                mend="Record prompts of three tokens or more, the prefix cache flushed before; "
                "`sglang-kimi-eagle probe DRAFTER --launch` does all of it.",
            )
        )
    left_out = (len(trace.sequences) if asked is None else len(asked)) - len(usable)
    if limit is not None:
        random.Random(seed).shuffle(usable)
        taken, rows = [], 0
        for sample in usable:
            if rows >= limit:
                break
            taken.append(sample)
            rows += sample.rows
        usable = taken
    return Samples(tuple(usable), asked is not None, max(left_out, 0))


def _within(tokens: Sequence_[int], vocabulary: int | None) -> bool:
    return min(tokens) >= 0 and (vocabulary is None or max(tokens) < vocabulary)
