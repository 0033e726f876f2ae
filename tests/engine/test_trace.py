"""SGLANG_KIMI_EAGLE_TRACE in real engines: what is written, and what it changes: nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cpu_engine.records import Record
from cpu_engine.server import Completion, ServerFailed
from engine_tools import RECORDS, Drafters, Engines, records_of, served, tokens
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.tracing.request import TraceRequest
from sglang_kimi_eagle.tracing.trace_file import Trace, read_trace
from tiny_models.paths import LLAMA, MLA, DrafterRecipe
from trace_files import rows_of

TRACE = "SGLANG_KIMI_EAGLE_TRACE"
NOTE = "CPU_ENGINE_TRACE_NOTE"
LAYERS = 8
NEW_TOKENS = 16
IN_SHORT = ("0.5.9", "0.5.23")
"""What `make test` runs; `make test-matrix` runs every release."""
# Every prompt is run whole, in pieces of 32 tokens.
CHUNKED = ("--chunked-prefill-size", "32", "--disable-radix-cache")


def in_full(release: str) -> Any:
    """Return a release that only `make test-matrix` runs."""
    return pytest.param(release, marks=pytest.mark.matrix)


def answers(
    engines: Engines,
    release: str,
    draft: Path,
    prompts: list[list[int]],
    records: Path,
    request: TraceRequest | None,
) -> list[Completion]:
    """Complete the prompts one after the other, so that every forward is the same each time."""
    environ = {RECORDS: str(records)} | ({TRACE: request.encode()} if request else {})
    with engines.server(release, draft, args=CHUNKED, environ=environ) as server:
        return [server.generate([prompt], NEW_TOKENS)[0] for prompt in prompts]


def drafted(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    """Everything that reached the draft model, but for health checks."""
    return [
        (record.mode, record.input_ids, record.positions, record.captured)
        for record in records
        if record.kind == "draft" and (record.mode != "EXTEND" or len(record.input_ids) > 1)
    ]


def prefilled(records: Sequence[Record], prompt: list[int], k: int, rank: int = 0) -> list[bytes]:
    """Return h[k] of a prompt as the recorder that is not the plugin's saw it."""
    rows: dict[int, bytes] = {}
    for record in records:
        ids = [prompt[at] if at < len(prompt) else None for at in record.positions]
        if (record.kind, record.mode, record.rank) == ("target", "EXTEND", rank) and (
            record.input_ids == ids
        ):
            rows.update(zip(record.positions, record.states[k], strict=True))
    return [rows[at] for at in range(len(prompt))]


