"""A tokenizer beside the drafter that is not the target's."""

from __future__ import annotations

from pathlib import Path

import pytest

from drafter_files import llama, tiny_target
from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.checks.tokenizer import check_tokenizer
from sglang_kimi_eagle.drafter import read_drafter
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.target import target_of


@pytest.mark.parametrize(
    ("own", "others", "codes"),
    [
        (b"abc", b"abcd", ["KE623"]),
        (b"abc", b"abc", []),
        (b"abc", None, []),
        (None, b"abc", []),
        (None, None, []),
    ],
)
def test_vocabularies_of_two_sizes_are_warned_about(
    tmp_path: Path, own: bytes | None, others: bytes | None, codes: list[str]
) -> None:
    drafter = read_drafter(str(llama().write(tmp_path / "drafter")))
    (tmp_path / "target").mkdir()
    for folder, content in (("drafter", own), ("target", others)):
        if content is not None:
            (tmp_path / folder / "tiktoken.model").write_bytes(content)
    target = target_of(tiny_target(), str(tmp_path / "target"))
    context = Context(drafter, target, None, RELEASES["0.5.23"])
    assert [finding.code for finding in check_tokenizer(context)] == codes
