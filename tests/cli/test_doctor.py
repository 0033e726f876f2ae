"""``sglang-kimi-eagle doctor``: its report, its JSON and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from drafter_files import llama, mla, tiny_target
from judging import changed
from sglang_kimi_eagle.cli import app

ROOT = Path(__file__).parent.parent.parent


def doctor(*words: str, **environ: str) -> Result:
    """Run the command in this process."""
    clean: dict[str, str | None] = {key: None for key in os.environ if "SGLANG" in key}
    result = CliRunner().invoke(app, ["doctor", *words], env={**clean, "COLUMNS": "100", **environ})
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result


def report(*words: str, **environ: str) -> dict[str, Any]:
    done = doctor("--json", *words, **environ)
    return checked(done.stdout, done.stderr, done.exit_code)


def report_of_interpreter(*flags: str, **environ: str) -> dict[str, Any]:
    """What an interpreter of its own says of its environment."""
    clean = {key: value for key, value in os.environ.items() if "SGLANG" not in key}
    done = subprocess.run(
        [sys.executable, *flags, "-m", "sglang_kimi_eagle", "doctor", "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**clean, **environ},
    )
    return checked(done.stdout, done.stderr, done.returncode)


def checked(output: str, errors: str, status: int) -> dict[str, Any]:
    result = json.loads(output)
    assert (result["schema"], result["status"], errors) == (1, status, "")
    return dict(result)


@pytest.fixture
def drafter(tmp_path: Path) -> str:
    declared = {
        "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
        "use_aux_hidden_state": True,
        "layer_id_convention": "layer_output",
    }
    return str(changed(llama(), eagle_config=declared).write(tmp_path / "drafter"))


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(json.dumps(tiny_target()))
    return str(tmp_path / "target")


def test_clean(drafter: str, target: str) -> None:
    found = report(drafter, "--target", target, "--sglang", "0.5.23")
    assert found["findings"] == []
    assert found["status"] == 0
    assert found["sglang"] == {"version": "0.5.23", "installed": False}
    assert found["wiring"]["states"] == [2, 4, 5]
    done = doctor(drafter, "--target", target, "--sglang", "0.5.23")
    assert done.exit_code == 0
    assert "Nothing is wrong" in done.stdout
    assert "h[2], h[4], h[5]" in done.stdout


def test_a_target_that_the_plugin_leaves_alone_is_named(drafter: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**tiny_target(), "architectures": ["SomeoneElsesForCausalLM"]})
    )
    found = report(drafter, "--target", str(tmp_path), "--sglang", "0.5.23")
    assert [finding["code"] for finding in found["findings"]] == ["KE879"]
    assert found["status"] == 0


def test_a_warning(drafter: str) -> None:
    launch = ("--speculative-algorithm", "EAGLE3", "--enable-return-hidden-states")
    launch += ("--attention-backend", "fa3")
    found = report(drafter, "--sglang", "0.5.23", "--", *launch)
    assert [finding["code"] for finding in found["findings"]] == ["KE523"]
    assert found["status"] == 1
    strict = report(drafter, "--sglang", "0.5.23", "--", *launch, SGLANG_KIMI_EAGLE_STRICT="1")
    assert strict["status"] == 3
    silent = report(drafter, "--sglang", "0.5.23", "--", *launch, SGLANG_KIMI_EAGLE_IGNORE="KE523")
    assert silent["status"] == 0


def test_an_error(tmp_path: Path, target: str) -> None:
    drafter = str(mla().write(tmp_path / "mla"))
    found = report(drafter, "--target", target, "--sglang", "0.5.11")
    assert found["status"] == 3
    assert "KE302" in [finding["code"] for finding in found["findings"]]
    done = doctor(drafter, "--sglang", "0.5.11")
    assert done.exit_code == 3
    assert "KE302" in done.stdout and "mend:" in done.stdout
    assert "\x1b[" not in done.stdout


def test_drafter_and_target_from_the_launch(drafter: str, target: str) -> None:
    launch = ["--model-path", target, "--speculative-draft-model-path", drafter]
    found = report("--sglang", "0.5.23", "--", *launch, "--speculative-algorithm", "EAGLE")
    assert [finding["code"] for finding in found["findings"]] == ["KE501"]
    assert found["target"] == target


@pytest.mark.parametrize(
    "program",
    [
        "python -m sglang.launch_server",
        "/usr/bin/python3.11 -m sglang.launch_server",
        "env A=1 B=2 python3 -m sglang.launch_server",
        "CUDA_VISIBLE_DEVICES=0 nice -n 5 python -m sglang.launch_server",
        "sglang serve",
        "/opt/venv/bin/sglang serve",
    ],
)
def test_a_pasted_launch_command(drafter: str, program: str) -> None:
    launch = [*program.split(), "--model-path", "/elsewhere/kimi"]
    eagle = ["--speculative-algorithm", "EAGLE", "--attention-backend", "fa3"]
    draft = ["--speculative-draft-model-path", drafter]
    for words in ([*launch, *eagle, *draft], [drafter, "--", *launch, *eagle]):
        found = report("--sglang", "0.5.23", *(words if drafter in words[:1] else ["--", *words]))
        assert [finding["code"] for finding in found["findings"]] == ["KE501"]


def pasted(drafter: str, target: str, variables: str) -> list[str]:
    """A launch command that sets variables, behind the doctor's own options."""
    command = f"{variables} python -m sglang.launch_server --attention-backend fa3".split()
    eagle = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", drafter]
    return ["--sglang", "0.5.23", "--", *command, *eagle, "--model-path", target]


