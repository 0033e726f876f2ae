"""Shared fixtures, and the order of the tests: fast ones first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from interpreters import ROOT, Environment, package_standing_in_for_sglang

ORDER = ("measure", "wheels", "engine", "matrix")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run unmarked tests first, then those that read wheels, then engines, release by release."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> tuple[int, str]:
    marked = max((ORDER.index(m) + 1 for m in ORDER if item.get_closest_marker(m)), default=0)
    if ORDER[marked - 1] == "wheels" or not marked:
        return marked, ""
    # A release's warm processes serve all of its tests before the next one's are started.
    return marked, str(getattr(item, "callspec", None) and item.callspec.params.get("release"))  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def torch_layer() -> Path:
    """Torch of the engines' environments, importable here from now on; one thread of it."""
    from cpu_engine.environments import ensure_torch

    folder = ensure_torch()
    # Behind everything else: only what this environment lacks comes from there.
    sys.path.append(str(folder))
    import torch

    torch.set_num_threads(1)
    return folder


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's own wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel installed, and a stand-in for SGLang 0.5.9's package."""
    environment = Environment(tmp_path_factory.mktemp("installed") / "venv")
    environment.pip("install", "--no-deps", str(wheel))
    package_standing_in_for_sglang(environment.site, framework=False)
    return environment
