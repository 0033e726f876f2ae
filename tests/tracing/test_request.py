"""The value of SGLANG_KIMI_EAGLE_TRACE."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_kimi_eagle.settings import read_settings
from sglang_kimi_eagle.states import MAX_STATES
from sglang_kimi_eagle.tracing.request import BadRequest, TraceRequest, parse_request

names = st.text(
    st.characters(blacklist_characters="\0/", blacklist_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda name: name not in (".", ".."))


@st.composite
def requests(draw: st.DrawFn) -> TraceRequest:
    folder = Path("/", *draw(st.lists(names, min_size=1, max_size=3)))
    numbers = st.sets(st.integers(0, 999_999), max_size=MAX_STATES)
    states = draw(st.none() | numbers.map(lambda found: tuple(sorted(found))))
    return TraceRequest(folder, states, draw(st.integers(1, 1 << 20)), draw(st.booleans()))


@given(requests())
def test_what_is_encoded_is_parsed_back(request: TraceRequest) -> None:
    assert parse_request(request.encode()) == request


@given(st.text(max_size=60))
def test_any_text_is_a_request_or_a_clear_refusal(text: str) -> None:
    try:
        request = parse_request(text)
    except BadRequest as problem:
        assert str(problem)
    else:
        assert request.folder.is_absolute() and request.tokens > 0


def test_a_folder_alone_traces_what_the_drafter_gets() -> None:
    request = parse_request("/traces/one")
    assert request == TraceRequest(Path("/traces/one"), states=(), tokens=4096, every_rank=False)


def test_states_are_put_in_order() -> None:
    assert parse_request("/t?states=58,2,30,2").states == (2, 30, 58)
    assert parse_request("/t?states=all").states is None


def test_a_relative_folder_is_taken_from_where_the_server_starts() -> None:
    assert parse_request("traces").folder == Path.cwd() / "traces"


def test_a_question_mark_in_the_name_of_the_folder_is_kept() -> None:
    assert parse_request("/what?/now?tokens=8") == TraceRequest(Path("/what?/now"), tokens=8)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no folder"),
        ("?states=all", "no folder"),
        ("/t?", None),
        ("/t?layers=2", "'layers' is none of"),
        ("/t?all", "'all' is none of"),
        ("/t?states=2;30", "states='2;30'"),
        ("/t?states=-1", "states='-1'"),
        ("/t?states=²", "states='²'"),
        ("/t?states=" + ",".join(map(str, range(99))), "more than 64"),
        ("/t?tokens=0", "tokens='0'"),
        ("/t?tokens=99999999", "tokens='99999999'"),
        ("/t?tokens=", "tokens=''"),
        ("/t?ranks=1", "neither 0 nor all"),
    ],
)
def test_what_is_wrong_is_said(text: str, part: str | None) -> None:
    if part is None:
        assert parse_request(text).states == ()
        return
    with pytest.raises(BadRequest, match=part.replace("?", r"\?")):
        parse_request(text)


class TestSettings:
    def test_unset_means_no_trace(self) -> None:
        assert read_settings({}).trace is None
        assert read_settings({"SGLANG_KIMI_EAGLE_TRACE": "  "}).trace is None

    def test_it_is_parsed(self) -> None:
        settings = read_settings({"SGLANG_KIMI_EAGLE_TRACE": "/t?tokens=9"})
        assert settings.trace == TraceRequest(Path("/t"), tokens=9)
        assert settings.findings == ()

    def test_a_bad_value_is_a_finding(self) -> None:
        settings = read_settings({"SGLANG_KIMI_EAGLE_TRACE": "/t?tokens=many"})
        assert settings.trace is None
        (finding,) = settings.findings
        assert finding.code == "KE010"
        assert "tokens='many'" in finding.message and "FOLDER?states=all" in finding.mend
