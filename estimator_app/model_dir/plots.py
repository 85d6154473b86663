"""Images of a run, as PNG files and in TensorBoard: curves, confusion matrix, training inputs and wrong predictions.

    rows of history.csv, TensorBoard's events ──draw_curves()──▶ MODEL_DIR/curves.png
    Metrics ──draw_confusion()──▶ MODEL_DIR/confusion.png
    the same, some training images, images classified wrongly ──▶ MODEL_DIR/pictures/events.out.tfevents.…

TensorBoard reads the event file of only one writer per folder, hence the separate folder `pictures`. matplotlib is
imported when something is drawn: it would delay the first step. Without pyplot, which keeps every figure in memory and
looks for a display.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from estimator_app.config import TrainConfig
from estimator_app.model.keras_library import on_jax
from estimator_app.model.metrics import Metrics
from estimator_app.model_dir.events import PREFIX, EventFile, read_scalars
from estimator_app.model_dir.history import Row, best
from estimator_app.runtime import files
from tpu_input import InputConfig, Manifest, TrainSource
from tpu_input.command_line import printable
from tpu_input.dataset_format.records import parse
from tpu_input.without_tensorflow.decode_window import decode_file

if TYPE_CHECKING:
    import tensorflow as tf
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# Names of more classes than _MOST_NAMES, and counts of more than _MOST_COUNTS, would be too small to read.
_MOST_NAMES = 50
_MOST_COUNTS = 20
_MOST_LETTERS = 40  # of a name; with a name of 8,000 characters, an image would take gigabytes of memory


# Colors that the color-blind tell apart: M. Okabe, K. Ito, "Color Universal Design", 2008.
_BLUE, _VERMILION, _GREEN, _PURPLE, _GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f7f7f"
_MOST_POINTS = 500  # of a curve of training: each is the mean of neighbors, if there are more


def draw_curves(
    rows: Sequence[Row], metric: str, training: Mapping[str, Sequence[tuple[int, float]]] | None = None
) -> bytes:
    """Returns a PNG with loss, accuracies in percent and learning rate over the steps; the best evaluation is marked.

    The accuracy among the five most likely classes has an axis of its own, as it is far nearer to 100 %. Of up to ten
    classes, where half of them are right by chance, it is not shown.

    Args:
      rows: Evaluations of one split; at least one.
      metric: Metric by which the best evaluation is chosen.
      training: (step, value) of TensorBoard's curves by name, see read_training_curves(); the means of `rows` are shown
        where there are none.
    """
    from matplotlib.figure import Figure

    split, best_row = _short(rows[-1].split), best(rows, metric)
    training = {name: _thinned(points) for name, points in (training or {}).items()}
    for name, column in (("train/loss", "train_loss"), ("train/learning_rate", "learning_rate")):
        training.setdefault(name, _points(rows, column))
    shares = [name for name in rows[-1].values if "accuracy" in name or name == "mean_average_precision"]
    top = [name for name in shares if name.startswith("top_")]
    panels = [("loss", ["loss"]), ("accuracy, %", [name for name in shares if name not in top])]
    panels += [(f"{name.replace('_', ' ')}, %".replace("top ", "top-"), [name]) for name in top]
    figure = Figure(figsize=(4 * (len(panels) + 1), 3.6))
    # Fixed margins: with an automatic layout, matplotlib would draw the figure twice.
    figure.subplots_adjust(left=0.6 / figure.get_figwidth(), right=0.99, bottom=0.15, top=0.9, wspace=0.2)
    *panel_axes, last = figure.subplots(1, len(panels) + 1)
    for axes, (title, names) in zip(panel_axes, panels, strict=True):
        scale = 1 if title == "loss" else 100
        if title == "loss":
            axes.plot(*_columns(training["train/loss"]), "-", c=_GREY, lw=1, label="training")
        for name, color in zip(names, itertools.cycle((_BLUE, _GREEN, _PURPLE))):
            label = split if len(names) == 1 else f"{split}, {_short(name.replace('_', ' '))}"
            points = [(step, scale * value) for step, value in _points(rows, name)]
            axes.plot(*_columns(points), ".-", c=color, label=label, clip_on=False)
            if best_row and name == metric:
                best_label = f"best: step {best_row.step}"
                where = best_row.step, scale * best_row.values[name]
                axes.plot(*where, "o", mfc="none", ms=12, mew=1.5, c=_VERMILION, label=best_label, clip_on=False)
        if scale == 100:
            _limit_percents(axes, [100 * value for name in names for _, value in _points(rows, name)])
        axes.set(title=title)
        axes.legend(frameon=False)
    last.plot(*_columns(training["train/learning_rate"]), "-", c=_GREY, lw=1.5)
    last.set(title="learning rate")
    last.set_ylim(bottom=0)
    for axes in (*panel_axes, last):
        axes.set(xlabel="step")
        axes.grid(alpha=0.3)
    return _png(figure)


def _points(rows: Sequence[Row], name: str) -> list[tuple[int, float]]:
    return [(row.step, row.values[name]) for row in rows if name in row.values]


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Returns at most _MOST_POINTS points: each the last step and the mean value of equally many neighbors."""
    size = -(-len(points) // _MOST_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), max(size, 1))]
    return [(part[-1][0], float(np.mean([value for _, value in part]))) for part in parts]


def _limit_percents(axes: Axes, values: Sequence[float]) -> None:
    """Lets an axis of percentages show all values, with some room below and above, but not above 100."""
    finite = [min(max(value, 0.0), 100.0) for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=100.0)
    room = max((high - low) / 10, 0.5)
    axes.set_ylim(max(low - room, 0), min(high + room, 100))


def draw_confusion(metrics: Metrics, classes: Sequence[str]) -> bytes:
    """Returns a PNG of the confusion matrix: one row per true class, one column per predicted class.

    A cell's color is the share of the true class's examples that were predicted to be of the column's class: blue where
    that is right, orange where it is wrong. The scale is a square root's, so that a single wrong example is seen. Next
    to each row is the class's recall.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    counts = np.array(metrics.confusion)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    recall = np.where(counts.sum(axis=1) > 0, np.diag(shares), np.nan)
    names = [_short(name) for name in classes] if len(classes) <= _MOST_NAMES else []
    side = 3.2 + 0.24 * min(len(classes), _MOST_NAMES)  # inches, as are all sizes here
    # Margin for the names; an automatic layout would draw the figure twice.
    beside = 0.5 + 0.085 * max(map(len, names), default=4)
    width, height = beside + side + 2.6, beside + side + 0.7
    figure = Figure(figsize=(width, height))

    def place(left: float, bottom: float, across: float, up: float) -> Axes:
        return figure.add_axes(((beside + left) / width, (beside + bottom) / height, across / width, up / height))

    axes = place(0, 0, side, side)
    bars = place(side + 0.12, 0, 1.0, side)
    is_right = np.eye(len(counts), dtype=bool)
    for number, (color, mask) in enumerate((("Blues", ~is_right), ("Oranges", is_right))):
        cells = np.where(mask | (counts == 0), np.nan, shares)  # NaN is not drawn
        norm = PowerNorm(0.4, vmin=0, vmax=1)
        image = axes.imshow(cells, cmap=_visible(color), norm=norm, interpolation="nearest")
        scale = place(side + 1.35 + 0.16 * number, side / 10, 0.14, 0.8 * side)
        colorbar = figure.colorbar(image, scale, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1] if number else [])
        colorbar.set_label("share of the true class: right (blue), wrong (orange)" if number else "")
        if number:
            colorbar.set_ticklabels(["0 %", "1 %", "5 %", "20 %", "50 %", "100 %"])
    title = str(dataclasses.replace(metrics, split=_short(metrics.split)))
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.set_title(title.replace(", loss", "\nloss") + f", step {metrics.step}")
    edges = np.arange(len(counts) + 1) - 0.5
    bars.stairs(np.nan_to_num(100 * recall), edges, orientation="horizontal", fill=True, color=_BLUE, alpha=0.35)
    bars.set(xlim=(0, 100), ylim=axes.get_ylim(), yticks=[], xticks=[0, 50, 100], title="recall, %")
    bars.spines[["top", "right"]].set_visible(False)
    if names:
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
        for true, value in enumerate(recall):
            text = "–" if np.isnan(value) else f"{100 * value:.1f}"
            bars.text(4, true, text, va="center", fontsize=8)
    if len(classes) <= _MOST_COUNTS:
        for true, predicted in zip(*np.nonzero(counts), strict=True):
            color = "white" if shares[true, predicted] > 0.3 else "black"
            axes.text(predicted, true, f"{counts[true, predicted]}", ha="center", va="center", color=color, fontsize=8)
    return _png(figure)


def _visible(name: str) -> Colormap:
    """Returns a color map whose lightest color is not the paper's."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps[name](np.linspace(0.15, 1, 256)))


def _short(name: str) -> str:
    """Returns a name as one printable line, truncated to the length that an image has room for."""
    name = printable(name[: _MOST_LETTERS + 1])
    return name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"


def _png(figure: Figure) -> bytes:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        # Names of classes and splits are arbitrary text: "US$ to A$" must not be parsed as a formula.
        text.set_parse_math(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


NUM_INPUTS, NUM_SHARDS = 16, 4
EVENTS_NAME = "pictures"


def write_pictures(model_dir: str, config: TrainConfig, rows: Sequence[Row], metrics: Metrics) -> list[str]:
    """Writes curves.png, and confusion.png when the metrics have a confusion matrix; writes both for TensorBoard too.

    Returns:
      Paths of the PNG files.
    """
    if len(config.classes) <= _FEW_CLASSES:
        without_top = [{name: row.values[name] for name in row.values if not name.startswith("top_")} for row in rows]
        rows = [dataclasses.replace(row, values=values) for row, values in zip(rows, without_top, strict=True)]
    pictures = {"curves": draw_curves(rows, config.early_stop_metric, read_training_curves(model_dir))}
    if metrics.confusion:
        pictures["confusion"] = draw_confusion(metrics, config.classes)
    for name, png in pictures.items():
        files.write(f"{model_dir}/{name}.png", png)
    _write_images(model_dir, metrics.step, pictures)
    return [f"{model_dir}/{name}.png" for name in pictures]


_FEW_CLASSES = 10  # of these, five are half


_TRAINING_CURVES = ("train/loss", "train/learning_rate")
_MOST_EVENT_BYTES = 1 << 28  # of all event files of a run that are read; a point takes some 100 bytes


def read_training_curves(model_dir: str) -> dict[str, list[tuple[int, float]]]:
    """Returns (step, value) of TensorBoard's curves of training, by name and step; {} if there are none.

    Of a step that was trained again after an interruption, the last value counts. Event files may come from an
    untrusted source or end in the middle of a record; what can be read is returned.
    """
    curves: dict[str, dict[int, float]] = {}
    room = _MOST_EVENT_BYTES
    for name in files.names(model_dir):
        if not name.startswith(PREFIX):
            continue
        with contextlib.suppress(OSError, ValueError):
            room -= files.num_bytes(f"{model_dir}/{name}")
            if room < 0:
                break
            for tag, step, value in read_scalars(files.read_bytes(f"{model_dir}/{name}")):
                if tag in _TRAINING_CURVES:
                    curves.setdefault(tag, {})[step] = value
    return {name: sorted(points.items()) for name, points in curves.items()}


def write_inputs(model_dir: str, manifest: Manifest, config: InputConfig) -> None:
    """Writes some training images for TensorBoard, cropped and augmented as in training.

    Decodes the images one by one, as building an input pipeline would take longer than decoding all of them. Images and
    shards that cannot be read are skipped here: training reports or skips them, as configured.
    """
    if on_jax():
        _write_own_inputs(model_dir, manifest, config)
        return
    import tensorflow as tf

    from tpu_input.augment import find_augment
    from tpu_input.pipeline.images import decode_for_training

    images: list[tf.Tensor] = []
    config = dataclasses.replace(config, echo=1, augment=find_augment(config.augment))
    shards = manifest.split("train").shards[:NUM_SHARDS]
    for shard in shards:
        with contextlib.suppress(tf.errors.OpError):
            for serialized in tf.data.TFRecordDataset(f"{manifest.path}/{shard.name}").take(NUM_INPUTS // len(shards)):
                encoded = parse(serialized, manifest.first_label, manifest.record)["encoded"]
                seed = tf.constant([config.seed, len(images)], tf.int64)
                images.append(decode_for_training(encoded, seed, config, manifest.record))
    if images:
        with _writer(model_dir).as_default(0):
            tf.summary.image("inputs", tf.cast(tf.stack(images), tf.float32) / 255, max_outputs=NUM_INPUTS)


def _write_own_inputs(model_dir: str, manifest: Manifest, config: InputConfig) -> None:
    """Writes the images of the first step by name, as write_inputs() does."""
    config = dataclasses.replace(config, dtype="uint8", layout="NHWC", echo=1, cache=None, service=None)
    source = TrainSource(manifest, config, NUM_INPUTS)
    pictures = {}
    for number in range(NUM_INPUTS):
        with contextlib.suppress(OSError, ValueError):  # training reports what cannot be read
            pictures[f"inputs/image/{number}"] = png_of(source[number]["image"])
    _write_images(model_dir, 0, pictures)


def png_of(pixels: NDArray[np.uint8]) -> bytes:
    """Returns a PNG file of an image [height, width, 3]."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_wrong(model_dir: str, step: int, wrong: Mapping[str, bytes], config: InputConfig) -> None:
    """Writes images that were classified wrongly for TensorBoard, cropped as in evaluation.

    Args:
      model_dir: Folder or URI of the run.
      step: Step of the checkpoint that classified them.
      wrong: JPEG or PNG files by what TensorBoard calls them.
      config: Of the run.
    """
    config = dataclasses.replace(config, dtype="uint8")
    if on_jax():
        pictures = {f"wrong/{printable(name)}": png_of(decode_file(encoded, config)) for name, encoded in wrong.items()}
        _write_images(model_dir, step, pictures)
        return
    import tensorflow as tf

    from tpu_input.pipeline.images import decode_for_evaluation

    with _writer(model_dir).as_default(step):
        for name, encoded in wrong.items():
            tf.summary.image(f"wrong/{printable(name)}", decode_for_evaluation(tf.constant(encoded), config)[None])


def write_hyperparameters(model_dir: str, config: TrainConfig) -> None:
    """Writes the options of a run for TensorBoard's tab of hyperparameters; nothing without TensorFlow."""
    if on_jax():
        return
    from tensorboard.plugins.hparams import api

    options = config.options()
    values = {name: value if isinstance(value, (bool, int, float)) else str(value) for name, value in options.items()}
    with _writer(model_dir).as_default(0):
        api.hparams(values)


def _write_images(model_dir: str, step: int, pictures: Mapping[str, bytes]) -> None:
    """Writes pictures of a step, PNG files by name, for TensorBoard."""
    if on_jax():
        events = EventFile(f"{model_dir}/{EVENTS_NAME}")
        sides = {name: Image.open(io.BytesIO(png)).size for name, png in pictures.items()}
        events.images(step, {name: (png, sides[name][1], sides[name][0]) for name, png in pictures.items()})
        events.close()
        return
    import tensorflow as tf

    with _writer(model_dir).as_default(step):
        for name, png in pictures.items():
            tf.summary.image(name, tf.image.decode_png(png)[None])


def _writer(model_dir: str) -> tf.summary.SummaryWriter:
    import tensorflow as tf

    return tf.summary.create_file_writer(f"{model_dir}/{EVENTS_NAME}")
