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
from matplotlib.patches import Patch

from benchmarks import measure

Rows = Sequence[Mapping[str, Any]]
# Colors that the color-blind tell apart: M. Okabe, K. Ito, "Color Universal Design", 2008. Of this package, of others
# that decode the images as it does, and of others that copy their bytes. Others also have stripes, for print.
_OURS, _DECODING, _COPYING = "#0072b2", "#d55e00", "#999999"
_CYCLE = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#999999")
_MARKERS = "osD^vPX*"
_INK = "#767676"  # gray that is read on white, and on the dark pages that the transparent plots also lie on
# The same bytes for the same results: no random ids, no date; text stays text.
_STYLE: dict[Any, Any] = {"svg.hashsalt": "jpeg2tpu", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False}
_STYLE |= {"axes.spines.right": False, "hatch.linewidth": 0.6, "savefig.transparent": True, "axes.titlesize": 10}
_STYLE |= dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor"), _INK
)
_HIGHER, _LOWER = "higher is better", "lower is better"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=measure.RESULTS)
    parser.add_argument("--output", type=Path, default=Path("docs"))
    flags = parser.parse_args()
    for name, (part, draw) in PLOTS.items():
        path = flags.results / f"{part}.json"
        if not path.exists():
            print(f"left out: {name}, as {path} is missing")
            continue
        result = json.loads(path.read_text())
        plot(draw, result["rows"], measure.in_words(result["machine"]), flags.output / f"benchmark_{name}.svg")
        print(flags.output / f"benchmark_{name}.svg")


def plot(draw: Callable[[Sequence[Axes], Rows], None], rows: Rows, text: str, file: Path) -> None:
    """Writes two charts side by side, with what they were measured on below."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 4.4), layout="constrained")
        draw(figure.subplots(1, 2), rows)
        figure.supxlabel(text, fontsize=7)
        figure.savefig(file, metadata={"Date": None})


def conversion(axes: Sequence[Axes], rows: Rows) -> None:
    bars(axes[0], rows, "images/s", f"Speed of conversion ({_HIGHER})", "images per second")
    bars(axes[1], rows, "peak_mb", f"Memory ({_LOWER})", "peak memory, MB")
    axes[1].set_yticklabels([])
    _legend(axes[0], {_kind(row) for row in rows})


def inputs(axes: Sequence[Axes], rows: Rows) -> None:
    bars(axes[0], rows, "cpu_ms", f"CPU time ({_LOWER})", "CPU time per image, ms")
    bars(axes[1], rows, "images/s", f"Speed of the input ({_HIGHER})", "images per second")
    axes[1].set_yticklabels([])
    _legend(axes[0], {_kind(row) for row in rows})


def bars(axes: Axes, rows: Rows, key: str, title: str, label: str) -> None:
    """Draws a bar for each way, in the rows' order; ours, and others that decode or copy, in different colors."""
    names, values = [row["way"] for row in rows], [row[key] for row in rows]
    container = axes.barh(names, values)
    for bar, row in zip(container, rows, strict=True):
        bar.set(**_KINDS[_kind(row)])
    axes.bar_label(container, [f"{value:,.2f}" if value < 10 else f"{value:,.0f}" for value in values], padding=3)
    axes.invert_yaxis()
    axes.set(title=title, xlabel=label)
    axes.margins(x=0.15)


_KINDS: dict[str, dict[str, Any]] = {
    "jpeg2tpu": {"color": _OURS},
    "others that decode each image": {"facecolor": _DECODING, "edgecolor": "white", "hatch": "//", "linewidth": 0},
    "others that copy the bytes": {"facecolor": _COPYING, "edgecolor": "white", "hatch": "..", "linewidth": 0},
}


def _kind(row: Mapping[str, Any]) -> str:
    """Returns which of _KINDS a way is; inputs, which have no checks, always decode."""
    ours, decoding, copying = _KINDS
    if is_ours(row["way"]):
        return ours
    return decoding if "decoded" in row.get("checks", "decoded") else copying


