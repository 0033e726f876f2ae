"""The patches for Kimi-K3: current, applicable beside the others, known to the plugin, tested."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cpu_engine.environments import ensure
from patching.pull_request import FOLDER, K3_PATCH, K3_TEST, kimi_k3_patch
from patching.sources import stock_copy
from sglang_kimi_eagle.adapters import kimi_k3
from sglang_kimi_eagle.patching.diffs import parse
from sglang_kimi_eagle.patching.kimi_k3 import KIMI_K3, generate_kimi_k3
from sglang_kimi_eagle.patching.shipped import folder, patch_of
from sglang_kimi_eagle.releases import NEWEST
from sglang_kimi_eagle.upstream import Installation, Sources, inspect
from wheels import unpacked

every_release = pytest.mark.parametrize("version", kimi_k3.PROVED)


def patch_file(version: str) -> Path:
    return folder() / "kimi-k3" / f"sglang-{version}.patch"


def test_there_is_one_for_each_release_with_the_model() -> None:
    names = {path.name for path in (folder() / "kimi-k3").iterdir()}
    assert names == {f"sglang-{version}.patch" for version in kimi_k3.PROVED}


@every_release
def test_it_is_apart_from_the_releases_own(version: str) -> None:
    (file,) = parse(patch_file(version).read_text()).files
    assert file.path == KIMI_K3
    assert KIMI_K3 not in {other.path for other in patch_of(version).files}


@pytest.mark.wheels
@every_release
def test_generating_again_gives_no_difference(version: str) -> None:
    assert generate_kimi_k3(unpacked(version), version).render() == patch_file(version).read_text()


@pytest.mark.wheels
@every_release
def test_git_takes_it_and_the_plugin_stands_aside(version: str, tmp_path: Path) -> None:
    package = tmp_path / "python" / "sglang"
    stock_copy(version, package)
    shutil.copy(unpacked(version) / KIMI_K3, package / KIMI_K3)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    subprocess.run(["git", "apply", patch_file(version)], cwd=tmp_path, check=True)
    for architecture in kimi_k3.KIMI_K3.architectures:
        found = inspect(Installation(package, version), kimi_k3.KIMI_K3, architecture)
        assert found.missing_methods == ()
        assert found.release is not None and found.release.wrapper_methods
        assert {finding.code for finding in found.findings} == {"KE005"}
    assert kimi_k3.store_of(Sources(package)) == kimi_k3.OWN


@pytest.mark.wheels
def test_the_commit_is_current() -> None:
    assert (FOLDER / K3_PATCH).read_text() == kimi_k3_patch()


@pytest.mark.engine
def test_its_tests_fail_on_the_release_and_pass_with_it(tmp_path: Path) -> None:
    environment = ensure(NEWEST, plugin=False)

    def run(*path: Path) -> int:
        stand_ins = Path(__file__).with_name("stand_ins")
        search = os.pathsep.join(map(str, (*path, stand_ins)))
        return subprocess.run(
            [environment.python, FOLDER / K3_TEST],
            capture_output=True,
            env={**os.environ, "PYTHONPATH": search},
        ).returncode

    assert run() != 0
    package = tmp_path / "sglang"
    shutil.copytree(environment.site_packages / "sglang", package)
    (file,) = parse((FOLDER / K3_PATCH).read_text()).files
    content = file.apply((package / KIMI_K3).read_bytes())
    assert content is not None
    (package / KIMI_K3).write_bytes(content)
    assert run(tmp_path) == 0
