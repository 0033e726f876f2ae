"""A tokenizer beside the drafter that is not the target's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from drafter_files import llama, tiny_target
from sglang_kimi_eagle.checks import tokenizer
from sglang_kimi_eagle.checks.context import Context
from sglang_kimi_eagle.checks.tokenizer import check_tokenizer
from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.drafter import read_drafter
from sglang_kimi_eagle.releases import RELEASES
from sglang_kimi_eagle.target import target_of


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Drafter and target."""
    (tmp_path / "target").mkdir()
    return llama().write(tmp_path / "drafter"), tmp_path / "target"


def found(folders: tuple[Path, Path]) -> list[Diagnostic]:
    drafter = read_drafter(str(folders[0]))
    target = target_of(tiny_target(), str(folders[1]))
    return list(check_tokenizer(Context(drafter, target, None, RELEASES["0.5.23"])))


def codes(folders: tuple[Path, Path]) -> list[str]:
    return [finding.code for finding in found(folders)]


@pytest.mark.parametrize("name", ["tiktoken.model", "tokenizer.model"])
@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (b"abc", b"abcd", ["KE623"]),
        (b"abc", b"abd", ["KE623"]),
        (b"abc", b"abc", []),
        (b"abc", None, []),
        (None, b"abc", []),
        (None, None, []),
    ],
)
def test_vocabularies_are_compared_to_the_byte(
    folders: tuple[Path, Path],
    name: str,
    own: bytes | None,
    others: bytes | None,
    expected: list[str],
) -> None:
    for folder, content in zip(folders, (own, others), strict=True):
        if content is not None:
            (folder / name).write_bytes(content)
    assert codes(folders) == expected


def test_large_ones_are_compared_by_size(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "MAX_VOCABULARY", 2)
    for folder, content in zip(folders, (b"abc", b"abd"), strict=True):
        (folder / "tiktoken.model").write_bytes(content)
    assert codes(folders) == []
    (folders[0] / "tiktoken.model").write_bytes(b"abcd")
    assert codes(folders) == ["KE623"]


def test_what_is_no_ordinary_file_is_passed_over(folders: tuple[Path, Path]) -> None:
    os.mkfifo(folders[0] / "tiktoken.model")
    (folders[1] / "tiktoken.model").write_bytes(b"abc")
    (folders[0] / "tokenizer.model").symlink_to("/dev/zero")
    (folders[1] / "tokenizer.model").mkdir()
    assert codes(folders) == []


def test_a_target_that_is_not_here(folders: tuple[Path, Path]) -> None:
    (folders[0] / "tiktoken.model").write_bytes(b"abc")
    assert codes((folders[0], folders[1] / "none")) == []
    assert codes((folders[0], folders[0])) == []


def write_tokens(folder: Path, tokens: Any) -> None:
    table = {str(key): {"content": name} for key, name in tokens.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": table}))


KIMIS = {163584: "[BOS]", 163585: "[EOS]", 163586: "<|im_end|>", 163591: "<|im_middle|>"}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (KIMIS, []),
        # One model's versions name reserved tokens, one by one.
        (KIMIS | {163591: "<|reserved_7|>"}, []),
        (dict.fromkeys(KIMIS, "<|other|>"), ["KE623"]),
        ({7: "<s>"}, []),
    ],
)
def test_special_tokens_by_id(
    folders: tuple[Path, Path], own: dict[int, str], expected: list[str]
) -> None:
    write_tokens(folders[0], own)
    write_tokens(folders[1], KIMIS)
    assert codes(folders) == expected
    # Equal vocabularies say more than names do.
    for folder in folders:
        (folder / "tiktoken.model").write_bytes(b"abc")
    assert codes(folders) == []


@pytest.mark.parametrize("content", [b"", b"[]", b'{"added_tokens_decoder": [1]}', b"{" * 9999])
def test_a_broken_tokenizer_config_is_passed_over(
    folders: tuple[Path, Path], content: bytes
) -> None:
    write_tokens(folders[1], KIMIS)
    (folders[0] / "tokenizer_config.json").write_bytes(content)
    assert codes(folders) == []


def test_names_of_tokens_cannot_write_to_the_terminal(folders: tuple[Path, Path]) -> None:
    write_tokens(folders[0], {163584: "\x1b[2J" + "x" * 9999})
    write_tokens(folders[1], KIMIS)
    (finding,) = found(folders)
    assert "\x1b" not in finding.render() and len(finding.render()) < 2000
