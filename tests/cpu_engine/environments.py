"""Virtual environments with unmodified SGLang wheels, sharing one torch.

    python -m cpu_engine.environments 0.5.23 0.5.9 [--plugin]

An environment is a stack of thin layers.  Each is a virtual environment whose ``.pth``
file puts the layers below it on the path:

    torch  <  common  <  transformers-X  <  SGLang (stock)
                                         <  SGLang and this project's wheel (plugin)

Layers are built when first asked for, in ``.engines`` at the root of the repository or
where SGLANG_KIMI_EAGLE_ENGINES says, and rebuilt when their requirements change.
"""

import argparse
import base64
import csv
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cpu_engine.releases import RELEASES, generation

REPOSITORY = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
FOLDER_VARIABLE = "SGLANG_KIMI_EAGLE_ENGINES"
_PATH_FILE = "_layers_below.pth"
_IN_THE_WHEEL = (
    "LICENSE",
    "README.md",
    "patches",
    "pyproject.toml",
    "sglang_kimi_eagle",
    "startup_hook",
)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Environment:
    """A virtual environment that holds one SGLang release."""

    release: str
    root: Path
    plugin: bool

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where SGLang and, with the plugin, this project's wheel are installed."""
        return _site_packages(self.root)

    def record_mismatches(self) -> list[str]:
        """Installed files of SGLang that differ from its RECORD, or that it does not list."""
        (dist_info,) = self.site_packages.glob("sglang-*.dist-info")
        listed: set[str] = set()
        wrong: list[str] = []
        for name, digest, _size in csv.reader((dist_info / "RECORD").read_text().splitlines()):
            listed.add(name)
            if digest and _digest(self.site_packages / name) != digest:
                wrong.append(name)
        for path in sorted((self.site_packages / "sglang").rglob("*")):
            name = path.relative_to(self.site_packages).as_posix()
            if path.is_file() and "__pycache__" not in path.parts and name not in listed:
                wrong.append(name)
        return wrong


@dataclass(frozen=True)
class _Layer:
    """A folder to build: what goes into it and the layers it stands on."""

    root: Path
    arguments: tuple[str, ...]
    content: str
    below: tuple["_Layer", ...] = ()

    @property
    def stamp(self) -> str:
        parts = [sys.version, self.content, *(layer.stamp for layer in self.below)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    @property
    def finished(self) -> bool:
        return _read(self.root / "finished") == self.stamp

    def build(self, progress: Progress) -> None:
        for layer in self.below:
            layer.build(progress)
        if self.finished:
            return
        shutil.rmtree(self.root, ignore_errors=True)
        with _step(progress, f"building {self.root.name}"):
            venv.create(self.root, symlinks=True)
            paths = [path for layer in self.below for path in _import_paths(layer.root)]
            (_site_packages(self.root) / _PATH_FILE).write_text("\n".join(paths) + "\n")
            _pip(self.root, "install", *self.arguments)
            (self.root / "finished").write_text(self.stamp)


def ensure(release: str, *, plugin: bool, progress: Progress | None = None) -> Environment:
    """The environment of ``release``, built first where necessary.

    With ``plugin`` the project's wheel, built from the sources as they are now, is
    installed in it.
    """
    if release not in RELEASES:
        raise ValueError(f"SGLang {release} is not one of {', '.join(RELEASES)}")
    say = progress or (lambda _line: None)
    folder = _engines_folder()
    root = folder / f"sglang-{release}{'-plugin' if plugin else ''}"
    with _lock(folder, say):
        _release_layer(folder, root, release).build(say)
        if plugin:
            _install_plugin(folder, root, say)
    return Environment(release, root, plugin)


def ensure_torch(progress: Progress | None = None) -> Path:
    """The site-packages of the torch layer, built first where necessary."""
    say = progress or (lambda _line: None)
    folder = _engines_folder()
    layer = _requirements_layer(folder, "torch", closed=False)
    with _lock(folder, say):
        layer.build(say)
    return _site_packages(layer.root)


def bench_packages(progress: Progress | None = None) -> Path:
    """What ``sglang.bench_serving`` imports beside an environment's own packages, as a folder."""
    say = progress or (lambda _line: None)
    folder = _engines_folder()
    with _lock(folder, say):
        layer = _requirements_layer(folder, "bench_serving")
        layer.build(say)
    return _site_packages(layer.root)


def _release_layer(folder: Path, root: Path, release: str) -> _Layer:
    torch = _requirements_layer(folder, "torch", closed=False)
    common = _requirements_layer(folder, "common", torch)
    transformers = _requirements_layer(folder, generation(release), torch, common)
    requirement = f"sglang=={release}"
    return _Layer(root, ("--no-deps", requirement), requirement, (torch, common, transformers))


def _requirements_layer(folder: Path, name: str, *below: _Layer, closed: bool = True) -> _Layer:
    """A layer of third-party packages; a ``closed`` list names all their dependencies."""
    path = REQUIREMENTS / f"{name}.txt"
    arguments = (*(("--no-deps",) if closed else ()), "--requirement", str(path))
    return _Layer(folder / name, arguments, path.read_text(), below)


def _engines_folder() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or REPOSITORY / ".engines").resolve()


