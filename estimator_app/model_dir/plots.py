"""Images of a run, as PNG files and in TensorBoard: curves, confusion matrix, training inputs and wrong predictions.

    rows of history.csv ──draw_curves()──▶ MODEL_DIR/curves.png
    Metrics ──draw_confusion()──▶ MODEL_DIR/confusion.png
    the same, some training images, images classified wrongly ──▶ MODEL_DIR/pictures/events.out.tfevents.…

TensorBoard reads the event file of only one writer per folder, hence the separate folder `pictures`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure  # without pyplot, which keeps every figure in memory and looks for a display
from matplotlib.text import Text

from estimator_app.config import TrainConfig
from estimator_app.model.metrics import Metrics
from estimator_app.model_dir.history import Row, best
from estimator_app.runtime import files
from tpu_input import InputConfig, Manifest
from tpu_input.command_line import printable
from tpu_input.dataset_format.records import parse
from tpu_input.pipeline.images import decode_for_evaluation, decode_for_training

# Names of more classes than _MOST_NAMES, and counts of more than _MOST_COUNTS, would be too small to read.
_MOST_NAMES = 50
_MOST_COUNTS = 20
_MOST_LETTERS = 40  # of a name; with a name of 8,000 characters, an image would take gigabytes of memory


def draw_curves(rows: Sequence[Row], metric: str) -> bytes:
    """Returns a PNG with loss, accuracies and learning rate over the steps; the best evaluation is marked.

    Args:
      rows: Evaluations of one split; at least one.
      metric: Metric by which the best evaluation is chosen.
    """
    figure = Figure(figsize=(12, 3.6))
    # Fixed margins: with an automatic layout, matplotlib would draw the figure twice.
    figure.subplots_adjust(left=0.05, right=0.99, bottom=0.15, top=0.9, wspace=0.18)
    split, found = _short(rows[-1].split), best(rows, metric)
    accuracies = [name for name in rows[-1].values if "accuracy" in name]
    panels = {
        "loss": {"train_loss": "training", "loss": split},
        "accuracy": {name: f"{split}, {_short(name.replace('_', ' '))}" for name in accuracies},
        "learning rate": {"learning_rate": ""},
    }
    for axes, (title, lines) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for name, label in lines.items():
            points = [(row.step, row.values[name]) for row in rows if name in row.values]
            axes.plot(*zip(*points, strict=True) if points else ((), ()), ".-", label=label)
            if found and name == metric:
                axes.plot(
                    found.step, found.values[name], "o", mfc="none", ms=12, c="C3", label=f"best: step {found.step}"
                )
        axes.set(title=title, xlabel="step")
        axes.grid(alpha=0.3)
        if any(lines.values()):
            axes.legend(frameon=False)
    return _png(figure)


def draw_confusion(metrics: Metrics, classes: Sequence[str]) -> bytes:
    """Returns a PNG of the confusion matrix: one row per true class, one column per predicted class.

    A cell's colour is the share of the true class's examples that were predicted to be of the column's class.
    """
    counts = np.array(metrics.confusion)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = [_short(name) for name in classes] if len(classes) <= _MOST_NAMES else []
    side = 3.2 + 0.24 * min(len(classes), _MOST_NAMES)  # inches, as are all sizes here
    # Margin for the names; an automatic layout would draw the figure twice.
    beside = 0.5 + 0.085 * max(map(len, names), default=4)
    width, height = beside + side + 1.1, beside + side + 0.6
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((beside / width, beside / height, side / width, side / height))
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    bar = figure.add_axes(
        ((beside + side + 0.2) / width, (beside + side / 10) / height, 0.15 / width, 0.8 * side / height)
    )
    figure.colorbar(image, bar, label="share of the true class")
    said = str(dataclasses.replace(metrics, split=_short(metrics.split)))
    axes.set(xlabel="predicted", ylabel="true", title=said.replace(", loss", "\nloss") + f", step {metrics.step}")
    if names:
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
    if len(classes) <= _MOST_COUNTS:
        for true, found in zip(*np.nonzero(counts), strict=True):
            colour = "white" if shares[true, found] > 0.5 else "black"
            axes.text(found, true, f"{counts[true, found]}", ha="center", va="center", color=colour, fontsize=8)
    return _png(figure)


def _short(name: str) -> str:
    """Returns a name as one printable line, truncated to the length that an image has room for."""
    name = printable(name[: _MOST_LETTERS + 1])
    return name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"


def _png(figure: Figure) -> bytes:
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
    drawn = {"curves": draw_curves(rows, config.early_stop_metric)}
    if metrics.confusion:
        drawn["confusion"] = draw_confusion(metrics, config.classes)
    with _writer(model_dir).as_default(metrics.step):
        for name, png in drawn.items():
            files.write(f"{model_dir}/{name}.png", png)
            tf.summary.image(name, tf.image.decode_png(png)[None])
    return [f"{model_dir}/{name}.png" for name in drawn]


def write_inputs(model_dir: str, manifest: Manifest, config: InputConfig) -> None:
    """Writes some training images for TensorBoard, cropped and augmented as in training.

    Decodes the images one by one, as building an input pipeline would take longer than decoding all of them. Images and
    shards that cannot be read are skipped here: training reports or skips them, as configured.
    """
    images: list[tf.Tensor] = []
    config = dataclasses.replace(config, echo=1)
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


def write_wrong(model_dir: str, step: int, wrong: Mapping[str, bytes], config: InputConfig) -> None:
    """Writes images that were classified wrongly for TensorBoard, cropped as in evaluation.

    Args:
      model_dir: Folder or URI of the run.
      step: Step of the checkpoint that classified them.
      wrong: JPEG or PNG files by what TensorBoard calls them.
      config: Of the run.
    """
    config = dataclasses.replace(config, dtype="uint8")
    with _writer(model_dir).as_default(step):
        for name, encoded in wrong.items():
            tf.summary.image(f"wrong/{printable(name)}", decode_for_evaluation(tf.constant(encoded), config)[None])


def write_hyperparameters(model_dir: str, config: TrainConfig) -> None:
    """Writes the options of a run for TensorBoard's tab of hyperparameters."""
    from tensorboard.plugins.hparams import api

    options = config.options()
    plain = {name: value if isinstance(value, (bool, int, float)) else str(value) for name, value in options.items()}
    with _writer(model_dir).as_default(0):
        api.hparams(plain)


def _writer(model_dir: str) -> tf.summary.SummaryWriter:
    return tf.summary.create_file_writer(f"{model_dir}/{EVENTS_NAME}")
