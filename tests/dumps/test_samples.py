"""Files of dumps: what is understood, and what is refused before it costs anything."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_kimi_eagle.dumps.files import Budget
from sglang_kimi_eagle.dumps.findings import DumpRefused
from sglang_kimi_eagle.dumps.samples import Sample, read_samples, read_tokens

pytestmark = [pytest.mark.measure, pytest.mark.usefixtures("torch_layer")]

H, S = 16, 20


def read(path: Path, root: Path | None = None, budget: Budget | None = None) -> tuple[Sample, ...]:
    return read_samples(path, root, H, budget or Budget())


def refusal(path: Path, root: Path | None = None, budget: Budget | None = None) -> str:
    with pytest.raises(DumpRefused) as problem:
        read(path, root, budget)
    return problem.value.findings[0].code


def shapes(path: Path) -> list[tuple[str, list[int]]]:
    (sample,) = read(path)
    return [(slot.name, list(slot.values.shape)) for slot in sample.slots]


def numbers(*shape: int) -> Any:
    import torch

    return torch.arange(1, 1 + int(torch.tensor(shape).prod())).reshape(shape).float()


@pytest.mark.parametrize(
    ("shape", "slots"),
    [
        ((S, H), 1),
        ((1, S, H), 1),
        ((S, 3 * H), 3),
        ((1, S, 3 * H), 3),
        ((3, S, H), 3),
        ((S, 4, H), 4),
        ((3, 1, S, H), 3),
        ((1, 1, S, H), 1),
    ],
)
def test_every_shape_of_states_is_cut_into_them(
    shape: tuple[int, ...], slots: int, tmp_path: Path
) -> None:
    import torch

    values = numbers(*shape)
    torch.save({"input_ids": torch.arange(S), "hidden_states": values}, tmp_path / "dump")
    (sample,) = read(tmp_path / "dump")
    assert len(sample.slots) == slots and sample.rows == S
    first = values.reshape(-1)[:H]
    assert sample.slots[0].values[0].tolist() == first.tolist()


def test_tokens_settle_which_dimension_they_are(tmp_path: Path) -> None:
    import torch

    for shape, slots in (((5, 30, H), 5), ((5, 30, H), 30)):
        tokens = torch.arange(30 if slots == 5 else 5)
        torch.save({"input_ids": tokens, "hidden_states": numbers(*shape)}, tmp_path / "dump")
        assert len(shapes(tmp_path / "dump")) == slots


def test_masks_and_positions_are_no_states(tmp_path: Path) -> None:
    import torch

    content = {
        "input_ids": torch.arange(H)[None],
        "loss_mask": torch.ones(1, H),
        "attention_mask": torch.ones(1, 1, H, H, dtype=torch.long),
        "position_ids": torch.arange(H)[None].expand(3, H).contiguous(),
        "hidden_state": numbers(1, H, H),
        "note": "a text",
        "nothing": None,
    }
    torch.save(content, tmp_path / "dump")
    assert shapes(tmp_path / "dump") == [("hidden_state", [H, H])]


def test_several_samples_in_a_file_are_several(tmp_path: Path) -> None:
    import torch

    content = [{"input_ids": [1, 2, n], "hidden_states": numbers(3, H)} for n in range(4)]
    torch.save(content, tmp_path / "dump")
    assert [sample.tokens for sample in read(tmp_path / "dump")] == [(1, 2, n) for n in range(4)]
    assert read_tokens(tmp_path / "dump", None, Budget()) == [(1, 2, n) for n in range(4)]


def test_states_stay_on_disk(tmp_path: Path) -> None:
    import torch

    torch.save({"hidden_states": torch.zeros(1 << 19, H)}, tmp_path / "dump")
    before = _resident()
    (sample,) = read(tmp_path / "dump")
    assert sample.rows == 1 << 19
    assert _resident() - before < 8 << 20


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _shape(*shape: int) -> Callable[[], Any]:
    return lambda: {"input_ids": list(range(S)), "hidden_states": numbers(*shape)}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (_shape(S + 1, H), "KE816"),
        (_shape(H), "KE816"),
        (_shape(2, 2, 2, S, H), "KE816"),
        (_shape(S, 200, H), "KE816"),
        (_shape(7, 7, H), "KE816"),
        (_shape(S, H + 1), "KE817"),
        (lambda: {"hidden_states": numbers(0, H)}, "KE816"),
        (lambda: {"hidden_states": numbers(S, H).long()}, "KE816"),
        (lambda: {"hidden_states": numbers(S, H).to(_torch().complex64)}, "KE813"),
        (lambda: {"hidden_states": numbers(S, H).to_sparse()}, "KE813"),
        (lambda: {"hidden_states": numbers(1, H).expand(10_000, H)}, "KE816"),
        (lambda: {"input_ids": numbers(S), "hidden_states": numbers(S, H)}, "KE816"),
        (lambda: {"input_ids": "abc", "hidden_states": numbers(S, H), "x": [[]] * 9}, None),
        (lambda: {"a": numbers(S, H), "b": numbers(S - 1, H)}, "KE816"),
        (lambda: {}, "KE816"),
        (lambda: [], "KE816"),
        (lambda: 5, "KE816"),
        (lambda: numbers(S, H), None),
        (lambda: {"a": {"b": {"c": {"d": {"e": numbers(S, H)}}}}}, "KE816"),
        (lambda: {"hidden_states": _numpy(S, H)}, "KE813"),
        (lambda: {"path": Path("/")}, "KE813"),
        (lambda: {"hidden_states": bytearray(b"x")}, "KE813"),
    ],
)
def test_what_is_no_sample_is_refused(
    content: Callable[[], Any], code: str | None, tmp_path: Path
) -> None:
    import torch

    torch.save(content(), tmp_path / "dump")
    if code is None:
        assert len(read(tmp_path / "dump")) == 1
    else:
        assert refusal(tmp_path / "dump") == code


def _torch() -> Any:
    import torch

    return torch


def _numpy(*shape: int) -> Any:
    import numpy

    return numpy.ones(shape)


class _Code:
    """A pickle of it runs a command when it is opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_a_pickle_with_code_is_not_opened(tmp_path: Path) -> None:
    import torch

    bomb = _Code(tmp_path / "ran")
    torch.save({"hidden_states": numbers(S, H), "extra": bomb}, tmp_path / "archive")
    torch.save({"x": bomb}, tmp_path / "legacy", _use_new_zipfile_serialization=False)
    (tmp_path / "bare").write_bytes(pickle.dumps(bomb))
    for name in ("archive", "legacy", "bare"):
        assert refusal(tmp_path / name) == "KE813"
    assert not (tmp_path / "ran").exists()