def _legend(axes: Axes, kinds: set[str]) -> None:
    handles = [Patch(**style, label=name) for name, style in _KINDS.items() if name in kinds]
    figure = axes.get_figure()
    assert figure
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)


def is_ours(name: str) -> bool:
    return name.startswith(("convert", "train", "evaluation"))


def growth(axes: Sequence[Axes], rows: Rows) -> None:
    names = list(dict.fromkeys(row["way"] for row in rows))
    others = [name for name in names if not is_ours(name)]
    for number, name in enumerate(names):
        points = [row for row in rows if row["way"] == name]
        in_cycle = 1 + others.index(name) % (len(_CYCLE) - 1) if name in others else 0
        style = _line(in_cycle) | {"marker": _MARKERS[number % len(_MARKERS)]}
        style |= {"linewidth": 2.5 if is_ours(name) else 1, "label": name}
        axes[0].plot([row["images"] for row in points], [row["seconds"] for row in points], **style)
        axes[1].plot([row["images"] for row in points], [row["peak_mb"] for row in points], **style)
    for chart, title, label in zip(axes, ("Time", "Memory"), ("seconds", "peak memory, MB"), strict=True):
        chart.set(xscale="log", yscale="log", xlabel="images of 48 × 36 pixels", ylabel=label)
        chart.set_title(f"{title} ({_LOWER})")
    figure = axes[0].figure
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=7, frameon=False)


def hosts(axes: Sequence[Axes], rows: Rows) -> None:
    for number, shards in enumerate(dict.fromkeys(row["shards"] for row in rows)):
        points = [row for row in rows if row["shards"] == shards]
        numbers = [row["hosts"] for row in points]
        style = _line(number) | {"label": f"{shards:,} shards"}
        axes[0].plot(numbers, [row["seconds"] for row in points], **style)
        axes[1].plot(numbers, [row["peak_mb"] for row in points], **style)
    texts = (("Start of a host", "first batch after, seconds"), ("Memory of a host", "peak memory, MB"))
    for chart, (title, label) in zip(axes, texts, strict=True):
        chart.set(xscale="log", xlabel="hosts", ylabel=label, xticks=numbers, xticklabels=numbers)
        chart.set_title(f"{title} ({_LOWER})")
        chart.set_ylim(0, 1.1 * chart.get_ylim()[1])
        chart.minorticks_off()
    axes[0].legend(frameon=False)


def _line(number: int) -> dict[str, Any]:
    return {"color": _CYCLE[number % len(_CYCLE)], "marker": _MARKERS[number % len(_MARKERS)], "markersize": 5}


def frameworks(axes: Sequence[Axes], rows: Rows) -> None:
    """Draws loss and accuracy by step, a line for each framework, with the range of the accuracy over the seeds."""
    for number, way in enumerate(dict.fromkeys(row["way"] for row in rows)):
        points = [row for row in rows if row["way"] == way]
        steps, color = [row["step"] for row in points], _CYCLE[number]
        style = {"color": color, "marker": _MARKERS[number], "markersize": 4, "label": way}
        axes[0].plot(steps, [row["loss"] for row in points], **style)
        axes[1].plot(steps, [100 * row["accuracy"] for row in points], **style)
        low, high = ([100 * row[key] for row in points] for key in ("lowest", "highest"))
        axes[1].fill_between(steps, low, high, color=color, alpha=0.12, linewidth=0)
    axes[0].set(title=f"Training loss ({_LOWER})", xlabel="step", ylabel="cross-entropy", yscale="log")
    axes[1].set(title=f"Validation accuracy ({_HIGHER})", xlabel="step", ylabel="accuracy, %", ylim=(None, 100))
    axes[1].legend(frameon=False, loc="lower right")


# {file: (part of the results, what draws it)}
PLOTS = {
    "frameworks": ("frameworks", frameworks),
    "conversion": ("conversion_peers", conversion),
    "growth": ("conversion_growth", growth),
    "input": ("input_speed", inputs),
    "hosts": ("input_hosts", hosts),
}

if __name__ == "__main__":
    main()
