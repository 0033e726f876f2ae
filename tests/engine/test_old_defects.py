"""The two defects of old releases that the three methods alone do not mend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine_tools import RECORDS, Drafters, Engines, records_of, tokens
from tiny_models.paths import LLAMA

pytestmark = pytest.mark.engine


class TestGraphsAreCapturedWithTheResolvedStates:
    """Defect A, 0.5.9 - 0.5.10.post1: SGLang's own graph runner, up to the capture itself."""

    def captured(self, engines: Engines, draft: Path, note: Path, *, plugin: bool) -> list[int]:
        with engines.server(
            "0.5.10",
            draft,
            plugin=plugin,
            probes="graph_capture",
            args=("--cuda-graph-bs", "1"),
            environ={"CPU_ENGINE_GRAPH_NOTE": str(note)},
        ):
            pass
        states: list[int] = json.loads(note.read_text())
        return states

    def test_stock_captures_graphs_with_the_default_states(
        self, engines: Engines, drafters: Drafters, tmp_path: Path
    ) -> None:
        draft = drafters.shipped(LLAMA)
        assert self.captured(engines, draft, tmp_path / "note", plugin=False) == [2, 4, 5]

    def test_with_the_plugin_they_are_the_drafters(
        self, engines: Engines, drafters: Drafters, tmp_path: Path
    ) -> None:
        draft = drafters.shipped(LLAMA)
        assert self.captured(engines, draft, tmp_path / "note", plugin=True) == [3, 5, 7]


@pytest.mark.parametrize("release", ["0.5.9", "0.5.12.post1", "0.5.13.post1"])
class TestCapturedStatesAreWholeSums:
    """Defect B, 0.5.9 - 0.5.13.post1: two real ranks, the fused all-reduce emulated."""

    def captured(
        self,
        engines: Engines,
        draft: Path,
        prompt: list[int],
        release: str,
        *,
        plugin: bool,
        ranks: int = 2,
    ) -> list[list[bytes]]:
        """Return the tensor that each rank captured at the prefill of ``prompt``."""
        folder = engines.records_folder()
        with engines.server(
            release,
            draft,
            plugin=plugin,
            probes="fused_all_reduce" if ranks > 1 else "",
            tp_size=ranks,
            environ={RECORDS: str(folder)},
        ) as server:
            completions = server.generate([prompt], 8)
        assert tokens(completions) == engines.plain_tokens(release, [prompt], 8)
        found = [
            record.captured
            for record in records_of(folder)
            if record.kind == "target" and record.input_ids == prompt and record.captured
        ]
        assert len(found) == ranks
        return found

    def test_both_ranks_capture_what_one_rank_does(
        self, engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str
    ) -> None:
        draft = drafters.pinned(LLAMA)
        first, second = self.captured(engines, draft, prompts[0], release, plugin=True)
        (alone,) = self.captured(engines, draft, prompts[0], release, plugin=True, ranks=1)
        assert first == second
        assert largest_difference(first, alone) < 1e-3

    def test_stock_ranks_capture_partial_sums(
        self, engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str
    ) -> None:
        if release == "0.5.9":  # stock cannot serve the drafter at all
            return
        draft = drafters.shipped(LLAMA)
        first, second = self.captured(engines, draft, prompts[0], release, plugin=False)
        assert largest_difference(first, second) > 1e-2


def largest_difference(one: list[bytes], other: list[bytes]) -> float:
    """Return the largest absolute difference of two tensors of float32 rows."""
    pairs = (
        zip(memoryview(a).cast("f"), memoryview(b).cast("f"), strict=True)
        for a, b in zip(one, other, strict=True)
    )
    return max(abs(a - b) for row in pairs for a, b in row)
