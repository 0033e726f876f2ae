"""The pull request: current, small, applicable, and covered by its own tests on the engine."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path
from unittest.mock import patch as replaced

import coverage
import pytest

from cpu_engine.environments import ensure
from patching.formatters import complaints
from patching.other_models import rules_on_ids, with_table
from patching.pull_request import (
    BACKPORT,
    FOLDER,
    FOLLOW_UP,
    FOLLOW_UP_TEST,
    OTHER_MODELS,
    PATCH,
    TEST,
    backport,
    copy_with_patches,
    follow_up,
    pull_request,
)
from patching.sources import stock_copy
from sglang_kimi_eagle.patching.diffs import PREFIX, FilePatch, parse
from sglang_kimi_eagle.releases import NEWEST, OLDEST
from wheels import unpacked

GIT = ("git", "-c", "user.name=Tester", "-c", "user.email=tester@example.com")


def files() -> tuple[FilePatch, ...]:
    """The changes to SGLang's package; those to its tests have another root."""
    return parse((FOLDER / PATCH).read_text()).files


def changed_paths(patch: str) -> list[str]:
    """Return all files that a patch changes, tests included."""
    lines = (FOLDER / patch).read_text().splitlines()
    return [line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")]


def added(file: FilePatch) -> set[int]:
    """Return the numbers of the lines that a change adds."""
    numbers = set()
    for hunk in file.hunks:
        number = hunk.new_start
        for line in hunk.lines:
            number += line[0] != "-"
            if line[0] == "+":
                numbers.add(number)
    return numbers


def git(folder: Path, *words: str) -> None:
    done = subprocess.run([*GIT, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def checkout(folder: Path, version: str) -> Path:
    """A repository that holds the changed files of a release."""
    stock_copy(version, folder / PREFIX)
    other = "srt/models/glm4_moe_lite.py"
    shutil.copy(unpacked(version) / other, folder / PREFIX / other)
    git(folder, "init", "--quiet", ".")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", version)
    return folder


@pytest.mark.wheels
def test_it_is_current() -> None:
    assert (FOLDER / PATCH).read_text() == pull_request()
    assert (FOLDER / FOLLOW_UP).read_text() == follow_up()
    assert (FOLDER / BACKPORT).read_text() == backport()
    others = (FOLDER / OTHER_MODELS).read_text()
    assert others == with_table(others, unpacked(NEWEST))


@pytest.mark.wheels
def test_every_target_with_a_rule_on_the_ids_is_patched_or_named() -> None:
    with_rule = {file for files in rules_on_ids(unpacked(NEWEST)).values() for file in files}
    assert with_rule == {"deepseek_v2.py", "glm4_moe_lite.py", "gpt_oss.py"}
    patched = (FOLDER / PATCH).read_text() + (FOLDER / FOLLOW_UP).read_text()
    for file in with_rule:
        assert f"srt/models/{file}" in patched or f"`{file}`" in (FOLDER / OTHER_MODELS).read_text()


@pytest.mark.wheels
@pytest.mark.parametrize("patch", [PATCH, FOLLOW_UP])
def test_upstreams_formatters_find_nothing_new(patch: str, tmp_path: Path) -> None:
    repository = checkout(tmp_path, NEWEST)
    changed = changed_paths(patch)
    existing = [path for path in changed if (repository / path).exists()]
    before = complaints(repository, existing, NEWEST)
    git(repository, "apply", str(FOLDER / patch))
    assert complaints(repository, changed, NEWEST) <= before


@pytest.mark.wheels
@pytest.mark.parametrize("test", [TEST, FOLLOW_UP_TEST])
def test_upstreams_ci_finds_and_runs_its_tests(test: str) -> None:
    register = unpacked(NEWEST) / "test/ci/ci_register.py"
    spec = importlib.util.spec_from_file_location("ci_register", register)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    with replaced.dict(sys.modules, {"ci_register": module}):
        spec.loader.exec_module(module)
    (registered,), runs_as_a_script = module.ut_parse_one_file(str(FOLDER / test))
    assert registered.backend is module.HWBackend.CPU
    assert registered.effective_suite == "base-a-test-cpu"
    assert not registered.disabled
    assert runs_as_a_script


@pytest.mark.wheels
def test_git_takes_it_with_its_message_and_tests(tmp_path: Path) -> None:
    repository = checkout(tmp_path, NEWEST)
    git(repository, "am", str(FOLDER / PATCH))
    assert (repository / TEST).read_text() == (FOLDER / TEST).read_text()
    message = subprocess.run(
        ["git", "log", "-1", "--format=%B"], cwd=repository, capture_output=True, text=True
    ).stdout
    assert message.strip() == (FOLDER / "commit_message.txt").read_text().strip()
    git(repository, "am", str(FOLDER / FOLLOW_UP))
    assert (repository / FOLLOW_UP_TEST).read_text() == (FOLDER / FOLLOW_UP_TEST).read_text()


@pytest.mark.wheels
def test_the_change_is_small(tmp_path: Path) -> None:
    repository = checkout(tmp_path, NEWEST)
    git(repository, "am", str(FOLDER / PATCH))
    lines = 0
    for file in files():
        lines += len(added(file) & code_lines((repository / PREFIX / file.path).read_text()))
    assert lines < 80, lines


def code_lines(text: str) -> set[int]:
    """Return the numbers of lines that are neither blank, nor comment, nor docstring."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


@pytest.mark.wheels
def test_the_backport_is_small_and_applies(tmp_path: Path) -> None:
    repository = checkout(tmp_path, OLDEST)
    git(repository, "apply", "--check", str(FOLDER / BACKPORT))
    patch = parse((FOLDER / BACKPORT).read_text())
    for file in patch.files:
        path = repository / PREFIX / file.path
        content = file.apply(path.read_bytes())
        assert content is not None
        path.write_bytes(content)
    lines = 0
    for file in patch.files:
        lines += len(added(file) & code_lines((repository / PREFIX / file.path).read_text()))
    assert lines <= 20, lines


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole SGLang with the pull request, as a repository."""
    folder = tmp_path_factory.mktemp("pull_request")
    installed = ensure(NEWEST, plugin=False).site_packages / "sglang"
    copy_with_patches(installed, folder, PATCH, FOLLOW_UP)
    return folder


def run_upstream_test(
    folder: Path, *command: str, test: str = TEST
) -> subprocess.CompletedProcess[str]:
    """Run a test file of the pull request on the SGLang in ``folder``, or the engine's own."""
    python = ensure(NEWEST, plugin=False).python
    stand_ins = Path(__file__).with_name("stand_ins")
    return subprocess.run(
        [python, *command, FOLDER / test],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, stand_ins)))},
    )


