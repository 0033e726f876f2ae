"""``sglang-kimi-eagle identify``."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sglang_kimi_eagle.cli import app


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["identify", *map(str, arguments)])
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_without_torch_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_kimi_eagle.measuring.find_spec", lambda _: None)
    status, _, said = run(tmp_path, "--trace", tmp_path)
    assert status == 3 and "KE810" in said and "sglang-kimi-eagle[measure]" in said


def test_a_torch_that_cannot_be_imported_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_kimi_eagle.measuring.find_spec", lambda _: object())
    monkeypatch.setitem(sys.modules, "torch", None)
    status, _, said = run(tmp_path, "--trace", tmp_path)
    assert status == 3 and "KE810" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["dump"],
        ["--trace", "t"],
        ["d", "--trace", "t", "e"],
        ["d", "--trace", "t", "--rank", "-1"],
        ["d", "--trace", "t", "--rank", "9" * 30],
    ],
)
def test_a_wrong_command_line_is_usage(arguments: list[str]) -> None:
    assert run(*arguments)[0] == 2


def refuse(monkeypatch: pytest.MonkeyPatch, closed: Path) -> None:
    """Have the system refuse a path of mode 000 to everyone, as it does to all but root."""
    system = {"open": os.open, "scandir": os.scandir, "listdir": os.listdir}
    allowed = os.access

    def refused(name: str) -> Any:
        def call(path: Any, *more: Any, **options: Any) -> Any:
            if not isinstance(path, int) and Path(path) == closed:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return system[name](path, *more, **options)

        return call

    for name in system:
        monkeypatch.setattr(os, name, refused(name))
    monkeypatch.setattr(
        os, "access", lambda path, mode, **more: path != closed and allowed(path, mode, **more)
    )


measure = [pytest.mark.measure, pytest.mark.usefixtures("torch_layer")]


class TestWithTorch:
    pytestmark = measure

    @pytest.fixture
    def trace(self, tmp_path: Path) -> Path:
        from dump_files import texts, write_trace

        return write_trace(tmp_path / "trace", texts())

    @pytest.fixture
    def dump(self, tmp_path: Path) -> Path:
        from dump_files import dumped, specforge, texts

        specforge(tmp_path / "data_0.ckpt", dumped(texts()[0]))
        return tmp_path / "data_0.ckpt"

    def test_states_and_what_to_do_with_them_are_printed(self, dump: Path, trace: Path) -> None:
        status, output, said = run(dump, "--trace", trace)
        assert status == 0, said
        assert "h[3], h[5], h[7]" in output and "final norm" in output
        assert "layer_output ids: [2, 4, 6]" in output
        assert "stock SGLang 0.5.13 - 0.5.23: ids [3, 5, 7]" in output
        assert "pin DRAFTER --states 3,5,7" in output
        assert "KE829 note" in said

    def test_json_has_the_numbers(self, dump: Path, trace: Path) -> None:
        status, output, _ = run(dump, "--trace", trace, "--json")
        content = json.loads(output)
        assert status == content["status"] == 0
        assert content["verdict"]["states"] == [3, 5, 7]
        assert content["verdict"]["ids"] == {"layer_output": [2, 4, 6], "layer_input": [3, 5, 7]}
        assert [tensor["is"] for tensor in content["tensors"]][1:] == ["h[3]", "h[5]", "h[7]"]
        for tensor in content["tensors"]:
            assert tensor["rows"] == 64 and tensor["margin"] > 2 * tensor["noise"]
            assert tensor["nearest"]["error"] < 0.01 < tensor["runner_up"]["error"]
            assert tensor["nearest"]["cosine"] > 0.999

    def test_what_is_not_identified_is_status_1(self, trace: Path, tmp_path: Path) -> None:
        from dump_files import dumped, specforge, states_of, texts

        sample = dumped(texts()[0])
        aux = (sample.aux[0], states_of(texts()[0], 1)[5].bfloat16(), sample.aux[2])
        specforge(tmp_path / "dump", type(sample)(sample.tokens, aux, sample.last))
        status, output, said = run(tmp_path / "dump", "--trace", trace)
        assert status == 1 and "KE822 warning" in said
        assert "cannot tell" in output and "ids" not in output

    def test_another_model_is_status_3(self, trace: Path, tmp_path: Path) -> None:
        from dump_files import dumped, specforge, texts

        specforge(tmp_path / "dump", dumped(texts()[0], seed=1))
        status, output, said = run(tmp_path / "dump", "--trace", trace)
        assert status == 3 and "KE824 error" in said
        assert "pin DRAFTER" not in output

    def test_a_refusal_is_json_too(self, trace: Path, tmp_path: Path) -> None:
        status, output, said = run(tmp_path / "missing", "--trace", trace, "--json")
        assert status == 3 and not said
        assert json.loads(output)["findings"][0]["code"] == "KE811"

    @pytest.mark.parametrize("which", ["dump", "trace"])
    def test_what_may_not_be_read_is_status_3(
        self, which: str, dump: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed = dump if which == "dump" else trace
        closed.chmod(0)
        refuse(monkeypatch, closed)
        status, _, said = run(dump, "--trace", trace)
        closed.chmod(0o700)
        assert status == 3 and ("KE811" if which == "dump" else "KE801") in said
        assert str(closed) in said.replace("\n", "") and "Permission denied" in said

    def test_a_file_that_fails_to_be_read_is_status_3(self, trace: Path) -> None:
        status, _, said = run("/proc/self/mem", "--trace", trace)
        assert status == 3 and "KE811" in said and "/proc/self/mem" in said

    def test_a_trace_that_is_not_finite_is_named(self, dump: Path, tmp_path: Path) -> None:
        from dump_files import states_of, texts, write_trace

        def broken(tokens: tuple[int, ...]) -> list[object]:
            return [state * float("nan") for state in states_of(tokens)]

        trace = write_trace(tmp_path / "nan", texts(), values=broken)
        status, output, said = run(dump, "--trace", trace)
        assert status == 3 and not output and "KE807 error" in said and "KE820" not in said
        assert str(trace) in said.replace("\n", "")

    def test_a_folder_that_is_no_trace_is_refused(self, dump: Path, tmp_path: Path) -> None:
        status, _, said = run(dump, "--trace", tmp_path / "missing")
        assert status == 3 and "KE801" in said

    def test_another_rank_has_no_trace(self, dump: Path, trace: Path) -> None:
        status, _, said = run(dump, "--trace", trace, "--rank", 1)
        assert status == 3 and "KE801" in said

    def test_strictness_and_silence_count(
        self, dump: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SGLANG_KIMI_EAGLE_IGNORE", "KE829")
        assert "KE829" not in run(dump, "--trace", trace)[2]
        monkeypatch.setenv("SGLANG_KIMI_EAGLE_STRICT", "maybe")
        assert run(dump, "--trace", trace)[0] == 3

    def test_names_in_a_dump_cannot_draw(self, trace: Path, tmp_path: Path) -> None:
        import torch

        from dump_files import dumped, texts

        sample = dumped(texts()[0])
        content = {"input_ids": torch.tensor(sample.tokens), "\x1b[2J[red]a": sample.aux[0]}
        torch.save(content, tmp_path / "dump")
        status, output, _ = run(tmp_path / "dump", "--trace", trace)
        assert status == 0 and "\x1b" not in output and "[red]" in output
