"""The Prometheus text format, read and written."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

MAX_SAMPLES = 200_000
"""Samples of one page; SGLang has some hundreds for each rank."""

_SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})?[ \t]+(?P<value>\S+)(?:[ \t]+-?\d+)?"
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"[ \t]*,?[ \t]*')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True)
class Sample:
    """One value of one metric."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse(text: str, wanted: frozenset[str]) -> list[Sample]:
    """Return the samples of the metrics ``wanted``; lines that are none are passed over."""
    found: list[Sample] = []
    for line in text.splitlines()[:MAX_SAMPLES]:
        name = line.partition("{")[0].partition(" ")[0]
        if name not in wanted:
            continue
        match = _SAMPLE.fullmatch(line.strip())
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            found.append(Sample(name, dict(_labels(match["labels"] or "")), value))
    return found


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for match in _LABEL.finditer(text):
        yield match[1], re.sub(r"\\.", lambda e: _ESCAPES.get(e[0], e[0]), match[2])


@dataclass
class Metric:
    """One gauge to be written."""

    name: str
    help: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)


def render(metrics: Iterable[Metric]) -> str:
    """Write gauges as a page; those without samples are left out."""
    lines: list[str] = []
    for metric in metrics:
        if not metric.samples:
            continue
        lines.append(f"# HELP {metric.name} {_escape(metric.help, quotes=False)}")
        lines.append(f"# TYPE {metric.name} gauge")
        for labels, value in metric.samples:
            inside = ",".join(f'{name}="{_escape(text)}"' for name, text in labels.items())
            lines.append(f"{metric.name}{{{inside}}} {value:.10g}")
    return "\n".join(lines) + "\n" if lines else ""


def _escape(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
