"""What servers of several releases say of themselves."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from sglang_kimi_eagle.watching.address import parse_address
from sglang_kimi_eagle.watching.client import Client
from sglang_kimi_eagle.watching.findings import WatchFailed
from sglang_kimi_eagle.watching.server import Draft, Reading, denominator_of, read_server
from watched_server import Pages, WatchedServer, answering, recorded

RELEASES = ("0.5.9", "0.5.12.post1", "0.5.23")


def read(pages: Pages) -> Reading:
    with WatchedServer(pages) as server:
        return read_server(Client(parse_address(server.url)))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", ["metrics", "plain"])
class TestEveryRelease:
    def test_says_what_is_launched(self, release: str, kind: str) -> None:
        reading = read(recorded(release, kind))
        assert (reading.version, reading.algorithm) == (release, "EAGLE3")
        assert reading.draft == Draft(3, 1, 4)
        assert reading.drafter == "/models/kimi-tiny-eagle3"
        assert reading.metrics is (kind == "metrics")

    def test_has_an_average_only_after_traffic(self, release: str, kind: str) -> None:
        assert read(recorded(release, kind, "before")).length is None
        length = read(recorded(release, kind)).length
        assert length == pytest.approx(2.286 if release == "0.5.23" else 3.56, abs=0.01)

    def test_is_read_at_its_older_address_too(self, release: str, kind: str) -> None:
        pages = recorded(release, kind)
        pages["/get_server_info"] = pages.pop("/server_info")
        assert read(pages).version == release


def test_steps_are_counted_where_the_release_counts_them() -> None:
    plain = read(recorded("0.5.23", "plain"))
    assert plain.counts is not None and plain.counts.steps == plain.steps_at_least == 621
    metrics = read(recorded("0.5.12.post1"))
    assert metrics.counts is None and metrics.decode_tokens == 1520
    assert metrics.steps_at_least == pytest.approx(426, abs=1)


def test_without_counts_an_average_still_has_its_denominator() -> None:
    reading = read(recorded("0.5.12.post1", "plain"))
    assert reading.counts is None and reading.decode_tokens is None
    assert reading.steps_at_least == 104
    assert denominator_of(371 / 104) == 104
    assert denominator_of(16 / 7) == 7
    assert denominator_of(123456 / 54321) == 18107
    assert denominator_of(2.0) == 1
    assert denominator_of(3.141592653589793) == 1


def test_ranks_of_data_parallelism_are_added_and_averaged() -> None:
    pages = recorded("0.5.23")
    other = copy.deepcopy(pages["/server_info"]["internal_states"][0])
    other["avg_spec_accept_length"] = 3.0
    pages["/server_info"]["internal_states"].append(other)
    idle = {k: v for k, v in other.items() if k != "avg_spec_accept_length"}
    pages["/server_info"]["internal_states"].append(idle)
    pages["/v1/loads"]["loads"].append({**pages["/v1/loads"]["loads"][0], "dp_rank": 1})
    pages["/metrics"] = [
        line.replace("tp_rank", f'dp_rank="{rank}",tp_rank').replace(
            'tp_rank="0"', f'tp_rank="{tp}"'
        )
        for rank in (0, 1)
        for tp in (0, 1)
        for line in pages["/metrics"]
    ]
    reading = read(pages)
    assert reading.lengths == (pytest.approx(2.286, abs=0.001), 3.0, None)
    assert reading.length == pytest.approx(2.643, abs=0.001)
    assert reading.counts is not None and reading.counts.steps == 1242
    assert reading.decode_tokens == 2 * 1530


def test_adaptive_speculation_is_taken_as_it_is_now() -> None:
    pages = recorded("0.5.23")
    pages["/metrics"] = [
        line.replace(" 3.0", " 2.0").replace(" 4.0", " 3.0") if "spec_num" in line else line
        for line in pages["/metrics"]
    ]
    assert read(pages).draft == Draft(2, 1, 3)


def test_a_server_without_speculation_has_no_draft() -> None:
    pages = recorded("0.5.23", "plain")
    for part in (pages["/server_info"], *pages["/server_info"]["internal_states"]):
        part.update({key: None for key in part if key.startswith("speculative")})
    reading = read(pages)
    assert reading.algorithm == "" and reading.draft is None


def test_the_rate_is_of_drafts_alone() -> None:
    assert Draft(3, 1, 4).rate(2.5) == 0.5
    assert Draft(3, 4, 16).rate(2.5) == 0.1
    assert Draft(1, 1, 1).rate(1.0) is None


@pytest.mark.parametrize(
    "page",
    [
        answering(b"<html><body>hello</body></html>", kind="text/html"),
        answering(b""),
        answering(b"[]"),
        answering(b"{}"),
        answering(b'{"version": "1"}'),
        answering(b'{"internal_states": []}'),
        answering(b'{"version": 5, "internal_states": []}'),
        answering(b'{"version": "1", "internal_states": {}}'),
        answering(b"[" * 100_000),
        answering(b"\xff\xfe\x00"),
        answering(b'{"version": ' + b"9" * 5000 + b"}"),
        answering(b"", status=418),
        None,
    ],
)
def test_what_is_no_sglang_is_said(page: Any) -> None:
    with pytest.raises(WatchFailed) as failure:
        read({"/server_info": page})
    assert failure.value.finding.code == "KE862"


def test_a_server_that_still_starts_is_unreachable() -> None:
    with pytest.raises(WatchFailed) as failure:
        read({"/server_info": answering(b"", status=503)})
    assert failure.value.finding.code == "KE861"


ODD: list[Any] = [True, -1, "x", [], {}, None, 1e300, 10**400, 0]


@pytest.mark.parametrize("odd", ODD)
def test_odd_values_are_left_out(odd: Any) -> None:
    """A reading never fails on what a field holds, and never takes it for a number."""
    pages = recorded("0.5.23")
    info = pages["/server_info"]
    for part in (info, *info["internal_states"]):
        part.update({key: odd for key in part if key not in ("version", "internal_states")})
    info["internal_states"].append(odd)
    loads = pages["/v1/loads"]["loads"]
    loads.append(odd)
    loads[0].update(num_running_reqs=odd, decode_moments=[odd] * 6)
    pages["/metrics"] = [line.rpartition(" ")[0] + " -1" for line in pages["/metrics"]]
    reading = read(pages)
    assert reading.length is None and reading.counts is None
    assert reading.tp_size == 1 and reading.log_interval == 40


@pytest.mark.parametrize("odd", [*ODD, {"loads": 5}, {"loads": [{"decode_moments": [1]}]}])
def test_odd_loads_are_left_out(odd: Any) -> None:
    pages = {**recorded("0.5.23"), "/v1/loads": answering(json.dumps(odd).encode())}
    assert read(pages).counts is None


def test_texts_cannot_move_a_cursor() -> None:
    pages = recorded("0.5.23")
    for part in (pages["/server_info"], *pages["/server_info"]["internal_states"]):
        part["speculative_draft_model_path"] = "a\x1b[2J\n" + "b" * 5000
    drafter = read(pages).drafter
    assert drafter.isprintable() and len(drafter) <= 400
