"""Two ranks on CPU, without any emulated kernel; the releases with defects have their own tests."""

from __future__ import annotations

import pytest

from engine_tools import RECORDS, Drafters, Engines, records_of, states_fed, tokens
from tiny_models.paths import LLAMA

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("release", ["0.5.23"])
def test_both_ranks_feed_the_same_states(
    engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str
) -> None:
    folder = engines.records_folder()
    with engines.server(
        release, drafters.pinned(LLAMA), tp_size=2, environ={RECORDS: str(folder)}
    ) as server:
        completions = server.generate(prompts[:4], 16)
    assert tokens(completions) == engines.plain_tokens(release, prompts[:4], 16)
    records = records_of(folder)
    assert states_fed(records) == {LLAMA.trained_on}
    by_rank: dict[int, list[object]] = {0: [], 1: []}
    for record in records:
        if record.kind == "draft" and record.captured:
            by_rank[record.rank].append((record.input_ids, record.captured))
    assert by_rank[0] == by_rank[1] != []


@pytest.mark.parametrize("release", ["0.5.23"])
def test_with_dp_attention_each_rank_feeds_its_own_requests_their_states(
    engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str
) -> None:
    folder = engines.records_folder()
    with engines.server(
        release,
        drafters.pinned(LLAMA),
        tp_size=2,
        args=("--enable-dp-attention", "--dp-size", "2"),
        environ={RECORDS: str(folder)},
    ) as server:
        completions = server.generate(prompts[:4], 16)
    assert tokens(completions) == engines.plain_tokens(release, prompts[:4], 16)
    records = records_of(folder)
    assert {record.rank for record in records if record.kind == "draft"} == {0, 1}
    assert states_fed(records) == {LLAMA.trained_on}