@pytest.mark.parametrize("program", ["{}", "env {}", "env A=1 {} nice -n 5", "nohup env {}"])
def test_variables_of_a_pasted_command_count(tmp_path: Path, target: str, program: str) -> None:
    short = str(changed(llama(), max_position_embeddings=1024).write(tmp_path / "short"))
    for value, code in (("1", "KE622"), ("0", "KE621")):
        variable = f"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN={value}"
        found = report(*pasted(short, target, program.format(variable)))
        assert code in [f["code"] for f in found["findings"]]
    found = report(*pasted(short, target, program.format("SGLANG_KIMI_EAGLE_STATES=3,4,5")))
    assert found["wiring"]["states"] == [3, 4, 5]
    found = report(*pasted(short, target, program.format("SGLANG_KIMI_EAGLE_STATES=3;4;5")))
    assert "KE010" in [f["code"] for f in found["findings"]]


def test_a_drafter_before_variables_of_a_pasted_command(drafter: str) -> None:
    command = ["SGLANG_KIMI_EAGLE_STATES=3,4,5", "sglang", "serve", "--attention-backend", "fa3"]
    found = report(drafter, "--sglang", "0.5.23", "--", *command)
    assert found["drafter"] == drafter and found["wiring"]["states"] == [3, 4, 5]


def test_strictness_and_silence_of_a_pasted_command(drafter: str, target: str) -> None:
    warned = "--enable-return-hidden-states"
    strict = report(*pasted(drafter, target, "SGLANG_KIMI_EAGLE_STRICT=1"), warned)
    assert [(f["code"], f["severity"]) for f in strict["findings"]] == [("KE523", "error")]
    silent = report(*pasted(drafter, target, "SGLANG_KIMI_EAGLE_IGNORE=KE523"), warned)
    assert silent["findings"] == []