def archive(path: Path, content: bytes, *, compression: int = zipfile.ZIP_STORED) -> Path:
    """An archive as torch.save writes it, around this pickle."""
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("archive/data.pkl", content)
        file.writestr("archive/byteorder", b"little")
        file.writestr("archive/data/0", bytes(64))
        file.writestr("archive/version", b"3\n")
    return path


HUGE = b"\x8a\x06" + (1 << 40).to_bytes(6, "little")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cbuiltins\nbytearray\n" + HUGE + b"\x85R.",
        b"\x80\x02ctorch\nFloatTensor\n" + HUGE + b"\x85R.",
        b"\x80\x02ctorch.storage\nUntypedStorage\n" + HUGE + b"\x85R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02(ios\nsystem\n.",
        b"\x80\x02cos\nsystem\n.",
    ],
)
def test_what_a_pickle_may_call_is_bounded(content: bytes, tmp_path: Path) -> None:
    assert refusal(archive(tmp_path / "dump", content)) == "KE813"


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"\x80\x02}", b"garbage", b"\x80\x02Q."])
def test_a_damaged_pickle_is_refused(content: bytes, tmp_path: Path) -> None:
    assert refusal(archive(tmp_path / "dump", content)) in ("KE813", "KE814")


def test_a_huge_tensor_of_a_small_file_is_refused(tmp_path: Path) -> None:
    rebuild = (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\n"
        b"U\x010U\x03cpuK\x10tQK\x00" + HUGE[:1] + HUGE[1:] + b"K\x10\x86K\x10K\x01\x86\x89"
        b"ccollections\nOrderedDict\n)RtR."
    )
    assert refusal(archive(tmp_path / "dump", rebuild)) == "KE814"