@pytest.mark.engine
def test_its_tests_fail_on_the_release(tmp_path: Path) -> None:
    done = run_upstream_test(tmp_path)
    assert done.returncode != 0
    assert "sglang.srt.speculative.eagle_layer_ids" in done.stderr


@pytest.mark.engine
def test_the_follow_ups_test_passes_on_its_tree_only(patched: Path, tmp_path: Path) -> None:
    assert run_upstream_test(tmp_path, test=FOLLOW_UP_TEST).returncode != 0
    done = run_upstream_test(patched / "python", test=FOLLOW_UP_TEST)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.engine
def test_its_tests_pass_on_the_patched_tree_and_cover_the_change(
    patched: Path, tmp_path: Path
) -> None:
    # Only coverage itself may come from this environment.
    parent = patched / "python"
    if not (parent / "coverage").exists():
        (parent / "coverage").symlink_to(Path(coverage.__file__).parent)
    data = f"--data-file={tmp_path / 'data'}"
    included = ",".join(str(patched / PREFIX / file.path) for file in files())
    done = run_upstream_test(parent, "-m", "coverage", "run", data, f"--include={included}")
    assert done.returncode == 0, done.stdout + done.stderr
    report = tmp_path / "report.json"
    subprocess.run(
        [ensure(NEWEST, plugin=False).python, "-m", "coverage", "json", data, "-o", report],
        check=True,
        capture_output=True,
        cwd=parent,
        env={**os.environ, "PYTHONPATH": str(parent)},
    )
    executed, missed = 0, []
    measured = json.loads(report.read_text())["files"]
    for file in files():
        (lines,) = (entry for path, entry in measured.items() if path.endswith(file.path))
        executed += len(added(file) & set(lines["executed_lines"]))
        missed += [f"{file.path}:{n}" for n in added(file) & set(lines["missing_lines"])]
    print(f"{executed} of {executed + len(missed)} changed lines are covered; not: {missed}")
    assert executed >= 0.9 * (executed + len(missed)), missed