def test_a_pasted_command_wins_over_the_environment(tmp_path: Path, target: str) -> None:
    short = str(changed(llama(), max_position_embeddings=1024).write(tmp_path / "short"))
    words = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=0 SGLANG_KIMI_EAGLE_STATES=3,4,5"
    environ = {
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        "SGLANG_KIMI_EAGLE_STATES": "2,3,4",
        "SGLANG_KIMI_EAGLE_STRICT": "1",
        "SGLANG_KIMI_EAGLE": "0",
    }
    command = pasted(short, target, f"{words} SGLANG_KIMI_EAGLE=1")
    found = report(*command, "--enable-return-hidden-states", **environ)
    # Strictness, which the command does not set, stays the environment's.
    assert {(f["code"], f["severity"]) for f in found["findings"]} == {
        ("KE523", "error"),
        ("KE621", "error"),
    }
    assert found["wiring"]["states"] == [3, 4, 5]
    assert not found["switched_off"]


def test_words_after_the_program_set_nothing(drafter: str, target: str) -> None:
    after = ["--served-model-name", "SGLANG_KIMI_EAGLE=0"]
    assert not report(*pasted(drafter, target, "A=1"), *after)["switched_off"]


def test_a_launch_with_the_plugin_switched_off(drafter: str, target: str) -> None:
    off = pasted(drafter, target, "SGLANG_KIMI_EAGLE=0")
    for words, environ in ((off, {}), (pasted(drafter, target, ""), {"SGLANG_KIMI_EAGLE": "0"})):
        assert report(*words, **environ)["switched_off"]
        shown = doctor(*words, **environ).stdout
        assert "switched off by SGLANG_KIMI_EAGLE=0" in shown and "captures" not in shown
    on = doctor(*pasted(drafter, target, "")).stdout
    assert "switched off" not in on and "captures" in on


def test_a_drafter_with_the_name_of_a_program(tmp_path: Path) -> None:
    llama().write(tmp_path / "serve")
    assert report(str(tmp_path / "serve"), "--sglang", "0.5.23")["wiring"] is not None
    assert [f["code"] for f in report("serve")["findings"]] == ["KE101"]


def test_a_launch_without_a_drafter(target: str) -> None:
    words = ("--", "--model-path", target, "--speculative-algorithm", "EAGLE3")
    found = report("--sglang", "0.5.23", *words)
    assert [finding["code"] for finding in found["findings"]] == ["KE502"]


def test_nothing_there(tmp_path: Path) -> None:
    found = report(str(tmp_path / "none"))
    assert [finding["code"] for finding in found["findings"]] == ["KE101"]
    assert found["wiring"] is None


def test_a_target_that_is_none(drafter: str, tmp_path: Path) -> None:
    found = report(drafter, "--target", str(tmp_path / "none"), "--sglang", "0.5.23")
    assert [finding["code"] for finding in found["findings"]] == ["KE101"]
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text("{}")
    found = report(drafter, "--target", str(tmp_path / "odd"), "--sglang", "0.5.23")
    assert [finding["code"] for finding in found["findings"]] == ["KE118"]
    assert found["target"] == str(tmp_path / "odd")
    shown = doctor(drafter, "--target", "no-such-target", "--sglang", "0.5.23")
    assert "no-such-target (unreadable)" in shown.stdout and "KE101" in shown.stdout
    assert "not given" in doctor(drafter, "--sglang", "0.5.23").stdout


def test_a_target_of_the_launch_may_be_on_another_machine(drafter: str, tmp_path: Path) -> None:
    words = [drafter, "--sglang", "0.5.23", "--", "--attention-backend", "fa3", "--model-path"]
    assert report(*words, "/elsewhere/kimi")["findings"] == []
    assert "/elsewhere/kimi (not on this machine)" in doctor(*words, "/elsewhere/kimi").stdout
    (tmp_path / "config.json").write_text("{")
    assert [f["code"] for f in report(*words, str(tmp_path))["findings"]] == ["KE103"]


def test_a_launch_without_a_backend_gets_a_note(drafter: str, target: str) -> None:
    words = (drafter, "--sglang", "0.5.23", "--", "--model-path", target)
    found = report(*words, "--speculative-algorithm", "EAGLE3")
    assert [(f["code"], f["severity"]) for f in found["findings"]] == [("KE516", "note")]
    assert found["status"] == 0
    given = ("--speculative-draft-attention-backend", "flashinfer")
    assert report(*words, "--speculative-algorithm", "EAGLE3", *given)["findings"] == []


