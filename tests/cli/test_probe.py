"""``sglang-kimi-eagle probe``."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sglang_kimi_eagle.cli import app
from tiny_models.paths import CHECKPOINTS, LLAMA, MLA, DrafterRecipe

LAUNCH = [
    *("--model-path", "kimi", "--speculative-algorithm", "EAGLE3"),
    *("--speculative-draft-model-path", "d"),
]


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in ("probe", *arguments)])
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return copied(LLAMA, tmp_path)


def copied(recipe: DrafterRecipe, folder: Path) -> Path:
    copy = folder / recipe.folder
    shutil.copytree(CHECKPOINTS / recipe.folder, copy)
    return copy


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--trace", "t", "--keep"],
        ["--trace", "t", "--python", "python3"],
        ["--trace", "t", "--states", "all"],
        ["--trace", "t", "--new-tokens", "96"],
        ["--trace", "t", "--timeout", "1800"],
        ["--trace", "t", "--seed", "3"],
        ["--trace", "t", "--device", "meta"],
        ["--trace", "t", "--device", "cpu:7"],
        ["--trace", "t", "--device", "cuda:"],
        ["--launch", "--device", "mps", "--", *LAUNCH],
        ["--trace", "t", "--", *LAUNCH],
        ["--trace", "t", "--steps", "0"],
        ["--launch"],
        ["--launch", "--", "--model-path", "kimi"],
        ["--launch", "--", *LAUNCH, "--port", "http"],
        ["--launch", "--states", "2,x", "--", *LAUNCH],
        ["--launch", "--", *LAUNCH, "--config", "none.yaml"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_said_so(drafter: Path, words: list[str]) -> None:
    status, output, errors = run(drafter, *words)
    assert status == 2 and not output and "Traceback" not in errors


def test_no_drafter_is_refused(tmp_path: Path) -> None:
    status, _, errors = run(tmp_path / "none", "--trace", tmp_path)
    assert status == 3 and "KE101" in errors


def test_without_torch_the_command_says_what_to_install(
    drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang_kimi_eagle.measuring.find_spec", lambda _name: None)
    status, _, errors = run(drafter, "--trace", tmp_path)
    assert status == 3 and "KE810" in errors


@pytest.mark.measure
@pytest.mark.usefixtures("torch_layer")
class TestTraced:
    @pytest.fixture
    def trace(self, tmp_path: Path) -> Path:
        from twin_traces import TwinTrace, conversations

        return TwinTrace(conversations()[4:12]).write(tmp_path / "trace")

    def test_the_report_is_read_by_people(self, drafter: Path, trace: Path) -> None:
        status, output, errors = run(drafter, "--trace", trace)
        assert status == 1
        assert "h[3], h[5], h[7]: expected acceptance length 3." in " ".join(output.split())
        assert "KE837" in errors and "pin DRAFTER --states 3,5,7" in errors

    def test_the_report_is_read_by_programs(self, drafter: Path, trace: Path) -> None:
        status, output, _ = run(drafter, "--trace", trace, "--json", "--search")
        report: dict[str, Any] = json.loads(output)
        assert status == report["status"] == 1
        assert report["schema"] == 1 and report["sglang"] == "0.5.23" and report["steps"] == 3
        assert report["running"] == [2, 4, 6]
        assert report["verdict"]["clear"] and report["verdict"]["states"] == [3, 5, 7]
        assert report["verdict"]["running_is_best"] is False
        best = report["candidates"][0]
        assert best["states"] == [3, 5, 7] and "ids as layer_output" in best["names"]
        assert best["reachable"] and len(best["self_fed"]) == len(best["teacher_forced"]) == 3
        assert best["first_step"] == best["teacher_forced"][0] == best["self_fed"][0]
        assert report["comparison"]["settled"] and report["search"]["exhaustive"]
        assert report["sample"]["generated"] and report["sample"]["rows"] == 8 * 63
        assert [finding["code"] for finding in report["findings"]] == ["KE837"]

    def test_more_steps_accept_more(self, drafter: Path, trace: Path) -> None:
        _, output, _ = run(drafter, "--trace", trace, "--json", "--steps", "5")
        report = json.loads(output)
        assert len(report["candidates"][0]["self_fed"]) == 5
        assert report["candidates"][0]["acceptance_length"]["value"] > 3.7

    def test_a_part_of_the_trace_will_do(self, drafter: Path, trace: Path) -> None:
        _, output, _ = run(drafter, "--trace", trace, "--json", "--tokens", "100")
        assert json.loads(output)["sample"] | {"embedding": ""} == {
            "sequences": 2,
            "rows": 126,
            "generated": True,
            "measured_acceptance_length": None,
            "embedding": "",
        }

    def test_a_clear_verdict_is_written(self, drafter: Path, trace: Path) -> None:
        before = (drafter / "config.json").read_bytes()
        status, output, _ = run(drafter, "--trace", trace, "--write")
        assert status == 1 and "config.json.bak" in " ".join(output.split())
        pinned = json.loads((drafter / "config.json").read_text())["eagle_config"]
        assert pinned["layer_id_convention"] == "layer_output"
        assert pinned["eagle_aux_hidden_state_layer_ids"] == [2, 4, 6]
        assert (drafter / "config.json.bak").read_bytes() == before

    def test_an_unclear_one_is_not(self, drafter: Path, tmp_path: Path) -> None:
        from sglang_kimi_eagle.probing.prompts import Asked
        from twin_traces import TwinTrace, conversations

        first = conversations()[3]
        short = Asked("chat", first.prompt, first.tokens[: first.prompt + 20])
        trace = TwinTrace([short]).write(tmp_path / "short")
        before = (drafter / "config.json").read_bytes()
        status, output, errors = run(drafter, "--trace", trace, "--write")
        assert status == 3 and "KE838" in errors and "Cannot tell" in output
        assert (drafter / "config.json").read_bytes() == before
        assert not (drafter / "config.json.bak").exists()

    def test_the_right_wiring_has_status_0(self, trace: Path, tmp_path: Path) -> None:
        from twin_traces import TwinTrace, conversations

        other = TwinTrace(conversations()[4:12], recipe=MLA).write(tmp_path / "mla")
        status, output, errors = run(copied(MLA, tmp_path), "--trace", other)
        assert status == 0 and not errors
        assert "the running wiring is the best" in " ".join(output.split())

    def test_a_device_that_is_none(self, drafter: Path, trace: Path) -> None:
        status, _, errors = run(drafter, "--trace", trace, "--device", "abacus")
        assert status == 2 and "--device" in errors

    def test_states_that_are_not_finite_are_the_traces_fault(
        self, drafter: Path, tmp_path: Path
    ) -> None:
        from twin_traces import TwinTrace, conversations

        trace = TwinTrace(conversations()[4:6], damage={3: float("nan")}).write(tmp_path / "nan")
        status, output, errors = run(drafter, "--trace", trace)
        assert status == 3 and not output
        assert "KE807 error" in errors and "h[3]" in errors and str(trace) in unbroken(errors)
        assert "KE846" not in errors

    def test_weights_that_are_not_finite_are_named(self, drafter: Path, trace: Path) -> None:
        spoil(drafter / "model.safetensors", "fc.weight", float("nan"))
        status, output, errors = run(drafter, "--trace", trace)
        assert status == 3 and not output
        assert "KE849 error" in errors and "fc.weight: NaN or infinity in 1 of" in errors

    @pytest.mark.parametrize("more", [[], ["--launch", "--", *LAUNCH]], ids=["trace", "launch"])
    def test_a_named_target_is_read_even_where_it_is_not_needed(
        self, tmp_path: Path, trace: Path, more: list[str]
    ) -> None:
        import drafter_files

        own = drafter_files.llama(own_embedding=True).write(tmp_path / "own")
        given = ["--trace", str(tmp_path / "new" if more else trace)]
        status, output, errors = run(own, *given, "--target", tmp_path / "none", *more)
        assert status == 3 and not output and "KE840" in errors and "--target names" in errors
        assert not (tmp_path / "new").exists()

    def test_a_chart_that_has_no_folder_is_refused_before_scoring(
        self, drafter: Path, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        command = sys.modules["sglang_kimi_eagle.cli.probe"]
        monkeypatch.setattr(command, "run_probe", lambda *_: pytest.fail())
        for chart in (tmp_path / "none" / "chart.png", tmp_path):
            status, output, errors = run(drafter, "--trace", trace, "--chart", chart)
            assert status == 3 and not output and "KE847" in errors

    @pytest.mark.parametrize("generated", [True, False])
    def test_the_header_is_english(self, generated: bool, drafter: Path, tmp_path: Path) -> None:
        from twin_traces import TwinTrace, conversations

        twin = TwinTrace(conversations()[4:6], prompts_file=generated)
        _, output, _ = run(drafter, "--trace", twin.write(tmp_path / "two"))
        kind = "the target's own tokens" if generated else "the traced text"
        assert f"rows of {kind}, in 2 sequences, SGLang" in " ".join(output.split())
        _, output, _ = run(drafter, "--trace", tmp_path / "two", "--tokens", "1", "--steps", "1")
        assert f"rows of {kind}, in 1 sequence, SGLang 0.5.23, 1 step" in " ".join(output.split())


def spoil(path: Path, name: str, value: float) -> None:
    """Make one number of a tensor, in the middle of it, another one."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    flat = tensors[name].view(-1)
    flat[flat.numel() // 2] = value
    save_file(tensors, path)


def unbroken(text: str) -> str:
    return text.replace("\n", "")


def test_a_chart_is_drawn(tmp_path: Path) -> None:
    from probe_reports import report
    from sglang_kimi_eagle.probing.view import write_chart

    write_chart(report(), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_a_chart_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    from probe_reports import report
    from sglang_kimi_eagle.probing.findings import ProbeRefused
    from sglang_kimi_eagle.probing.view import write_chart

    with pytest.raises(ProbeRefused) as refused:
        write_chart(report(), tmp_path / "none" / "chart.png")
    assert refused.value.findings[0].code == "KE847"


@pytest.mark.parametrize(
    "option",
    [
        *(("--timeout", value) for value in ("inf", "nan", "0", "86401")),
        *(("--tokens", value) for value in ("0", "9" * 30)),
        *(("--seed", value) for value in ("-1", "9" * 30)),
    ],
)
def test_numbers_are_bounded(option: tuple[str, str], tmp_path: Path) -> None:
    status, _, said = run(tmp_path, *option)
    assert status == 2 and option[0] in said
