"""Which rows of a dump are which rows of a trace; the tokens decide."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sglang_kimi_eagle.dumps.matching import (
    SURE_RUN,
    How,
    Match,
    TracedTokens,
    agreement,
    closest,
    cut,
)
from sglang_kimi_eagle.dumps.samples import Sample
from sglang_kimi_eagle.tracing.trace_file import Piece, Sequence, Trace
from trace_files import facts

Tokens = tuple[int, ...]
texts = st.lists(st.integers(0, 5), min_size=1, max_size=60).map(tuple)


def sample(tokens: Tokens, rows: int | None = None) -> Sample:
    return Sample("a sample", "a test", tokens, (), len(tokens) if rows is None else rows)


def traced(tokens: Tokens, start: int = 0, name: str = "a") -> Sequence:
    return Sequence(tokens, start, ((Path(name), Piece(name, 0, len(tokens))),))


def match(tokens: Tokens, *sequences: Sequence, rows: int | None = None) -> Match | None:
    return TracedTokens(sequences).match(sample(tokens, rows))


@given(texts, st.lists(texts, min_size=1, max_size=4))
def test_paired_rows_have_the_same_tokens(tokens: Tokens, traces: list[Tokens]) -> None:
    found = match(tokens, *(traced(trace, name=str(i)) for i, trace in enumerate(traces)))
    if found is None:
        assert all(trace[0] != tokens[0] for trace in traces)
        return
    for row, there in found.rows:
        assert tokens[row] == found.sequence.tokens[there]
    assert all(before[1] < after[1] for before, after in pairwise(found.rows))


@given(texts, st.integers(0, 60), texts)
def test_a_shared_beginning_is_paired_whole(text: Tokens, length: int, other: Tokens) -> None:
    tokens = text[: max(length, 1)]
    found = match(tokens, traced(other, name="other"), traced(text))
    assert found is not None
    assert len(found.rows) == len(tokens)


@given(texts, st.data())
def test_rows_of_a_cut_sequence_are_its_rows(tokens: Tokens, data: st.DataObject) -> None:
    pieces, row = [], 0
    while row < len(tokens):
        count = data.draw(st.integers(1, len(tokens) - row))
        pieces.append((Path(str(row)), Piece("a", 7, count)))
        row += count
    first = data.draw(st.integers(0, len(tokens) - 1))
    last = data.draw(st.integers(first + 1, len(tokens)))
    part = cut(Sequence(tokens, 3, tuple(pieces)), first, last)
    assert part.tokens == tokens[first:last] and part.start == 3 + first
    rows = [
        int(str(path)) + piece.row - 7 + offset
        for path, piece in part.pieces
        for offset in range(piece.rows)
    ]
    assert rows == list(range(first, last))


def test_a_run_in_the_middle_counts_only_when_it_is_long() -> None:
    text = tuple(range(100))
    found = match(text[30:60], traced(text))
    assert found is not None and found.how is How.RUN
    assert found.rows[0] == (0, 30) and len(found.rows) == 30
    assert match(text[30 : 30 + SURE_RUN - 1], traced((0, 0, *text))) is not None
    assert match((*text[30:40], 500), traced(text)) is None


def test_shuffled_rows_are_paired_where_a_token_occurs_once() -> None:
    text = (*range(40), 7, 7)
    found = match(tuple(reversed(text)), traced(text))
    assert found is not None and found.how is How.UNIQUE
    assert {token for token in range(40) if token != 7} == {text[row] for _, row in found.rows}


def test_shuffled_rows_of_two_possible_texts_are_not_paired() -> None:
    text = tuple(range(40))
    assert match(tuple(reversed(text)), traced(text), traced((*text, 1), name="b")) is None


def test_a_cached_prefix_has_to_be_followed_by_a_long_run() -> None:
    text = tuple(range(60))
    assert agreement(text, traced(text[20:], 20)) == 40
    assert agreement(text, traced(text[50:], 50)) == 0
    found = match(text, traced(text[20:], 20), rows=30)
    assert found is not None and found.rows == tuple((20 + row, row) for row in range(10))


def test_what_comes_nearest_is_explained() -> None:
    text = tuple(range(60))
    trace = Trace(Path("a"), facts(), (traced(text),), (3,))
    near = closest([sample((999, *text)), sample((0, 1, 500))], trace)
    assert near is not None and near.lag == 1
    near = closest([sample(text[2:])], trace)
    assert near is not None and near.lag == -2
    near = closest([sample((0, 1, 500))], trace)
    assert near is not None and near.lag is None and near.agreed == 2