def test_lists_in_themselves_end(tmp_path: Path) -> None:
    assert refusal(archive(tmp_path / "dump", b"\x80\x02]q\x00(h\x00h\x00e.")) == "KE816"


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    content = b"\x80\x02U" + bytes(10_000_000) + b"."
    path = archive(tmp_path / "dump", content, compression=zipfile.ZIP_DEFLATED)
    assert refusal(path) == "KE814"


def test_an_archive_of_a_huge_pickle_is_refused(tmp_path: Path) -> None:
    assert refusal(archive(tmp_path / "dump", bytes(17 << 20))) == "KE815"


def test_an_archive_of_too_many_entries_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "dump", "w") as file:
        for number in range(10_001):
            file.writestr(str(number), b"")
    assert refusal(tmp_path / "dump") == "KE815"


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(bytes(100 << 20), 9)
    (tmp_path / "dump").write_bytes(packed)
    assert refusal(tmp_path / "dump") == "KE815"


def test_what_a_dump_unpacks_to_is_bounded_in_all(tmp_path: Path) -> None:
    import torch

    buffer = io.BytesIO()
    torch.save({"hidden_states": torch.randn(200, H)}, buffer)
    (tmp_path / "dump").write_bytes(gzip.compress(buffer.getvalue()))
    budget = Budget(len(buffer.getvalue()) + 100)
    assert len(read(tmp_path / "dump", budget=budget)) == 1
    assert refusal(tmp_path / "dump", budget=budget) == "KE815"


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(gzip.compress(os.urandom(1000))[:500])
    (tmp_path / "bad").write_bytes(b"\x1f\x8b" + os.urandom(100))
    (tmp_path / "twice").write_bytes(gzip.compress(gzip.compress(b"x")))
    assert {refusal(tmp_path / name) for name in ("cut", "bad", "twice")} == {"KE814"}


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ({}, "neither tensors nor token ids in it"),
        ("text", "neither tensors nor token ids in it"),
        ([1, 2, 3], "no hidden states: it holds a list of 3 numbers"),
        ({"input_ids": [7]}, "no hidden states among input_ids (a list of 1 number)"),
    ],
)
def test_what_a_file_has_instead_of_states_is_said(
    content: object, seen: str, tmp_path: Path
) -> None:
    import torch

    torch.save(content, tmp_path / "dump")
    with pytest.raises(DumpRefused) as problem:
        read(tmp_path / "dump")
    (finding,) = problem.value.findings
    assert (finding.code, finding.seen) == ("KE816", seen)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        b"PK\x03\x04" + bytes(100),
        b"\x93NUMPY",
        b"version https://git-lfs.github.com/spec/v1\n",
        b'\x10\x00\x00\x00\x00\x00\x00\x00{"a":             ',
        b'\xff\xff\xff\xff\xff\xff\xff\x7f{"a":             ',
        b"\x02\x00\x00\x00\x00\x00\x00\x00{}",
    ],
)
def test_what_is_no_dump_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(content)
    assert refusal(tmp_path / "dump") in ("KE814", "KE816")


@pytest.mark.parametrize("shape", ["[4611686018427387904,16]", "[-1,16]", "[1000000,16]"])
def test_a_safetensors_header_that_lies_is_refused(shape: str, tmp_path: Path) -> None:
    header = f'{{"h":{{"dtype":"F32","shape":{shape},"data_offsets":[0,64]}}}}'.encode()
    (tmp_path / "dump").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    assert refusal(tmp_path / "dump") == "KE814"


def test_only_ordinary_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "fifo", tmp_path / "loop", tmp_path / "missing", Path("/dev/zero")):
        assert refusal(path) == "KE811"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_is_a_finding_or_a_sample(data: st.DataObject, tmp_path: Path) -> None:
    import torch

    buffer = io.BytesIO()
    torch.save({"input_ids": torch.arange(S), "hidden_states": numbers(S, 3 * H)}, buffer)
    content = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "dump"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        samples = read(path)
    except DumpRefused:
        return
    for sample in samples:
        for slot in sample.slots:
            slot.values.float().sum()
