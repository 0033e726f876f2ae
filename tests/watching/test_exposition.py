"""The Prometheus text format."""

from __future__ import annotations

from sglang_kimi_eagle.watching.exposition import Metric, Sample, parse, render


def test_samples_are_parsed_with_their_labels() -> None:
    text = """# HELP a:b text
# TYPE a:b gauge
a:b{x="1",y="q\\"u\\\\o\\nte"} 2.5
a:b 3 1700000000000
a:b{} 1e3
other{x="1"} 9
a:bc 7
"""
    assert parse(text, frozenset({"a:b"})) == [
        Sample("a:b", {"x": "1", "y": 'q"u\\o\nte'}, 2.5),
        Sample("a:b", {}, 3.0),
        Sample("a:b", {}, 1000.0),
    ]


def test_lines_that_are_no_samples_are_passed_over() -> None:
    lines = ["a", "a{", "a} 1", "a x", "a NaN", "a +Inf", "<html>", 'a{x="1" 1', "a{" * 5000, ""]
    assert parse("\n".join(lines), frozenset({"a"})) == []


def test_what_is_written_can_be_parsed_again() -> None:
    labels = {"x": 'back\\slash "quote"\nline', "y": ""}
    text = render(
        [Metric("m", "help\nmore \\", [(labels, 0.1), ({}, 12345678.0)]), Metric("n", "")]
    )
    assert text.splitlines()[:2] == ["# HELP m help\\nmore \\\\", "# TYPE m gauge"]
    assert parse(text, frozenset({"m"})) == [Sample("m", labels, 0.1), Sample("m", {}, 12345678.0)]
    assert "n" not in text.split()
