"""``sglang-kimi-eagle watch``."""

from __future__ import annotations

import importlib
import json
import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli_drafters import write_drafter
from sglang_kimi_eagle.cli import app
from sglang_kimi_eagle.watching.exposition import parse
from watched_server import Pages, WatchedServer, answering, recorded, reply

RIGHT, WRONG = "0.5.12.post1", "0.5.23"
KEYS = {
    "schema",
    "url",
    "status",
    "verdict",
    "likely",
    "server",
    "wiring",
    "acceptance",
    "throughput",
    "baseline",
    "findings",
}


def run(*arguments: object, **environ: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(
        app,
        ["watch", *(str(argument) for argument in arguments)],
        env={"COLUMNS": "200", **environ},
    )
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def once(pages: Pages, *arguments: object) -> dict[str, Any]:
    with WatchedServer(pages) as server:
        status, output, _ = run(server.url, "--once", "--json", *arguments)
    found: dict[str, Any] = json.loads(output)
    assert found["status"] == status
    assert set(found) == KEYS
    return found


@pytest.fixture
def undeclared(tmp_path: Path) -> Path:
    return write_drafter(tmp_path / "drafter", ids=[2, 4, 6])


class TestOnce:
    @pytest.mark.parametrize("kind", ["metrics", "plain"])
    def test_the_wrong_wiring_is_flagged(self, undeclared: Path, kind: str) -> None:
        found = once(recorded(WRONG, kind), "--drafter", undeclared)
        assert (found["verdict"], found["status"]) == ("wrong_wiring", 1)
        assert found["wiring"]["states"] == [2, 4, 6]
        assert found["findings"][0]["code"] == "KE851"
        assert found["acceptance"]["length"] == pytest.approx(2.2857)
        assert found["acceptance"]["rate"] == pytest.approx(1.2857 / 3, abs=1e-3)
        assert found["acceptance"]["verify_steps"] == 621

    @pytest.mark.parametrize("release", ["0.5.9", RIGHT])
    @pytest.mark.parametrize("kind", ["metrics", "plain"])
    def test_the_right_wiring_is_not(self, undeclared: Path, release: str, kind: str) -> None:
        found = once(recorded(release, kind), "--drafter", undeclared)
        assert found["verdict"] == "ok"
        assert found["wiring"]["states"] == [3, 5, 7]

    def test_with_a_baseline(self, undeclared: Path, tmp_path: Path) -> None:
        baseline = tmp_path / "baseline.json"
        with WatchedServer(recorded(RIGHT)) as server:
            status, _, _ = run(server.url, "--save-baseline", baseline, "--drafter", undeclared)
        assert status == 0
        saved = json.loads(baseline.read_text())
        assert saved["states"] == [3, 5, 7] and saved["sglang"] == RIGHT
        found = once(recorded(WRONG), "--drafter", undeclared, "--baseline", baseline)
        assert (found["verdict"], found["likely"]) == ("wrong_wiring", True)
        assert found["baseline"]["length_ratio"] == pytest.approx(0.64, abs=0.01)
        again = once(recorded(RIGHT), "--drafter", undeclared, "--baseline", baseline)
        assert again["verdict"] == "ok"

    def test_with_a_bare_length(self, undeclared: Path) -> None:
        found = once(recorded(WRONG), "--drafter", undeclared, "--baseline-length", 3.5)
        assert found["verdict"] == "wrong_wiring"
        assert once(recorded(RIGHT), "--baseline-length", 3.5)["verdict"] == "ok"

    def test_before_any_traffic(self) -> None:
        found = once(recorded(WRONG, when="before"))
        assert (found["verdict"], found["status"]) == ("not_enough_data", 1)
        assert found["acceptance"]["length"] is None

    def test_without_speculation(self) -> None:
        pages = recorded(WRONG)
        for part in (pages["/server_info"], *pages["/server_info"]["internal_states"]):
            part.update({key: None for key in part if key.startswith("speculative")})
        found = once(pages)
        assert (found["verdict"], found["status"]) == ("not_speculating", 3)
        assert found["findings"][0]["code"] == "KE866"

    def test_with_draft_settings_that_cannot_be(self) -> None:
        pages = recorded(WRONG)
        for part in (pages["/server_info"], *pages["/server_info"]["internal_states"]):
            part.update(speculative_num_steps="x", speculative_num_draft_tokens=-1)
        del pages["/metrics"]
        found = once(pages)
        assert (found["verdict"], found["status"]) == ("not_speculating", 3)
        (finding,) = found["findings"]
        assert finding["code"] == "KE866" and "EAGLE3" in finding["seen"]
        assert "without spec" not in finding["message"] + finding["mend"]

    @pytest.mark.parametrize(
        ("page", "code"),
        [
            (answering(b"<html>", kind="text/html"), "KE862"),
            (answering(b"", status=302, Location="http://elsewhere"), "KE863"),
            (answering(b"", status=401), "KE865"),
            (answering(b"", status=503), "KE861"),
        ],
    )
    def test_of_a_server_that_cannot_be_read(self, page: Any, code: str) -> None:
        found = once({"/server_info": page})
        assert (found["verdict"], found["status"]) == ("unreachable", 3)
        assert found["findings"][0]["code"] == code

    def test_silenced_findings_do_not_count(self, undeclared: Path) -> None:
        with WatchedServer(recorded(WRONG)) as server:
            status, _, errors = run(
                *(server.url, "--once", "--drafter", undeclared),
                SGLANG_KIMI_EAGLE_IGNORE="KE851,KE861",
            )
            assert status == 0 and "KE851" not in errors
        assert run(server.url, "--once", SGLANG_KIMI_EAGLE_IGNORE="KE861")[0] == 3

    def test_strict_mode_does_not_turn_a_verdict_into_an_unreachable_server(
        self, undeclared: Path
    ) -> None:
        with WatchedServer(recorded(WRONG)) as server:
            status, _, _ = run(
                *(server.url, "--once", "--drafter", undeclared), SGLANG_KIMI_EAGLE_STRICT="1"
            )
        assert status == 1

    def test_the_override_counts_as_in_a_launch(self, undeclared: Path) -> None:
        with WatchedServer(recorded(WRONG)) as server:
            _, output, _ = run(
                *(server.url, "--once", "--json", "--drafter", undeclared),
                SGLANG_KIMI_EAGLE_STATES="3,5,7",
            )
        assert json.loads(output)["wiring"]["standing"] == "needs plugin"


def test_the_table_and_the_finding_are_for_people(undeclared: Path) -> None:
    with WatchedServer(recorded(WRONG)) as server:
        status, output, errors = run(server.url, "--once", "--drafter", undeclared)
    assert status == 1
    assert "looks like a wrong wiring" in output and "2.29" in output
    assert "KE851 warning" in errors and "probe --launch" in errors


@pytest.mark.parametrize("columns", ["1", "20", "99999999"])
def test_a_terminal_of_any_width_is_written_to(columns: str) -> None:
    with WatchedServer(recorded(RIGHT)) as server:
        status, output, _ = run(server.url, "--once", COLUMNS=columns)
    assert status == 0 and len(output) < 100_000


class TestBaselines:
    def test_are_not_saved_of_a_server_that_looks_wrong(
        self, undeclared: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "baseline.json"
        for when in ("before", "after"):
            with WatchedServer(recorded(WRONG, when=when)) as server:
                status, _, errors = run(
                    server.url, "--save-baseline", path, "--drafter", undeclared
                )
            assert status == 1 and "KE869" in errors and not path.exists()

    def test_that_cannot_be_written_are_said(self, tmp_path: Path) -> None:
        with WatchedServer(recorded(RIGHT)) as server:
            for path in (tmp_path / "no" / "folder", tmp_path):
                status, _, errors = run(server.url, "--save-baseline", path)
                assert status == 1 and "KE869" in errors
        assert list(tmp_path.iterdir()) == []

    def test_that_cannot_be_read_end_it(self, tmp_path: Path) -> None:
        status, _, errors = run("http://localhost", "--baseline", tmp_path / "none")
        assert status == 2 and "KE867" in errors


class TestPrometheus:
    def test_text_has_every_figure(self, undeclared: Path) -> None:
        with WatchedServer(recorded(WRONG)) as server:
            status, output, _ = run(server.url, "--prometheus", "--drafter", undeclared)
        assert status == 1
        names = re.findall(r"^# TYPE (\S+) gauge$", output, re.M)
        assert len(names) == len(set(names)) >= 9
        samples = parse(output, frozenset(names))
        assert len(samples) == len([line for line in output.splitlines() if line[0] != "#"])
        assert all(name.startswith("sglang_kimi_eagle_") for name in names)
        values = {sample.name.removeprefix("sglang_kimi_eagle_"): sample for sample in samples}
        assert values["up"].value == 1
        assert values["acceptance_length"].value == pytest.approx(2.2857, abs=1e-4)
        assert values["server_info"].labels["states"] == "h[2], h[4], h[6]"
        verdicts = {s.labels["verdict"]: s.value for s in samples if s.name.endswith("verdict")}
        assert {name for name, value in verdicts.items() if value} == {"wrong_wiring"}

    def test_names_of_others_are_escaped(self) -> None:
        pages = recorded(RIGHT)
        for part in (pages["/server_info"], *pages["/server_info"]["internal_states"]):
            part["speculative_draft_model_path"] = 'a"} 1\nfake{x="\\'
        with WatchedServer(pages) as server:
            _, output, _ = run(server.url, "--prometheus")
        assert not any(line.startswith("fake") for line in output.splitlines())

    def test_a_server_that_is_down_is_a_figure_too(self) -> None:
        with WatchedServer({}) as server:
            pass
        status, output, _ = run(server.url, "--prometheus")
        assert status == 3
        assert f'sglang_kimi_eagle_up{{server="{server.url}"}} 0' in output
        assert 'verdict="unreachable"} 1' in output


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class TestLive:
    @pytest.fixture(autouse=True)
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # The package's attribute of that name is the function.
        module = importlib.import_module("sglang_kimi_eagle.cli.watch")
        monkeypatch.setattr(module, "time", Clock())

    def test_one_line_of_json_for_each_reading(self) -> None:
        with WatchedServer(recorded(RIGHT)) as server:
            status, output, _ = run(server.url, "--json", "--for", 25)
        lines = [json.loads(line) for line in output.splitlines()]
        assert status == 0 and len(lines) == 6
        assert all(set(line) == KEYS and line["verdict"] == "ok" for line in lines)

    def test_a_server_that_goes_away_and_comes_back(self) -> None:
        pages = recorded(RIGHT)
        info, asked = pages["/server_info"], []

        def sometimes(handler: BaseHTTPRequestHandler) -> None:
            asked.append(1)
            if len(asked) in (2, 3):
                reply(handler, b"", status=503)
            else:
                reply(handler, json.dumps(info).encode())

        pages["/server_info"] = sometimes
        with WatchedServer(pages) as server:
            _, output, _ = run(server.url, "--json", "--for", 20)
        verdicts = [json.loads(line)["verdict"] for line in output.splitlines()]
        assert verdicts == ["ok", "unreachable", "unreachable", "ok", "ok"]

    def test_the_end_is_told_in_words(self, undeclared: Path) -> None:
        with WatchedServer(recorded(WRONG)) as server:
            status, output, errors = run(server.url, "--for", 20, "--drafter", undeclared)
        assert status == 1 and "looks like a wrong wiring" in output and "KE851" in errors

    def test_a_server_that_was_never_there_ends_it(self) -> None:
        with WatchedServer({}) as server:
            pass
        status, _, errors = run(server.url)
        assert status == 3 and "KE861" in errors


def test_the_api_key_comes_from_the_environment() -> None:
    with WatchedServer(recorded(RIGHT)) as server:
        status, output, _ = run(server.url, "--once", "--api-key-env", "MY_KEY", MY_KEY="secret")
    assert status == 0 and "secret" not in output
    assert {headers.get("Authorization") for _, headers in server.requests} == {"Bearer secret"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["localhost:30000"],
        ["file:///etc/hosts"],
        ["http://user:secret@host"],
        ["http://host", "--baseline", "a", "--baseline-length", "3"],
        ["http://host", "--baseline-length", "0.5"],
        ["http://host", "--baseline-length", "nan"],
        ["http://host", "--interval", "0"],
        ["http://host", "--for", "-1"],
        *(["http://host", "--once", "--for", odd] for odd in ("inf", "nan", "86401", "1e300")),
        ["http://host", "--interval", "inf"],
        ["http://host", "--interval", "nan"],
        ["http://host", "--plain-rate", "inf"],
        ["http://host", "--baseline-length", "inf"],
        ["http://host?key=secret"],
        ["ftp://host/#secret"],
        ["http://host", "--plain-rate", "-1"],
        ["http://host", "--json", "--prometheus"],
        ["http://host", "--api-key-env", "NOT_SET_ANYWHERE"],
        [],
    ],
)
def test_a_wrong_command_line(arguments: list[str]) -> None:
    status, output, errors = run(*arguments)
    assert status == 2 and output == "" and errors
    assert "secret" not in errors
