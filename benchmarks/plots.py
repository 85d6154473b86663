"""benchmarks/results/*.json, as the parts left them ──▶ docs/benchmark_*.svg; what has not been measured is left out.

python -m benchmarks.plots [--results=benchmarks/results] [--output=docs]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import measure

Rows = Sequence[Mapping[str, Any]]
_OURS, _OTHERS = "#0b6e99", "#9a9a9a"
# The same bytes for the same results: no random ids, no date; text stays text.
_STYLE: dict[Any, Any] = {"svg.hashsalt": "jpeg2tpu", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False}
_STYLE |= {"axes.spines.right": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=measure.RESULTS)
    parser.add_argument("--output", type=Path, default=Path("docs"))
    flags = parser.parse_args()
    for name, (part, draw) in PLOTS.items():
        found = flags.results / f"{part}.json"
        if not found.exists():
            print(f"left out: {name}, as {found} is missing")
            continue
        result = json.loads(found.read_text())
        plot(draw, result["rows"], measure.in_words(result["machine"]), flags.output / f"benchmark_{name}.svg")
        print(flags.output / f"benchmark_{name}.svg")


def plot(draw: Callable[[Sequence[Axes], Rows], None], rows: Rows, text: str, file: Path) -> None:
    """Writes two charts side by side, with what they were measured on below."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        draw(figure.subplots(1, 2), rows)
        figure.supxlabel(text, fontsize=7, color="#666666")
        figure.savefig(file, metadata={"Date": None})


def conversion(axes: Sequence[Axes], rows: Rows) -> None:
    bars(axes[0], rows, "images/s", "images per second")
    bars(axes[1], rows, "peak_mb", "peak memory, MB")
    axes[1].set_yticklabels([])


def inputs(axes: Sequence[Axes], rows: Rows) -> None:
    bars(axes[0], rows, "cpu_ms", "CPU ms per image")
    bars(axes[1], rows, "images/s", "images per second")
    axes[1].set_yticklabels([])


def bars(axes: Axes, rows: Rows, key: str, label: str) -> None:
    """Draws a bar a way, in the rows' order; ours in color."""
    names, values = [row["way"] for row in rows], [row[key] for row in rows]
    drawn = axes.barh(names, values, color=[_OURS if is_ours(name) else _OTHERS for name in names])
    axes.bar_label(drawn, [f"{value:,.2f}" if value < 10 else f"{value:,.0f}" for value in values], padding=3)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.margins(x=0.15)


def is_ours(name: str) -> bool:
    return name.startswith(("convert", "train", "evaluation"))


def growth(axes: Sequence[Axes], rows: Rows) -> None:
    for name in dict.fromkeys(row["way"] for row in rows):
        of = [row for row in rows if row["way"] == name]
        style = {"marker": "o", "linewidth": 2.5 if is_ours(name) else 1, "label": name}
        axes[0].plot([row["images"] for row in of], [row["seconds"] for row in of], **style)
        axes[1].plot([row["images"] for row in of], [row["peak_mb"] for row in of], **style)
    for chart, label in zip(axes, ("seconds", "peak memory, MB"), strict=True):
        chart.set(xscale="log", yscale="log", xlabel="images of 48 × 36 pixels", ylabel=label)
    figure = axes[0].figure
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=7, frameon=False)


def hosts(axes: Sequence[Axes], rows: Rows) -> None:
    for shards in dict.fromkeys(row["shards"] for row in rows):
        of = [row for row in rows if row["shards"] == shards]
        numbers = [row["hosts"] for row in of]
        axes[0].plot(numbers, [row["seconds"] for row in of], marker="o", label=f"{shards:,} shards")
        axes[1].plot(numbers, [row["peak_mb"] for row in of], marker="o", label=f"{shards:,} shards")
    for chart, label in zip(axes, ("first batch of a host, seconds", "peak memory of a host, MB"), strict=True):
        chart.set(xscale="log", xlabel="hosts", ylabel=label, xticks=numbers, xticklabels=numbers)
        chart.set_ylim(0, 1.1 * chart.get_ylim()[1])
        chart.minorticks_off()
    axes[0].legend(frameon=False)


# {file: (part of the results, what draws it)}
PLOTS = {
    "conversion": ("conversion_peers", conversion),
    "growth": ("conversion_growth", growth),
    "input": ("input_speed", inputs),
    "hosts": ("input_hosts", hosts),
}

if __name__ == "__main__":
    main()
