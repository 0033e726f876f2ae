"""Reading checkpoints: what is accepted, and what every broken file is called."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from drafter_files import Checkpoint, Tensor, d2t, llama, write_safetensors
from sglang_kimi_eagle.diagnostics import Diagnostic
from sglang_kimi_eagle.drafter import UnreadableDrafter, checkpoint, read_config, read_drafter
from sglang_kimi_eagle.drafter.checkpoint import MAX_READ

INDEX = "model.safetensors.index.json"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARDS = [f"pytorch_model-{number:05}-of-00003.bin" for number in (1, 2, 3)]
TRAINING = [
    *("optimizer.pt", "optimizer_1.bin", "scheduler.pt", "scaler.pt", "training_args.bin"),
    *("rng_state.pth", "rng_state_0.pth", "training_state.pt"),
]


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return llama().write(tmp_path / "drafter")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return llama().write(tmp_path / "drafter", shards=4)


def refused(location: Path | str, revision: str | None = None) -> list[str]:
    with pytest.raises(UnreadableDrafter) as caught:
        read_drafter(str(location), revision)
    for finding in caught.value.findings:
        assert finding.message and finding.where and finding.seen and finding.mend
    return [finding.code for finding in caught.value.findings]


def pickled(location: Path) -> Diagnostic:
    with pytest.raises(UnreadableDrafter) as caught:
        read_drafter(str(location))
    (finding,) = caught.value.findings
    assert finding.code == "KE108"
    return finding


def run_pasted(mend: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a mend's command in the folder it is for; the files' names stand for their tensors."""
    text, command = mend.split(": ", 1)
    assert text.endswith("in that folder")
    modules = folder.parent / "modules"
    (modules / "safetensors").mkdir(parents=True)
    (modules / "safetensors" / "__init__.py").touch()
    (modules / "torch.py").write_text(
        "class Tensor:\n"
        "    contiguous = clone = lambda self: self\n"
        "def load(file, map_location, *, weights_only):\n"
        "    assert map_location == 'cpu' and weights_only and open(file)\n"
        "    return {file: Tensor()}\n"
    )
    (modules / "safetensors" / "torch.py").write_text(
        "def save_file(tensors, file):\n    open(file, 'w').write(' '.join(tensors))\n"
    )
    return subprocess.run(
        ["bash", "-c", command.replace("python", sys.executable, 1)],
        cwd=folder,
        env={"PYTHONPATH": str(modules)},
        capture_output=True,
        text=True,
    )


def header(tensors: object) -> bytes:
    text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


