"""The start-up hook: a `.pth` and its boot module, in real interpreters."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from interpreters import ROOT, Environment, package_standing_in_for_sglang

ACTIVE = "import sglang_kimi_eagle.activation as a; print('by', a.process.found_by or 'nobody')"
AFTER_IMPORT = f"import sglang; {ACTIVE}"


def test_import_of_sglang_activates_the_plugin(installed: Environment) -> None:
    result = installed.run(AFTER_IMPORT)
    assert result.stdout == "by start-up hook\n", result.stderr
    assert result.stderr == ""


def test_nothing_is_imported_before_sglang_is(installed: Environment) -> None:
    code = "import sys; print([m for m in sys.modules if 'kimi_eagle' in m or m == 'wrapt'])"
    assert installed.run(code).stdout == "['_sglang_kimi_eagle_boot']\n"


@pytest.mark.parametrize("flags", [("-I",), ("-E", "-s")])
def test_isolated_interpreters_have_the_hook_too(
    installed: Environment, flags: tuple[str, ...]
) -> None:
    assert installed.run(AFTER_IMPORT, *flags).stdout == "by start-up hook\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_children_of_every_start_method_have_the_hook(
    installed: Environment, tmp_path: Path, method: str
) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing\n"
        "def child():\n"
        f"    {AFTER_IMPORT}\n"
        "if __name__ == '__main__':\n"
        f"    process = multiprocessing.get_context({method!r}).Process(target=child)\n"
        "    process.start(); process.join()\n"
    )
    result = subprocess.run(
        [installed.python, script], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.stdout == "by start-up hook\n", result.stderr


def test_site_may_run_the_hook_twice(installed: Environment) -> None:
    code = (
        "import site, sys; site.addsitedir(site.getsitepackages()[0]);"
        "print(sum('SglangImportTrigger' in repr(f) for f in sys.meta_path))"
    )
    assert installed.run(code).stdout == "1\n"


def test_the_switch_turns_it_off(installed: Environment) -> None:
    result = installed.run(AFTER_IMPORT, environ={"SGLANG_KIMI_EAGLE": "0"})
    assert result.stdout == "by nobody\n"


def test_a_release_with_a_plugin_framework_is_left_to_it(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.pip("install", "--no-deps", str(wheel))
    package_standing_in_for_sglang(environment.site, framework=True)
    assert environment.run(AFTER_IMPORT).stdout == "by nobody\n"
    loaded = "from sglang_kimi_eagle.entry import plugin; plugin(); plugin();" + ACTIVE
    assert environment.run(loaded).stdout == "by sglang.srt.plugins\n"


def test_whoever_comes_first_activates_once(installed: Environment) -> None:
    code = f"import sglang; from sglang_kimi_eagle.entry import plugin; plugin(); {ACTIVE}"
    assert installed.run(code).stdout == "by start-up hook\n"


def test_uninstalling_removes_every_trace(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    before = {path.name for path in environment.site.iterdir()}
    environment.pip("install", "--no-deps", str(wheel))
    assert (environment.site / "sglang_kimi_eagle.pth").is_file()
    environment.run("pass")
    environment.pip("uninstall", "--yes", "sglang-kimi-eagle")
    left = {path.name for path in environment.site.iterdir()} - before
    assert left <= {"__pycache__"}
    assert environment.run("print('fine')").stdout == "fine\n"


def test_an_editable_install_has_the_hook(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.pip("install", "--no-deps", "--editable", str(ROOT))
    package_standing_in_for_sglang(environment.site, framework=False)
    assert environment.run(AFTER_IMPORT).stdout == "by start-up hook\n"


@pytest.mark.parametrize(
    "boot",
    [
        None,
        "raise RuntimeError('broken')",
        "raise SystemExit(7)",
        "raise KeyboardInterrupt",
        "syntax error",
    ],
)
def test_a_broken_boot_module_never_stops_an_interpreter(
    wheel: Path, tmp_path: Path, boot: str | None
) -> None:
    environment = Environment(tmp_path / "venv")
    environment.pip("install", "--no-deps", str(wheel))
    module = environment.site / "_sglang_kimi_eagle_boot.py"
    module.unlink()
    if boot is not None:
        module.write_text(boot)
    result = environment.run("print('started')")
    assert (result.returncode, result.stdout) == (0, "started\n")


def test_sglang_imported_before_the_hook_is_no_obstacle(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.pip("install", "--no-deps", str(wheel))
    package_standing_in_for_sglang(environment.site, framework=False)
    (environment.site / "a_first.pth").write_text("import sglang\n")
    assert environment.run(AFTER_IMPORT).stdout == "by start-up hook\n"


def test_an_editable_sglang_is_found_by_its_own_finder(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.pip("install", "--no-deps", str(wheel))
    package_standing_in_for_sglang(tmp_path / "checkout", framework=True)
    (environment.site / "_editable_finder.py").write_text(
        "import sys, importlib.util as u\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        folder = {str(tmp_path / 'checkout' / 'sglang')!r}\n"
        "        if name == 'sglang':\n"
        "            return u.spec_from_file_location(\n"
        "                name, folder + '/__init__.py', submodule_search_locations=[folder])\n"
        "sys.meta_path.append(Finder)\n"
    )
    (environment.site / "z_editable.pth").write_text("import _editable_finder\n")
    assert environment.run(AFTER_IMPORT).stdout == "by nobody\n"
    found = environment.run(
        "from sglang_kimi_eagle.upstream import find_sglang; print(find_sglang().package)"
    )
    assert found.stdout == f"{tmp_path / 'checkout' / 'sglang'}\n"


class TestPluginThatCannotBeImported:
    """SGLang would log it and go on; a launch that needs the plugin must not."""

    @pytest.fixture
    def broken(self, wheel: Path, tmp_path: Path) -> Environment:
        environment = Environment(tmp_path / "venv")
        environment.pip("install", "--no-deps", str(wheel))
        package_standing_in_for_sglang(environment.site, framework=False)
        (environment.site / "sglang_kimi_eagle" / "capture.py").write_text("raise ValueError")
        return environment

    LAUNCH = "import sys; sys.argv = ['launch_server', *{argv}]; import sglang; print('went on')"

    def run(self, environment: Environment, *argv: str, **environ: str) -> tuple[int, str, str]:
        result = environment.run(self.LAUNCH.format(argv=list(argv)), environ=environ)
        return result.returncode, result.stdout, result.stderr

    def test_it_stops_an_eagle3_launch(self, broken: Environment) -> None:
        status, out, err = self.run(broken, "--speculative-algorithm", "EAGLE3")
        assert (status, out) == (3, "")
        assert "KE007" in err and "SGLANG_KIMI_EAGLE=0" in err and "Traceback" not in err

    def test_it_lets_other_launches_go_on(self, broken: Environment, tmp_path: Path) -> None:
        other = tmp_path / "other"
        other.mkdir()
        (other / "config.json").write_text('{"model_type": "llama"}')
        for argv in (
            [],
            ["--speculative-algorithm=NGRAM"],
            ["--speculative-algorithm=EAGLE3", f"--model-path={other}"],
        ):
            status, out, err = self.run(broken, *argv)
            assert (status, out) == (0, "went on\n")
            assert "KE007" in err

    def test_the_switch_silences_it(self, broken: Environment) -> None:
        status, out, _err = self.run(
            broken, "--speculative-algorithm", "EAGLE3", SGLANG_KIMI_EAGLE="0"
        )
        assert (status, out) == (0, "went on\n")