def _install_plugin(folder: Path, root: Path, progress: Progress) -> None:
    sources = _sources_digest()
    if _read(root / "plugin") == sources:
        return
    (root / "plugin").unlink(missing_ok=True)
    wheels = folder / "wheels" / sources
    if not list(wheels.glob("*.whl")):
        shutil.rmtree(wheels.parent, ignore_errors=True)
        with _step(progress, "building the wheel of this project"):
            _run("wheel", "--no-deps", "--wheel-dir", str(wheels), str(REPOSITORY))
    (wheel,) = wheels.glob("*.whl")
    with _step(progress, f"installing {wheel.name} into {root.name}"):
        _pip(root, "install", "--force-reinstall", "--no-deps", str(wheel))
        _pip(root, "install", str(wheel))
    (root / "plugin").write_text(sources)


def _sources_digest() -> str:
    """A digest of the files that the wheel is built from."""
    digest = hashlib.sha256()
    for top in (REPOSITORY / name for name in _IN_THE_WHEEL):
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0")
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _pip(root: Path, *arguments: str) -> None:
    command, *rest = arguments
    _run("--python", str(root / "bin" / "python"), command, "--no-compile", *rest)


def _run(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")


def _site_packages(root: Path) -> Path:
    return root / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _import_paths(root: Path) -> Iterator[str]:
    """A layer's site-packages and the folders within that packages add by ``.pth`` files.

    Python reads such files in an environment's own site-packages only.
    """
    site_packages = _site_packages(root)
    yield str(site_packages)
    for file in sorted(site_packages.glob("*.pth")):
        if file.name != _PATH_FILE:
            lines = [line for line in file.read_text().splitlines() if line[:6] != "import"]
            yield from (str(site_packages / line) for line in lines if line)


def _digest(path: Path) -> str:
    """The digest of a file as RECORD writes it; empty for a missing file."""
    if not path.is_file():
        return ""
    raw = hashlib.sha256(path.read_bytes()).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


@contextmanager
def _step(progress: Progress, text: str) -> Iterator[None]:
    progress(f"{text} ...")
    begun = time.monotonic()
    yield
    progress(f"{text}: {time.monotonic() - begun:.0f} s")


@contextmanager
def _lock(folder: Path, progress: Progress) -> Iterator[None]:
    """Let one process at a time build in ``folder``, which git is told to ignore."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that builds in {folder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Build environments of SGLang releases.")
    parser.add_argument("releases", nargs="+", choices=RELEASES, metavar="release")
    parser.add_argument("--plugin", action="store_true", help="with this project's wheel too")
    options = parser.parse_args(arguments)
    for release in options.releases:
        for plugin in (False, True) if options.plugin else (False,):
            environment = ensure(
                release, plugin=plugin, progress=lambda line: print(line, flush=True)
            )
            print(environment.python)


if __name__ == "__main__":
    main()
