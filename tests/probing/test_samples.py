from __future__ import annotations

from pathlib import Path

import pytest

from sglang_kimi_eagle.probing.findings import ProbeRefused
from sglang_kimi_eagle.probing.prompts import FILE, Asked, read_prompts, write_prompts
from sglang_kimi_eagle.probing.samples import choose
from sglang_kimi_eagle.tracing.trace_file import Trace, read_trace
from trace_files import tensors, write


def traced(folder: Path, *tokens: list[int], start: int = 0) -> Trace:
    for order, ids in enumerate(tokens):
        write(folder, order, tensors(ids, start=start))
    return read_trace(folder)


def test_scoring_begins_behind_the_prompt(tmp_path: Path) -> None:
    trace = traced(tmp_path, [5, 6, 7, 8, 9, 10])
    (sample,) = choose(trace, [Asked("chat", 3, (5, 6, 7, 8, 9, 10))]).chosen
    # The chain of row 2 has the states of 7 and the token 8; its first draft is for 9.
    assert (sample.first, sample.rows) == (2, 2)


def test_without_prompts_all_tokens_are_scored(tmp_path: Path) -> None:
    samples = choose(traced(tmp_path, [5, 6, 7, 8]), None)
    assert not samples.generated
    assert [(one.first, one.rows) for one in samples.chosen] == [(0, 2)]


def test_sequences_behind_a_cached_prefix_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(ProbeRefused) as refusal:
        choose(traced(tmp_path, [5, 6, 7, 8], start=4), None)
    assert [finding.code for finding in refusal.value.findings] == ["KE833"]


def test_what_was_not_asked_or_not_traced_is_left_out(tmp_path: Path) -> None:
    trace = traced(tmp_path, [1, 2, 3, 4, 5], [6, 7, 8, 9])
    asked = [Asked("chat", 2, (1, 2, 3, 4, 5)), Asked("chat", 2, (1, 2, 99, 98))]
    samples = choose(trace, asked)
    assert [one.sequence.tokens for one in samples.chosen] == [(1, 2, 3, 4, 5)]
    assert samples.left_out == 1


def test_tokens_of_images_are_left_out(tmp_path: Path) -> None:
    trace = traced(tmp_path, [1, 2, 3, 4], [5, 1 << 40, 6, 7], [8, -1, 9, 10])
    samples = choose(trace, None, vocabulary=1024)
    assert [one.sequence.tokens for one in samples.chosen] == [(1, 2, 3, 4)]


def test_a_limit_takes_whole_sequences_in_an_order_of_the_seed(tmp_path: Path) -> None:
    trace = traced(tmp_path, *[[n, n + 1, n + 2, n + 3] for n in range(20)])
    chosen = [choose(trace, None, limit=5, seed=seed).chosen for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert [len(taken) for taken in chosen] == [3, 3, 3]


def test_what_the_server_measured_is_of_the_chosen_ones(tmp_path: Path) -> None:
    trace = traced(tmp_path, [1, 2, 3, 4, 5, 6], [6, 7, 8, 9, 10])
    asked = [Asked("a", 2, (1, 2, 3, 4, 5, 6), 2), Asked("b", 3, (6, 7, 8, 9, 10), 1)]
    assert choose(trace, asked).measured == 2.0
    assert choose(trace, [asked[0], Asked("b", 3, (6, 7, 8, 9, 10))]).measured is None


def test_prompts_are_read_back(tmp_path: Path) -> None:
    assert read_prompts(tmp_path) is None
    asked = (Asked("chat", 2, (1, 2, 3), 1), Asked("code", 1, (1,)))
    write_prompts(tmp_path, asked)
    assert read_prompts(tmp_path) == asked


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"sequences": 3}',
        '{"sequences": [], "schema": 2}',
        '{"sequences": [{"kind": "a", "prompt": 3, "tokens": [1, 2]}]}',
        '{"sequences": [{"kind": "a", "prompt": 0, "tokens": [1, 2]}]}',
        '{"sequences": [{"kind": "a", "prompt": 1, "tokens": [1, 2], "verifies": 0}]}',
    ],
)
def test_other_files_of_that_name_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ProbeRefused) as refusal:
        read_prompts(tmp_path)
    assert [finding.code for finding in refusal.value.findings] == ["KE839"]