class TestHealthy:
    def test_single_file(self, drafter: Path) -> None:
        read = read_drafter(str(drafter))
        assert read.folder == drafter.resolve()
        assert read.config["hidden_size"] == 128
        assert read.tensors["fc.weight"].shape == (128, 384)
        assert read.tensors["fc.weight"].dtype == "BF16"
        assert read.findings == ()

    def test_shards(self, drafter: Path, tmp_path: Path) -> None:
        single = read_drafter(str(drafter)).tensors
        several = read_drafter(str(llama().write(tmp_path / "s", shards=4))).tensors
        assert {n: str(h) for n, h in several.items()} == {n: str(h) for n, h in single.items()}

    def test_maps(self, drafter: Path) -> None:
        read = read_drafter(str(drafter))
        assert list(read.read_tensor("d2t")) == list(range(384))
        assert sum(read.read_tensor("t2d")) == 384
        assert not read.can_read("fc.weight")
        with pytest.raises(ValueError, match="is not read"):
            read.read_tensor("fc.weight")
        with pytest.raises(KeyError):
            read.read_tensor("no such tensor")

    def test_large_tensors_are_not_read(self, tmp_path: Path) -> None:
        tensors = {"d2t": Tensor((MAX_READ + 1,), "I64")}
        folder = Checkpoint({}, tensors).write(tmp_path / "d")
        assert not read_drafter(str(folder)).can_read("d2t")

    def test_a_target_given_by_mistake_is_not_read_to_the_end(
        self, sharded: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checkpoint, "MAX_TENSORS", 5)
        assert 5 < len(read_drafter(str(sharded)).tensors) < len(llama().tensors)

    def test_a_file_cut_after_its_header_was_read(self, drafter: Path) -> None:
        read = read_drafter(str(drafter))
        os.truncate(drafter / "model.safetensors", 3000)
        with pytest.raises(UnreadableDrafter):
            read.read_tensor("d2t")

    def test_folder_behind_a_link(self, drafter: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(drafter)
        assert read_drafter(str(tmp_path / "link")).folder == drafter.resolve()

    def test_mistrals_second_copy_is_passed_over(self, drafter: Path) -> None:
        write_safetensors(drafter / "consolidated.safetensors", {"x": Tensor((1,))})
        assert "x" not in read_drafter(str(drafter)).tensors

    def test_metadata_and_empty_tensors(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        empty = {"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]}
        content = header({"__metadata__": {"format": "pt"}, "empty": empty})
        (tmp_path / "model.safetensors").write_bytes(content)
        assert list(read_drafter(str(tmp_path)).tensors) == ["empty"]

    def test_written_by_safetensors(self, tmp_path: Path) -> None:
        numpy = pytest.importorskip("numpy")
        from safetensors.numpy import save_file

        (tmp_path / "config.json").write_text("{}")
        save_file({"d2t": numpy.arange(9)}, tmp_path / "model.safetensors", {"format": "pt"})
        assert list(read_drafter(str(tmp_path)).read_tensor("d2t")) == list(range(9))


class TestHubCache:
    @pytest.fixture
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        cache = tmp_path / "hub"
        repository = cache / "models--someone--drafter"
        blobs, snapshot = repository / "blobs", repository / "snapshots" / COMMIT
        blobs.mkdir(parents=True)
        snapshot.mkdir(parents=True)
        (repository / "refs" / "pr").mkdir(parents=True)
        (repository / "refs" / "main").write_text(COMMIT)
        (repository / "refs" / "pr" / "1").write_text(COMMIT)
        for number, file in enumerate(sorted(llama().write(tmp_path / "source").iterdir())):
            file.rename(blobs / str(number))
            (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_HUB_CACHE", str(cache))
        return cache

    def test_hub_id(self, cache: Path) -> None:
        snapshot = cache / "models--someone--drafter" / "snapshots" / COMMIT
        for revision in (None, "main", "pr/1", COMMIT):
            assert read_drafter("someone/drafter", revision).folder == snapshot
        assert read_config("someone/drafter")["hidden_size"] == 128

    def test_snapshot_folder(self, cache: Path) -> None:
        snapshot = cache / "models--someone--drafter" / "snapshots" / COMMIT
        assert "fc.weight" in read_drafter(str(snapshot)).tensors

    @pytest.mark.parametrize("name", ["HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
    def test_places_of_the_cache(
        self, cache: Path, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("HF_HUB_CACHE")
        if name == "XDG_CACHE_HOME":
            (cache.parent / "huggingface").mkdir()
            cache = cache.rename(cache.parent / "huggingface" / "hub")
            monkeypatch.setenv(name, str(cache.parent.parent))
        else:
            monkeypatch.setenv(name, str(cache if name.endswith("CACHE") else cache.parent))
        assert "fc.weight" in read_drafter("someone/drafter").tensors

    @pytest.mark.parametrize("revision", ["other", "../main", "../../blobs/0", "/etc", "a\0"])
    def test_other_revisions(self, cache: Path, revision: str) -> None:
        assert refused("someone/drafter", revision) == ["KE101"]

    def test_reference_to_somewhere_else(self, cache: Path) -> None:
        (cache / "models--someone--drafter" / "refs" / "main").write_text("../blobs")
        assert refused("someone/drafter") == ["KE101"]

    def test_link_out_of_the_cache(self, cache: Path, tmp_path: Path) -> None:
        outside = tmp_path / "outside.json"
        outside.write_text("{}")
        config = cache / "models--someone--drafter" / "snapshots" / COMMIT / "config.json"
        config.unlink()
        config.symlink_to(outside)
        assert refused("someone/drafter") == ["KE105"]


@pytest.mark.parametrize(
    "location", ["", ".no", "/no/such", "no/such", "a/b/c", "x\0y", "x" * 5000, "~nobody/x", "..--"]
)
def test_nothing_there(location: str) -> None:
    assert refused(location) == ["KE101"]


class TestConfig:
    def test_missing(self, drafter: Path) -> None:
        (drafter / "config.json").unlink()
        assert refused(drafter) == ["KE102"]

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"[]",
            b"7",
            b'{"a": 1, "a": 2}',
            b'{"b": {"a": 1, "a": 2}}',
            b'{"a": NaN}',
            b'{"a": -Infinity}',
            b'{"a": 1e999}',
            b'{"a": "\xff"}',
            b'{"a": "\\uD800"}',
            b"\xef\xbb\xbf{}",
            "{}".encode("utf-16"),
            b"[" * 100_000,
            b'{"a": ' * 50_000,
            b'{"a": ' + b"9" * 10_000 + b"}",
        ],
    )
    def test_not_json(self, drafter: Path, content: bytes) -> None:
        (drafter / "config.json").write_bytes(content)
        assert refused(drafter) == ["KE103"]

    def test_huge(self, drafter: Path) -> None:
        (drafter / "config.json").write_bytes(b'{"a": "' + b"x" * (1 << 20) + b'"}')
        assert refused(drafter) == ["KE104"]

    def test_link_out_of_the_folder(self, drafter: Path, tmp_path: Path) -> None:
        (drafter / "config.json").rename(tmp_path / "config.json")
        (drafter / "config.json").symlink_to(tmp_path / "config.json")
        assert refused(drafter) == ["KE105"]

    def test_link_into_a_folder_that_is_named_alike(self, drafter: Path) -> None:
        other = drafter.with_name("drafter-2")
        other.mkdir()
        (drafter / "config.json").rename(other / "config.json")
        (drafter / "config.json").symlink_to(other / "config.json")
        assert refused(drafter) == ["KE105"]

    @pytest.mark.parametrize(
        "replace",
        [
            lambda path: path.mkdir(),
            lambda path: os.mkfifo(path),
            lambda path: path.symlink_to("config.json"),
            lambda path: path.symlink_to("nowhere"),
        ],
    )
    def test_no_ordinary_file(self, drafter: Path, replace: Callable[[Path], None]) -> None:
        (drafter / "config.json").unlink()
        replace(drafter / "config.json")
        assert refused(drafter) == ["KE106"]

    def test_lfs_pointer(self, drafter: Path) -> None:
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        (drafter / "model.safetensors").write_bytes(pointer)
        assert refused(drafter) == ["KE117"]
        (drafter / "config.json").write_bytes(pointer)
        assert refused(drafter) == ["KE117"]


class TestWeights:
    def test_none(self, drafter: Path) -> None:
        (drafter / "model.safetensors").unlink()
        assert refused(drafter) == ["KE107"]

    def test_pickled(self, drafter: Path) -> None:
        (drafter / "model.safetensors").rename(drafter / "pytorch_model.bin")
        finding = pickled(drafter)
        assert "pytorch_model.bin" in finding.mend and "save_file" in finding.mend
        assert finding.where == str(drafter / "pytorch_model.bin")

    def test_what_a_trainer_saves_is_no_weights(self, drafter: Path) -> None:
        (drafter / "model.safetensors").unlink()
        for name in TRAINING:
            (drafter / name).touch()
        assert refused(drafter) == ["KE107"]

    @pytest.mark.parametrize(
        ("weights", "converted"),
        [
            (["pytorch_model.bin"], ["pytorch_model.bin"]),
            (["a.pt"], ["a.pt"]),
            (SHARDS, SHARDS),
            ([*SHARDS, "a.bin"], SHARDS),
            (["pytorch_model.bin", *SHARDS, "a.pt"], ["pytorch_model.bin"]),
            ([f"a-{i}-of-3.ckpt" for i in range(3)], [f"a-{i}-of-3.ckpt" for i in range(3)]),
        ],
    )
    def test_the_command_converts_all_weights_and_nothing_else(
        self, drafter: Path, weights: list[str], converted: list[str]
    ) -> None:
        (drafter / "model.safetensors").unlink()
        for name in [*weights, *TRAINING]:
            (drafter / name).touch()
        assert run_pasted(pickled(drafter).mend, drafter).returncode == 0
        assert (drafter / "model.safetensors").read_text().split() == converted

    def test_the_command_stops_for_want_of_a_shard(self, drafter: Path) -> None:
        (drafter / "model.safetensors").rename(drafter / SHARDS[0])
        assert SHARDS[1] in run_pasted(pickled(drafter).mend, drafter).stderr
        assert not (drafter / "model.safetensors").exists()

    @pytest.mark.parametrize(
        "weights",
        [
            ["a.bin", "b.bin"],
            ["consolidated.00.pth", "consolidated.01.pth"],
            ["a-1-of-2.pt", "a-2-of-2.pt", "b-1-of-2.pt"],
            ["$(id)-1-of-2.bin", "$(id)-2-of-2.bin"],
        ],
    )
    def test_no_file_is_named_where_it_is_not_clear_which(
        self, drafter: Path, weights: list[str]
    ) -> None:
        (drafter / "model.safetensors").unlink()
        for name in weights:
            (drafter / name).touch()
        finding = pickled(drafter)
        assert "torch.load('FILE'," in finding.mend
        assert finding.where == str(drafter) and all(name in finding.seen for name in weights)

    @pytest.mark.parametrize(
        "index",
        [
            {},
            {"weight_map": None},
            {"weight_map": []},
            {"weight_map": {}},
            {"weight_map": {"a": 7}},
            {"weight_map": {"a": "../x.safetensors"}},
            {"weight_map": {"a": "pytorch_model.bin"}},
        ],
    )
    def test_index_malformed(self, sharded: Path, index: object) -> None:
        (sharded / INDEX).write_text(json.dumps(index))
        assert refused(sharded) == ["KE109"]

    def test_shard_missing(self, sharded: Path) -> None:
        (sharded / "model-00002-of-00004.safetensors").unlink()
        assert refused(sharded) == ["KE110"]

    def test_shard_not_in_the_index(self, sharded: Path) -> None:
        write_safetensors(sharded / "extra.safetensors", {"x": Tensor((1,))})
        read = read_drafter(str(sharded))
        assert [finding.code for finding in read.findings] == ["KE111"]
        assert "x" not in read.tensors

    @pytest.mark.parametrize("size", [0, 4, 8, 100, -1])
    def test_truncated(self, drafter: Path, size: int) -> None:
        file = drafter / "model.safetensors"
        os.truncate(file, size if size >= 0 else file.stat().st_size - 1)
        assert refused(drafter) == ["KE112"]

    def test_too_long(self, drafter: Path) -> None:
        with (drafter / "model.safetensors").open("ab") as file:
            file.write(b"x")
        assert refused(drafter) == ["KE112"]

    @pytest.mark.parametrize(
        "content",
        [
            b"PK\x03\x04" + bytes(100),
            struct.pack("<Q", 1 << 60) + bytes(100),
            header(b"[]"),
            header(b"{"),
            header(b'{"a": NaN}'),
            header({"a": 7}),
            header({"a": {"dtype": "F32"}}),
            header({"a": {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]}}),
            header({"a": {"dtype": 7, "shape": [1], "data_offsets": [0, 4]}}),
            header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}),
        ],
    )
    def test_header_malformed(self, drafter: Path, content: bytes) -> None:
        (drafter / "model.safetensors").write_bytes(content)
        assert refused(drafter) == ["KE113"]

    @pytest.mark.parametrize(
        ("shape", "offsets"),
        [
            ([2], [0, 4]),
            ([1], [4, 8]),
            ([1], [-4, 0]),
            ([1], [4, 0]),
            ([-1], [0, 4]),
            ([1 << 62, 1 << 62], [0, 4]),
            ([10**9] * 5000, [0, 4]),
        ],
    )
    def test_offsets(self, drafter: Path, shape: list[int], offsets: list[int]) -> None:
        entry = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        (drafter / "model.safetensors").write_bytes(header({"a": entry}) + bytes(8))
        assert refused(drafter) == ["KE114"]

    def test_dtype_unknown(self, drafter: Path) -> None:
        entry = {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}
        (drafter / "model.safetensors").write_bytes(header({"a": entry}) + bytes(4))
        assert refused(drafter) == ["KE114"]

    def test_tensors_overlap(self, drafter: Path) -> None:
        entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        (drafter / "model.safetensors").write_bytes(header({"a": entry, "b": entry}) + bytes(4))
        assert refused(drafter) == ["KE114"]

    def test_a_name_twice_in_a_header(self, drafter: Path) -> None:
        entry = '{"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}'
        text = f'{{"a": {entry}, "a": {entry}}}'.encode()
        (drafter / "model.safetensors").write_bytes(header(text) + b"x")
        assert refused(drafter) == ["KE113"]

    def test_a_tensor_in_two_files(self, drafter: Path) -> None:
        write_safetensors(drafter / "old.safetensors", {"d2t": d2t(range(4))})
        assert refused(drafter) == ["KE115"]

    def test_a_tensor_in_another_shard(self, sharded: Path) -> None:
        index = json.loads((sharded / INDEX).read_text())
        names = sorted(set(index["weight_map"].values()))
        index["weight_map"]["fc.weight"] = names[-1]
        (sharded / INDEX).write_text(json.dumps(index))
        assert refused(sharded) == ["KE116"]

    def test_a_tensor_in_no_shard(self, sharded: Path) -> None:
        index = json.loads((sharded / INDEX).read_text())
        index["weight_map"]["more"] = "model-00001-of-00004.safetensors"
        (sharded / INDEX).write_text(json.dumps(index))
        assert refused(sharded) == ["KE116"]

    def test_header_too_large(self, drafter: Path) -> None:
        with (drafter / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", 5_000_000))
            file.truncate(60_000_000)
        assert refused(drafter) == ["KE104"]


def test_only_config_is_read_for_the_config(drafter: Path) -> None:
    (drafter / "model.safetensors").write_bytes(b"broken")
    assert read_config(str(drafter))["hidden_size"] == 128
