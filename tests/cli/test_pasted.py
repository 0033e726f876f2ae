"""Launch commands as people paste them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_kimi_eagle.cli.pasted import without_program

PROGRAM = "python -m sglang.launch_server"
NAMED = "--speculative-draft-model-path d"


@pytest.mark.parametrize(
    "before", ["sudo", "timeout 1h", "docker run -e A=1 image", "cd /x &&", "uv run", "time"]
)
def test_an_unknown_program_is_no_drafter_where_the_launch_names_one(before: str) -> None:
    words, _ = without_program(f"{before} {PROGRAM} --tp 8 {NAMED}".split())
    assert words == ["--tp", "8", *NAMED.split()]


def test_a_drafter_before_the_program_is_kept(tmp_path: Path) -> None:
    for drafter in ("a/b", str(tmp_path)):
        words, _ = without_program([drafter, *f"{PROGRAM} {NAMED}".split()])
        assert words == [drafter, *NAMED.split()]
    words, _ = without_program(f"drafter {PROGRAM} --tp 8".split())
    assert words == ["drafter", "--tp", "8"]


def test_the_model_of_serve_is_the_target() -> None:
    words, _ = without_program(f"sglang serve kimi {NAMED}".split())
    assert words == ["--model-path", "kimi", *NAMED.split()]
    words, _ = without_program(f"/opt/bin/sglang serve --model-path kimi {NAMED}".split())
    assert words == ["--model-path", "kimi", *NAMED.split()]


def test_variables_of_the_command_are_returned() -> None:
    words, variables = without_program(f"env A=1 B=x=y {PROGRAM} --tp 8".split())
    assert (words, variables) == (["--tp", "8"], {"A": "1", "B": "x=y"})
    assert without_program(["--tp", "8"]) == (["--tp", "8"], {})