def test_a_launch_with_a_config_file(drafter: str, target: str, tmp_path: Path) -> None:
    config = tmp_path / "launch.yaml"
    config.write_text(
        f"model-path: {target}\nspeculative-algorithm: EAGLE\n"
        f"speculative-draft-model-path: {drafter}\n"
    )
    words = ("--sglang", "0.5.23", "--", "--config", str(config))
    assert [f["code"] for f in report(*words)["findings"]] == ["KE501"]
    config.write_text("[")
    done = doctor(*words)
    assert done.exit_code == 2 and "launch.yaml cannot be read" in done.stderr


def test_an_unknown_code_to_ignore_is_warned_about(drafter: str, target: str) -> None:
    words = (drafter, "--target", target, "--sglang", "0.5.23")
    found = report(*words, SGLANG_KIMI_EAGLE_IGNORE="KE523;KE603")
    assert [f["code"] for f in found["findings"]] == ["KE013"]
    assert "KE013" in doctor(SGLANG_KIMI_EAGLE_IGNORE="KE-523").stdout


@pytest.mark.parametrize(
    "words",
    [
        ["drafter", "--sglang", "9.9.9"],
        ["drafter", "--", "--pp-size", "two"],
        ["--explain", "KE999"],
        ["--no-such-option"],
        ["--target", "x"],
        ["--", "--model-path", "x"],
    ],
)
def test_a_wrong_command_line(words: list[str]) -> None:
    done = doctor(*words)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_explain() -> None:
    done = doctor("--explain", "ke310")
    assert done.exit_code == 0
    assert done.stdout == (ROOT / "docs" / "diagnostics" / "KE310.md").read_text()


def test_environment_without_sglang() -> None:
    found = report()
    assert [finding["code"] for finding in found["findings"]] == ["KE002"]
    assert found["status"] == 3
    assert "KE002" in doctor().stdout


def stand_in(tmp_path: Path, *, framework: bool) -> dict[str, str]:
    """A package sglang of one release's shape: its sources do not matter here."""
    site = tmp_path / "site-packages"
    (site / "sglang" / "srt").mkdir(parents=True)
    (site / "sglang" / "__init__.py").touch()
    if framework:
        (site / "sglang" / "srt" / "plugins").mkdir()
        (site / "sglang" / "srt" / "plugins" / "__init__.py").touch()
    return {"PYTHONPATH": str(site)}


def test_environment_without_the_hook(tmp_path: Path) -> None:
    environ = stand_in(tmp_path, framework=False)
    found = report_of_interpreter(**environ)
    codes = [finding["code"] for finding in found["findings"]]
    assert "KE001" in codes and "KE011" not in codes
    assert found["environment"]["loaded_by"].startswith("start-up hook")
    # Without site no .pth is run.
    path = os.pathsep.join([str(ROOT), environ["PYTHONPATH"], sysconfig.get_path("purelib")])
    found = report_of_interpreter("-S", PYTHONPATH=path)
    assert "KE011" in [finding["code"] for finding in found["findings"]]
    assert found["environment"]["loaded_by"] is None


def test_environment_with_a_choice_of_plugins(tmp_path: Path) -> None:
    environ = stand_in(tmp_path, framework=True)
    codes = [
        f["code"] for f in report_of_interpreter(**environ, SGLANG_PLUGINS="other")["findings"]
    ]
    assert "KE012" in codes
    codes = [
        f["code"]
        for f in report_of_interpreter(**environ, SGLANG_PLUGINS="a, kimi_eagle")["findings"]
    ]
    assert "KE012" not in codes
    off = report_of_interpreter(**environ, SGLANG_KIMI_EAGLE="0")
    assert off["environment"]["switched_off"]
    assert off["environment"]["loaded_by"] is None
