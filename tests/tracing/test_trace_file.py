"""Reading traces: those that a server wrote, and everything else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from sglang_kimi_eagle.tracing.trace_file import (
    FACTS_KEY,
    Piece,
    Trace,
    UnreadableTrace,
    read_trace,
)
from trace_files import HIDDEN, WIRED, facts, rows_of, tensors, write


def refused(folder: Path, rank: int = 0) -> str:
    """Return what is seen where a trace is refused."""
    with pytest.raises(UnreadableTrace) as caught:
        read_trace(folder, rank)
    finding = caught.value.finding
    assert finding.code == "KE801" and finding.mend
    return f"{finding.message} {finding.seen}"


def tokens_of(trace: Trace) -> list[list[int]]:
    return [list(sequence.tokens) for sequence in trace.sequences]


class TestATrace:
    def test_its_facts_tokens_and_states(self, tmp_path: Path) -> None:
        write(tmp_path, 0, tensors([10, 11, 12], states=[0, *WIRED]))
        trace = read_trace(tmp_path)
        assert tokens_of(trace) == [[10, 11, 12]]
        assert trace.facts.wired == WIRED and trace.facts.num_layers == 8
        assert trace.states == (0, 3, 5, 7) and trace.has_fed and trace.token_count == 3
        assert rows_of(trace.sequences[0], "h.3")[1] == np.full(HIDDEN, 15, np.float32).tobytes()

    def test_prompts_of_one_forward_are_told_apart(self, tmp_path: Path) -> None:
        both = {
            name: np.concatenate([first, second])
            for (name, first), second in zip(
                tensors([1, 2]).items(), tensors([7, 8, 9], start=4).values(), strict=True
            )
        }
        write(tmp_path, 0, both, Piece("a", 0, 2), Piece("b", 2, 3))
        trace = read_trace(tmp_path)
        assert tokens_of(trace) == [[1, 2], [7, 8, 9]]
        assert [sequence.start for sequence in trace.sequences] == [0, 4]

    def test_chunks_are_joined_in_the_order_of_the_forwards(self, tmp_path: Path) -> None:
        for order, (start, ids) in enumerate([(0, [1, 2, 3]), (3, [4, 5]), (5, [6])]):
            write(tmp_path, order, tensors(ids, start))
        (sequence,) = read_trace(tmp_path).sequences
        assert sequence.tokens == (1, 2, 3, 4, 5, 6) and len(sequence.pieces) == 3
        assert len(rows_of(sequence, "fed")) == 6

    def test_a_name_that_another_prompt_took_over_is_two_sequences(self, tmp_path: Path) -> None:
        write(tmp_path, 0, tensors([1, 2, 3]))
        write(tmp_path, 1, tensors([4, 5], start=0))
        assert tokens_of(read_trace(tmp_path)) == [[1, 2, 3], [4, 5]]

    def test_only_states_of_every_file_are_named(self, tmp_path: Path) -> None:
        write(tmp_path, 0, tensors([1], states=[0, 3, 8]))
        write(tmp_path, 1, tensors([2], states=[3, 8]), Piece("b", 0, 1))
        assert read_trace(tmp_path).states == (3, 8)

    def test_a_forward_that_was_not_drafted_from_lacks_what_is_fed(self, tmp_path: Path) -> None:
        content = tensors([1, 2])
        del content["fed"], content["fed_tokens"]
        write(tmp_path, 0, content)
        assert not read_trace(tmp_path).has_fed

    def test_each_rank_is_read_by_itself(self, tmp_path: Path) -> None:
        write(tmp_path, 0, tensors([1, 2]))
        write(tmp_path, 0, tensors([1, 2]), rank=1)
        assert read_trace(tmp_path, 1).facts.rank == 1
        assert "no trace of rank 2" in refused(tmp_path, 2)
        assert "2 trace files, of ranks 0, 1" in refused(tmp_path, 2)

    def test_an_unfinished_file_is_passed_over(self, tmp_path: Path) -> None:
        write(tmp_path, 0, tensors([1, 2]))
        (tmp_path / "00001-rank0.partial").write_bytes(b"half")
        assert tokens_of(read_trace(tmp_path)) == [[1, 2]]


class TestRefused:
    def test_a_folder_that_is_not_there_or_is_empty(self, tmp_path: Path) -> None:
        assert "No such file" in refused(tmp_path / "none")
        assert "holds no trace files" in refused(tmp_path)

    def test_traces_of_different_launches(self, tmp_path: Path) -> None:
        write(tmp_path, 0, tensors([1, 2]))
        write(tmp_path, 1, tensors([1, 2]), drafter="another")
        assert "different launches" in refused(tmp_path)

    def test_traces_of_different_wirings(self, tmp_path: Path) -> None:
        write(tmp_path, 0, tensors([1, 2]))
        write(tmp_path, 1, tensors([1, 2]), wired=(2, 4, 6))
        assert "different launches" in refused(tmp_path)

    def test_a_file_of_another_schema(self, tmp_path: Path) -> None:
        write(tmp_path, 0, tensors([1]), schema=2)
        assert "schema 2" in refused(tmp_path)

    def test_a_safetensors_file_that_is_no_trace(self, tmp_path: Path) -> None:
        save_file({"w": np.zeros(3)}, tmp_path / "model.safetensors")
        assert "no trace" in refused(tmp_path)

    @pytest.mark.parametrize("kept", [0, 7, 8, 60, 700, -1])
    def test_a_truncated_file(self, tmp_path: Path, kept: int) -> None:
        path = write(tmp_path, 0, tensors([1, 2, 3]))
        path.write_bytes(path.read_bytes()[:kept])
        refused(tmp_path)

    def test_a_file_with_something_appended(self, tmp_path: Path) -> None:
        path = write(tmp_path, 0, tensors([1, 2, 3]))
        path.write_bytes(path.read_bytes() + b"more")
        assert "bytes of tensors" in refused(tmp_path)

    def test_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        target = write(tmp_path / "elsewhere", 0, tensors([1]))
        (tmp_path / "00000-rank0.safetensors").symlink_to(target)
        assert "not an ordinary file" in refused(tmp_path)

    def test_a_pipe_that_would_never_end(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "00000-rank0.safetensors")
        assert "not an ordinary file" in refused(tmp_path)

    def test_a_header_that_claims_to_be_huge(self, tmp_path: Path) -> None:
        path = tmp_path / "00000-rank0.safetensors"
        path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
        assert "a header of" in refused(tmp_path)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("tokens", np.zeros((2, 2), np.int64)),
            ("tokens", np.zeros(2, np.float32)),
            ("positions", np.zeros(3, np.int64)),
            ("h.3", np.zeros((2, HIDDEN + 1), np.float32)),
            ("h.3", np.zeros((1, HIDDEN), np.float32)),
            ("h.3", np.zeros((2, HIDDEN), np.int32)),
            ("fed", np.zeros((2, HIDDEN), np.float32)),
            ("fed_tokens", np.zeros(2, np.int32)),
            ("h.-1", np.zeros((2, HIDDEN), np.float32)),
            ("h." + "9" * 5000, np.zeros((2, HIDDEN), np.float32)),
            ("pickle", np.zeros(2)),
        ],
    )
    def test_tensors_that_are_not_those_of_a_trace(
        self, tmp_path: Path, name: str, value: Any
    ) -> None:
        write(tmp_path, 0, tensors([1, 2]) | {name: value}, Piece("a", 0, 1))
        refused(tmp_path)

    @pytest.mark.parametrize("missing", ["tokens", "positions"])
    def test_a_file_without_its_tokens(self, tmp_path: Path, missing: str) -> None:
        content = tensors([1, 2])
        del content[missing]
        save_file(
            content,
            tmp_path / "0.safetensors",
            {FACTS_KEY: msgspec.json.encode(facts()).decode()},
        )
        assert f"has no '{missing}'" in refused(tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            {"pieces": [{"sequence": "a", "row": 0, "rows": 3}]},
            {"pieces": [{"sequence": "a", "row": -1, "rows": 1}]},
            {"pieces": [{"sequence": "a", "row": 0, "rows": 0}]},
            {"pieces": [{"sequence": "a", "row": 0, "rows": 1 << 80}]},
            {"pieces": "a"},
            {"wired": ["3"]},
            {"wired": [3] * 9},
            {"num_layers": -1},
            {"hidden_size": 1 << 70},
            {"order": None},
            {"rank": "0"},
            {"target": 7},
        ],
    )
    def test_hostile_facts(self, tmp_path: Path, change: dict[str, Any]) -> None:
        hostile = msgspec.to_builtins(facts()) | change
        save_file(tensors([1, 2]), tmp_path / "0.safetensors", {FACTS_KEY: json.dumps(hostile)})
        refused(tmp_path)

    @pytest.mark.parametrize("text", ["", "[", "{}", "[" * 5000 + "]" * 5000, "null", "\ud800"])
    def test_facts_that_are_no_facts(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "0.safetensors"
        header = json.dumps({"__metadata__": {FACTS_KEY: text}}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        refused(tmp_path)

    @settings(max_examples=200, deadline=None)
    @given(data=st.data())
    def test_no_flipped_byte_is_a_traceback(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        folder = tmp_path_factory.mktemp("flipped")
        path = write(folder, 0, tensors([1, 2, 3]))
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(bytes(raw))
        try:
            trace = read_trace(folder)
        except UnreadableTrace as problem:
            assert problem.finding.render()
        else:
            assert trace.token_count <= 3
