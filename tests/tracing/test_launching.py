"""A traced launch before anything is loaded."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.tracing.launching import check_request, prefill_eagerly
from sglang_kimi_eagle.tracing.request import TraceRequest
from wheels import unpacked


class TestTheRequest:
    def test_its_folder_is_made(self, tmp_path: Path) -> None:
        folder = tmp_path / "new" / "trace"
        assert list(check_request(TraceRequest(folder, (0, 61)), 61)) == []
        assert folder.is_dir() and list(folder.iterdir()) == []

    def test_a_folder_that_cannot_be_made_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        (finding,) = check_request(TraceRequest(tmp_path / "file" / "trace"), 61)
        assert finding.code == "KE802" and finding.seen == "Not a directory"

    def test_a_state_that_the_target_has_not_is_refused(self, tmp_path: Path) -> None:
        (finding,) = check_request(TraceRequest(tmp_path, (2, 62, 63)), 61)
        assert finding.code == "KE803"
        assert "h[62], h[63]" in finding.message and "h[61]" in finding.seen


class TestPrefill:
    @pytest.mark.parametrize("name", ["disable_prefill_cuda_graph", "disable_piecewise_cuda_graph"])
    def test_graphs_that_nobody_asked_for_are_switched_off(self, name: str) -> None:
        arguments = SimpleNamespace(**{name: False}, cuda_graph_backend_prefill=None)
        assert list(prefill_eagerly(arguments)) == []
        assert getattr(arguments, name) is True

    @pytest.mark.parametrize(
        ("arguments", "flag"),
        [
            ({"enable_piecewise_cuda_graph": True}, "--enable-piecewise-cuda-graph"),
            ({"enforce_piecewise_cuda_graph": True}, "--enforce-piecewise-cuda-graph"),
            ({"cuda_graph_backend_prefill": "breakable"}, "--cuda-graph-backend-prefill"),
            ({"cuda_graph_config": {"prefill": {"backend": "full"}}}, "--cuda-graph-config"),
        ],
    )
    def test_graphs_that_were_asked_for_refuse_the_launch(
        self, arguments: dict[str, Any], flag: str
    ) -> None:
        (finding,) = prefill_eagerly(SimpleNamespace(**arguments))
        assert finding.code == "KE804" and flag in finding.mend

    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"enable_piecewise_cuda_graph": False},
            {"disable_piecewise_cuda_graph": True},
            {"cuda_graph_backend_prefill": "disabled"},
            {"cuda_graph_config": {"prefill": {"max_bs": 8}}},
            {"cuda_graph_config": '{"prefill": 1}'},
        ],
    )
    def test_arguments_that_need_no_change_keep_what_they_are(
        self, arguments: dict[str, Any]
    ) -> None:
        given = SimpleNamespace(**arguments)
        assert list(prefill_eagerly(given)) == []
        assert vars(given) == arguments

    @pytest.mark.wheels
    @pytest.mark.parametrize("release", RELEASES)
    def test_every_release_has_a_switch_that_is_known(self, release: str) -> None:
        srt = unpacked(release) / "srt"
        # The fields of ServerArgs, which later releases keep in groups.
        sources = [srt / "server_args.py", srt / "arg_groups" / "fields" / "exec_.py"]
        off = {
            node.target.id
            for path in sources
            if path.exists()
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(node.value, ast.Constant)
            and node.value.value is False
        }
        assert off & {
            "disable_prefill_cuda_graph",
            "disable_piecewise_cuda_graph",
            "enable_piecewise_cuda_graph",
        }
