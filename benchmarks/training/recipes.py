"""Accuracy of the shipped recipes by step, on scikit-learn's digits: seeds 0 to 4, mean and spread.

    python -m benchmarks.training.recipes [--seeds=5]

Each seed chooses the validation images, the order of training, the crops and the first weights. `digits` is run as it
is shipped; `small_photos`, which is meant for photographs, at the digits' 32 pixels with the network of `digits`,
without mirror images and for 50 epochs. `imagenet_resnet50` needs ImageNet and an accelerator, and is not measured.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from estimator_app.runtime.tensorflow_startup import import_tensorflow

import_tensorflow(verbose=False)

from beam_pipelines import ConvertOptions, Source, convert  # noqa: E402
from beam_pipelines.sample_digits import write_sample  # noqa: E402
from estimator_app.config import read_recipe  # noqa: E402
from estimator_app.model_dir.history import read_history  # noqa: E402
from estimator_app.train import train  # noqa: E402

# What differs from the file of the recipe, by its name.
RECIPES: dict[str, dict[str, Any]] = {
    "digits": {"steps_per_eval": 100},
    "small_photos": {"network": "cnn", "image_size": 32, "flip": False, "epochs": 50, "steps_per_eval": 100},
}
SPLITS = (("train", 0.8), ("validation", 0.2))
COLUMNS = {"recipe": "recipe", "step": "step", "mean": "mean:.1%", "lowest": "lowest:.1%", "highest": "highest:.1%"}


def accuracies(folder: Path, recipe: str, seeds: Sequence[int], **options: Any) -> dict[int, list[float]]:
    """Returns the validation accuracy of each seed by step; `options` precede those of the recipe and of RECIPES."""
    images = folder / "digits"
    if not images.exists():
        write_sample(str(images))
    by_step = dict[int, list[float]]()
    for seed in seeds:
        dataset, model_dir = f"{folder}/dataset{seed}", f"{folder}/{recipe}{seed}"
        convert(ConvertOptions(sources=(Source(str(images)),), output=dataset, splits=SPLITS, seed=seed))
        settings = read_recipe(recipe) | RECIPES[recipe] | {"trainer": "tf_distribute", "seed": seed} | options
        train(dataset, model_dir, report=lambda line: None, **settings)
        for row in read_history(model_dir):
            by_step.setdefault(row.step, []).append(row.values["accuracy"])
    return by_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    flags = parser.parse_args()
    rows = []
    complete: dict[int | str, list[float]]
    for recipe in RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            by_step = accuracies(Path(folder), recipe, range(flags.seeds))
        # Where a recipe has epochs, seeds differ in their last step, as they do in the number of training images.
        complete = {step: values for step, values in by_step.items() if len(values) == flags.seeds}
        last = sorted(by_step.keys() - complete.keys())
        if last:
            complete[f"{last[0]} to {last[-1]}"] = [value for step in last for value in by_step[step]]
        for step, values in complete.items():
            spread = {"mean": statistics.mean(values), "lowest": min(values), "highest": max(values)}
            rows.append({"recipe": recipe, "step": step, **spread})
    changed = RECIPES["small_photos"]
    notes = [
        f"seeds 0 to {flags.seeds - 1}, each with other validation images",
        f"small_photos on digits: {changed['image_size']} px, network {changed['network']}, no mirror images, "
        f"{changed['epochs']} epochs",
    ]
    measure.keep("recipes", measure.Table(rows, COLUMNS, notes))


if __name__ == "__main__":
    main()