def check_trace(
    trace: Trace, records: Sequence[Record], prompts: list[list[int]], done: list[Completion]
) -> None:
    """Every state is the one that was computed, and what is fed is the wired ones."""
    assert [list(sequence.tokens) for sequence in trace.sequences] == prompts
    assert trace.states == tuple(range(LAYERS + 1)) and trace.has_fed
    for prompt, completion, sequence in zip(prompts, done, trace.sequences, strict=True):
        assert len(sequence.pieces) == -(-len(prompt) // 32)
        states = {k: rows_of(sequence, f"h.{k}") for k in trace.states}
        for k, rows in states.items():
            assert rows == prefilled(records, prompt, k), f"h[{k}]"
        wired = zip(*(states[k] for k in trace.facts.wired), strict=True)
        assert rows_of(sequence, "fed") == [b"".join(row) for row in wired]
        fed_tokens = [
            int.from_bytes(row, "little", signed=True) for row in rows_of(sequence, "fed_tokens")
        ]
        # The last token of a chunk but the last is followed by what the release likes.
        inside = [at for at in range(len(prompt) - 1) if (at + 1) % 32]
        assert [fed_tokens[at] for at in inside] == [prompt[at + 1] for at in inside]
        assert fed_tokens[-1] == completion.output_ids[0]


def check_release(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    recipe: DrafterRecipe,
    folder: Path,
) -> None:
    draft, some = drafters.pinned(recipe), prompts[2:5]
    without, with_trace = engines.records_folder(), engines.records_folder()
    request = TraceRequest(folder / "a trace?", states=None)
    expected = answers(engines, release, draft, some, without, None)
    done = answers(engines, release, draft, some, with_trace, request)
    assert tokens(done) == tokens(expected)
    before, after = records_of(without), records_of(with_trace)
    assert drafted(before) and drafted(after) == drafted(before)
    trace = read_trace(request.folder)
    assert trace.facts.wired == recipe.trained_on and trace.facts.sglang == release
    assert trace.facts.drafter == str(draft) and trace.facts.partial == ()
    assert "(declaration: ids [2, 4, 6]" in trace.facts.reason
    check_trace(trace, after, some, done)


@pytest.mark.engine
@pytest.mark.parametrize(("release", "recipe"), served(IN_SHORT))
def test_all_states_are_traced_and_nothing_else_changes(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    recipe: DrafterRecipe,
    tmp_path: Path,
) -> None:
    check_release(engines, drafters, prompts, release, recipe, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize(("release", "recipe"), served([r for r in RELEASES if r not in IN_SHORT]))
def test_so_it_is_on_every_release(
    engines: Engines,
    drafters: Drafters,
    prompts: list[list[int]],
    release: str,
    recipe: DrafterRecipe,
    tmp_path: Path,
) -> None:
    check_release(engines, drafters, prompts, release, recipe, tmp_path)


@pytest.mark.engine
@pytest.mark.parametrize("release", ["0.5.9", in_full("0.5.16"), "0.5.23"])
class TestHowLong:
    def test_nothing_is_installed_or_imported_when_it_is_off(
        self,
        engines: Engines,
        drafters: Drafters,
        prompts: list[list[int]],
        release: str,
        tmp_path: Path,
    ) -> None:
        note = tmp_path / "note.json"
        with engines.server(
            release, drafters.pinned(LLAMA), probes="trace_wrappers", environ={NOTE: str(note)}
        ) as server:
            server.generate(prompts[:1], 4)
        assert json.loads(note.read_text()) == {"loaded": [], "wrapped": []}

    def test_it_ends_after_the_tokens_asked_for_and_leaves_nothing_behind(
        self,
        engines: Engines,
        drafters: Drafters,
        prompts: list[list[int]],
        release: str,
        tmp_path: Path,
    ) -> None:
        note, folder = tmp_path / "note.json", tmp_path / "trace"
        with engines.server(
            release,
            drafters.pinned(LLAMA),
            args=("--disable-radix-cache",),
            probes="trace_wrappers",
            environ={
                NOTE: str(note),
                TRACE: TraceRequest(folder, states=(0, LAYERS), tokens=100).encode(),
            },
        ) as server:
            assert server.log_text.count("tracing h[0], h[3], h[5], h[7], h[8] of the first") == 1
            server.generate(prompts[:1], 4)
            during = json.loads(note.read_text())
            assert "the trace of rank 0 is complete" not in server.log_text
            for prompt in prompts[1:4]:
                server.generate([prompt], 4)
            assert server.log_text.count("complete: 100 tokens in 2 files") == 1
        assert sorted(during["wrapped"]) == ["DeepseekV2Model", "LlamaForCausalLMEagle3"]
        assert json.loads(note.read_text())["wrapped"] == []
        trace = read_trace(folder)
        cut = prompts[1][: 100 - len(prompts[0])]
        assert [list(sequence.tokens) for sequence in trace.sequences] == [prompts[0], cut]
        assert trace.states == (0, 3, 5, 7, 8) and trace.has_fed


@pytest.mark.engine
@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_the_chunks_of_many_prompts_at_once_are_joined_rightly(
    engines: Engines, drafters: Drafters, prompts: list[list[int]], release: str, tmp_path: Path
) -> None:
    environ = {TRACE: str(tmp_path)}
    with engines.server(
        release,
        drafters.pinned(MLA if release != "0.5.9" else LLAMA),
        args=CHUNKED,
        environ=environ,
    ) as server:
        for _ in range(2):
            server.generate(prompts, 4)
    found = sorted(list(sequence.tokens) for sequence in read_trace(tmp_path).sequences)
    assert found == sorted(prompts * 2)


@pytest.mark.engine
class TestTensorParallel:
    def traced(
        self,
        engines: Engines,
        draft: Path,
        prompt: list[int],
        release: str,
        request: TraceRequest,
        *,
        probes: str = "",
    ) -> list[Record]:
        records = engines.records_folder()
        with engines.server(
            release,
            draft,
            probes=probes,
            tp_size=2,
            environ={RECORDS: str(records), TRACE: request.encode()},
        ) as server:
            completions = server.generate([prompt], 8)
        assert tokens(completions) == engines.plain_tokens(release, [prompt], 8)
        return records_of(records)

    @pytest.mark.parametrize("release", ["0.5.9", in_full("0.5.13.post1"), "0.5.23"])
    def test_every_rank_has_the_same_states(
        self,
        engines: Engines,
        drafters: Drafters,
        prompts: list[list[int]],
        release: str,
        tmp_path: Path,
    ) -> None:
        request = TraceRequest(tmp_path, states=None, every_rank=True)
        records = self.traced(engines, drafters.pinned(LLAMA), prompts[0], release, request)
        for rank in (0, 1):
            trace = read_trace(tmp_path, rank)
            (sequence,) = trace.sequences
            assert (trace.facts.rank, trace.facts.tp_size) == (rank, 2)
            for k in range(LAYERS + 1):
                rows = rows_of(sequence, f"h.{k}")
                assert rows == prefilled(records, prompts[0], k, rank)
                assert rows == rows_of(read_trace(tmp_path, 0).sequences[0], f"h.{k}")

    @pytest.mark.parametrize("release", ["0.5.9", in_full("0.5.12.post1"), in_full("0.5.13.post1")])
    def test_rank_0_alone_has_whole_sums_where_the_all_reduce_is_fused(
        self,
        engines: Engines,
        drafters: Drafters,
        prompts: list[list[int]],
        release: str,
        tmp_path: Path,
    ) -> None:
        request = TraceRequest(tmp_path, states=None)
        draft = drafters.pinned(LLAMA)
        records = self.traced(
            engines, draft, prompts[0], release, request, probes="fused_all_reduce"
        )
        (sequence,) = read_trace(tmp_path).sequences
        for k in range(LAYERS + 1):
            assert rows_of(sequence, f"h.{k}") == prefilled(records, prompts[0], k), f"h[{k}]"
        assert list(tmp_path.glob("*rank1*")) == []

    @pytest.mark.parametrize("release", ["0.5.9", in_full("0.5.12.post1"), in_full("0.5.13.post1")])
    def test_every_rank_shows_the_partial_sums_that_nobody_is_fed(
        self,
        engines: Engines,
        drafters: Drafters,
        prompts: list[list[int]],
        release: str,
        tmp_path: Path,
    ) -> None:
        request = TraceRequest(tmp_path, states=None, every_rank=True)
        draft = drafters.pinned(LLAMA)
        self.traced(engines, draft, prompts[0], release, request, probes="fused_all_reduce")
        first, second = read_trace(tmp_path, 0), read_trace(tmp_path, 1)
        assert first.facts.partial == (1, 2, 4, 6)
        differing = [
            k
            for k in first.states
            if rows_of(first.sequences[0], f"h.{k}") != rows_of(second.sequences[0], f"h.{k}")
        ]
        assert set(differing) <= {1, 2, 4, 6} and differing
        assert rows_of(first.sequences[0], "fed") == rows_of(second.sequences[0], "fed")


@pytest.mark.engine
class TestWhatGoesWrong:
    @pytest.mark.parametrize(
        ("release", "value", "args", "code"),
        [
            ("0.5.23", "trace?states=3;5", (), "KE010"),
            ("0.5.23", "/proc/trace", (), "KE802"),
            ("0.5.23", "trace?states=9", (), "KE803"),
            ("0.5.23", "trace", ("--cuda-graph-backend-prefill", "breakable"), "KE804"),
            ("0.5.9", "trace", ("--enable-piecewise-cuda-graph",), "KE804"),
        ],
    )
    def test_what_cannot_be_traced_is_refused(
        self,
        engines: Engines,
        drafters: Drafters,
        release: str,
        value: str,
        args: tuple[str, ...],
        code: str,
        tmp_path: Path,
    ) -> None:
        where = value if value[0] == "/" else f"{tmp_path}/{value}"
        with (
            pytest.raises(ServerFailed) as failure,
            engines.server(release, drafters.pinned(LLAMA), args=args, environ={TRACE: where}),
        ):
            pass
        assert failure.value.returncode == 3
        assert failure.value.log.count(f"{code} error") == 1
        assert "Load weight" not in failure.value.log

    def test_a_folder_that_goes_away_stops_the_trace_and_not_the_server(
        self, engines: Engines, drafters: Drafters, prompts: list[list[int]], tmp_path: Path
    ) -> None:
        folder = tmp_path / "trace"
        with engines.server(
            "0.5.23", drafters.pinned(LLAMA), environ={TRACE: f"{folder}?states=all"}
        ) as server:
            shutil.rmtree(folder)
            done = [server.generate([prompt], 8)[0] for prompt in prompts[:2]]
            assert server.log_text.count("KE806 warning: Tracing has stopped") == 1
        assert tokens(done) == engines.plain_tokens("0.5.23", prompts[:2], 8)

    def test_a_launch_without_a_drafter_says_once_that_nothing_is_traced(
        self, engines: Engines, tmp_path: Path
    ) -> None:
        environ = {TRACE: str(tmp_path / "trace")}
        with engines.server("0.5.23", environ=environ) as server:
            assert server.log_text.count("KE805 warning") == 1
        assert not (tmp_path / "trace").exists()

    @pytest.mark.parametrize(
        ("release", "name"),
        [
            ("0.5.12.post1", "disable_piecewise_cuda_graph"),
            ("0.5.23", "disable_prefill_cuda_graph"),
        ],
    )
    def test_prefill_graphs_are_switched_off(
        self, engines: Engines, drafters: Drafters, release: str, name: str, tmp_path: Path
    ) -> None:
        draft = drafters.pinned(LLAMA)
        with engines.server(release, draft, environ={TRACE: str(tmp_path)}) as server:
            assert server.get("/get_server_info")[name] is True
