"""Reports of the benchmarks: Markdown and PNG in ``benchmarks/reports``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

REPORTS = Path(__file__).resolve().parent / "reports"


def write_report(name: str, title: str, lines: Sequence[str]) -> None:
    """Write a report, and print it."""
    text = "\n".join([f"# {title}", "", *lines]) + "\n"
    (REPORTS / f"{name}.md").write_text(text, "utf-8")
    print(text)


def bars(name: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], unit: str) -> str:
    """Draw a bar for each label and series into a PNG; return the Markdown that shows it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(1.5 + 1.2 * len(labels), 3.5))
    width = 0.8 / len(series)
    for number, (label, values) in enumerate(series.items()):
        places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(labels))]
        drawn = axes.bar(places, values, width, label=label)
        axes.bar_label(drawn, fmt="%.2f", fontsize=8)
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylabel(unit)
    if len(series) > 1:
        axes.legend()
    figure.tight_layout()
    figure.savefig(REPORTS / f"{name}.png", dpi=100)
    pyplot.close(figure)
    return f"![{unit}]({name}.png)"
