"""Output that goes away, is full, or is shown to people: no traceback, and no forged text."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from drafter_files import KIMI, Tensor, llama, mla
from judging import changed
from sglang_kimi_eagle.cli import app

ROOT = Path(__file__).parent.parent.parent
HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202e[red]\r\nKE000 error: forged"


def command(*words: str, **options: Any) -> subprocess.Popen[bytes]:
    environ = {key: value for key, value in os.environ.items() if "SGLANG" not in key}
    return subprocess.Popen(
        [sys.executable, "-m", "sglang_kimi_eagle", *words], cwd=ROOT, env=environ, **options
    )


@pytest.fixture
def drafter(tmp_path: Path) -> str:
    config = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    return str(changed(llama(), eagle_config=config).write(tmp_path / "drafter"))


@pytest.mark.parametrize("words", [("doctor",), ("doctor", "--json"), ("wiring", "--json")])
def test_a_reader_that_goes_away(drafter: str, words: tuple[str, ...]) -> None:
    process = command(*words, drafter, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    # As any command of the shell: 141 there.
    assert process.wait() == -signal.SIGPIPE
    process.stderr.close()


@pytest.mark.parametrize("words", [("doctor",), ("wiring",), ("wiring", "--json")])
def test_a_disk_that_is_full(drafter: str, words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        process = command(*words, drafter, stdout=full, stderr=subprocess.PIPE)
        _, errors = process.communicate()
    assert process.returncode == 2
    assert errors.splitlines()[-1].startswith(b"sglang-kimi-eagle: ")
    assert b"Traceback" not in errors and b"Exception ignored" not in errors


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_output_that_is_closed(drafter: str, closed: str) -> None:
    for words, status in ((f"doctor {drafter}", 0), ("wiring none", 3)):
        line = f"{sys.executable} -m sglang_kimi_eagle {words} --sglang 0.5.23 {closed}"
        done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True)
        assert done.returncode == status, done.stderr


def shown(*words: object, **environ: str) -> str:
    environ = {"COLUMNS": "120"} | environ
    result = CliRunner().invoke(app, [str(word) for word in words], env=environ)
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result.output


KEYS = [
    "architectures",
    "model_type",
    "hidden_size",
    "vocab_size",
    "draft_vocab_size",
    "num_hidden_layers",
    "rope_theta",
    "rope_scaling",
    "torch_dtype",
    "eagle_config",
    "use_aux_hidden_state",
    "quantization_config",
    "target_model_name_or_path",
    "max_position_embeddings",
    "num_aux_hidden_states",
    "eagle_aux_hidden_state_layer_ids",
    "_torchspec_version",
    "norm_before_fc",
    HOSTILE,
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("shape", ["text", "list", "object", "pair"])
def test_values_of_a_config_are_escaped(tmp_path: Path, key: str, shape: str) -> None:
    hostile = f"a/{HOSTILE}"
    value = {
        "text": hostile,
        "list": [hostile],
        "object": {hostile: hostile, "type": hostile},
        "pair": {"layer_id_convention": hostile, "eagle_config": {hostile: 1}},
    }[shape]
    drafter = changed(llama(), **{key: value}).write(tmp_path / "drafter")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(json.dumps({**KIMI, key: value}))
    for words in (
        ("doctor", drafter, "--target", tmp_path / "target"),
        ("wiring", drafter),
    ):
        check_plain(shown(*words, "--sglang", "0.5.23"))
    # Colours are rich's own; nothing else may be in the output.
    check_plain(shown("doctor", drafter, FORCE_COLOR="1", TERM="xterm"), colour=True)


def test_names_of_tensors_files_and_folders_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE.replace("/", "")
    for build in (llama, mla):
        checkpoint = build()
        checkpoint.tensors[f"{HOSTILE}.d2t"] = Tensor((3,), "F32")
        checkpoint.tensors[HOSTILE * 50] = Tensor((3,))
        checkpoint.write(folder, shards=2)
        check_plain(shown("doctor", folder))
        check_plain(shown("wiring", folder))
        (folder / f"{HOSTILE}.safetensors").write_bytes(b"x")
        check_plain(shown("doctor", folder))


def check_plain(output: str, *, colour: bool = False) -> None:
    """Nothing that moves a cursor, sets a title or turns the text around; no line of its own."""
    assert "Traceback" not in output and len(output) < 50_000
    for sequence in ("\x1b[2J", "\x1b]", "\x07", "\u202e", "\r", *([] if colour else ["\x1b"])):
        assert sequence not in output, output
    # A long path is wrapped below its label; a finding begins in the first column.
    assert not any(line.startswith("KE000") for line in output.splitlines())


@pytest.mark.parametrize(
    "words",
    [("doctor", ""), ("identify", "", "--trace", "t"), ("pin", "d", "--states=3,5,7", "--output=")],
)
def test_an_empty_word_is_not_the_current_folder(words: tuple[str, ...]) -> None:
    process = command(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert errors == b"sglang-kimi-eagle: an argument is empty; an unset variable?\n"


def test_the_words_of_a_launch_may_be_empty(drafter: str) -> None:
    process = command("doctor", drafter, "--", "--served-model-name", "", stdout=subprocess.DEVNULL)
    assert process.wait() in (0, 1)
