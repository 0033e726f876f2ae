"""``--config FILE`` in a launch command, read as SGLang does."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_kimi_eagle.launch_config import MAX_CONFIG
from sglang_kimi_eagle.server_arguments import BadCommandLine, ServerArguments

FILE = """
model-path: kimi
speculative-algorithm: EAGLE3
speculative-draft-model-path: drafter
speculative-num-steps: 3
enable-dp-attention: true
enable-two-batch-overlap: false
tp-size: 8
served-model-name: [a, b]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "launch.yaml"
    path.write_text(FILE)
    return path


def parse(*words: object) -> ServerArguments:
    return ServerArguments.from_command_line([str(word) for word in words], {})


def test_its_keys_are_flags(config: Path) -> None:
    assert parse("--config", config) == ServerArguments(
        model_path="kimi",
        speculative_algorithm="EAGLE3",
        draft_model_path="drafter",
        num_steps=3,
        enable_dp_attention=True,
    )


def test_the_command_line_wins_wherever_it_stands(config: Path) -> None:
    for words in (
        ["--speculative-num-steps", "5", "--config", config],
        ["--config", config, "--speculative-num-steps", "5"],
    ):
        assert parse(*words).num_steps == 5


def test_with_an_equals_sign_sglang_reads_nothing(config: Path) -> None:
    assert parse(f"--config={config}", "--model-path", "x") == ServerArguments(model_path="x")


def test_an_empty_file(config: Path) -> None:
    config.write_text("# nothing\n")
    assert parse("--config", config) == ServerArguments()


@pytest.mark.parametrize(
    "content",
    [
        b"- a list",
        b"just words",
        b"model-path: [1, 2]",
        b"model-path: {a: 1}",
        b"model-path: null",
        b"speculative-num-steps: many",
        b"enable-dp-attention: 1",
        b"a: *b",
        b"a: &x [1]\nb: *x",
        b"a: [",
        b"\xff\xfe",
        pytest.param(b"[" * 5000, id="deep"),
        b"? [a]\n: b",
        b"!!python/object/apply:os.system [id]",
        pytest.param(b"a: " + b"9" * 6000, id="many digits"),
        b"a: 2001-99-99",
        pytest.param(b"#" * (MAX_CONFIG + 1), id="huge"),
    ],
)
def test_files_that_are_none(config: Path, content: bytes) -> None:
    config.write_bytes(content)
    with pytest.raises(BadCommandLine):
        parse("--config", config)


def test_a_file_that_is_not_there(config: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    for words in (
        ["--config"],
        ["--config", tmp_path / "none.yaml"],
        ["--config", tmp_path / "folder.yaml"],
        ["--config", "/dev/zero"],
        ["--config", config, "--config", config],
        ["--config", "x\0.yaml"],
    ):
        with pytest.raises(BadCommandLine):
            parse(*words)
