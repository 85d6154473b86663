"""Contract over trainers: the options that they lack are refused before anything is written, and listed in the docs."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

import estimator_app
from estimator_app.config import TRAINERS, TrainConfig
from estimator_app.trainers.missing_options import MISSING
from support.pages import trainer_table
from tpu_input import InputConfig, TrainSource

# Of every option of the input, a value that is not the default.
OTHERS: dict[str, Any] = {
    **{"image_size": 9, "dtype": "float32", "layout": "HWCN", "mean": (1.0, 2.0, 3.0), "std": (1.0, 2.0, 3.0)},
    **{"crop_area": (0.5, 1.0), "crop_aspect": (1.0, 1.0), "flip": False, "eval_crop": 1.0, "seed": 1},
    **{"on_corrupt": "skip", "max_corrupt": 1, "deterministic": False, "augment": "auto", "echo": 2},
    **{"cache": "records", "service": "grpc://localhost:1", "service_job": "other", "scaled_decode": False},
    **{"block_records": 1, "sampling": "balanced", "resize": "pad", "features": ()},
}
VALUES = OTHERS | {"record": "imagenet"}
REFUSED = [(trainer, name) for trainer in TRAINERS for name in MISSING[trainer]]


@pytest.mark.parametrize(("trainer", "name"), REFUSED)
def test_an_option_that_a_trainer_lacks_is_refused_before_anything_is_written(digits_dataset, tmp_path, trainer, name):
    dataset = f"{digits_dataset.path}/train-*" if name == "record" else digits_dataset
    with pytest.raises(ValueError, match=rf"^--trainer={trainer} has no .*\b{name}\b.*use --trainer=tf_distribute"):
        estimator_app.train(dataset, str(tmp_path / "m"), trainer=trainer, **{name: VALUES[name]})
    assert not (tmp_path / "m").exists()


def test_jax_lacks_what_its_source_refuses(digits_dataset):
    assert OTHERS.keys() == {field.name for field in dataclasses.fields(InputConfig)}
    refused = set()
    for name, value in OTHERS.items():
        needed = {"deterministic": False} if name == "service" else {}
        config = InputConfig(**{"image_size": 8, name: value} | needed)
        try:
            TrainSource(digits_dataset, config, 4)
        except ValueError:
            refused.add(name)
    assert refused - {"layout"} == MISSING["jax"].keys() - {"record"}  # the trainer feeds NHWC whatever the layout


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_table_of_the_docs_has_the_options_that_a_trainer_lacks(trainer):
    fields = {field.name for config in (InputConfig, TrainConfig) for field in dataclasses.fields(config)}
    listed = set()
    for row, cells in trainer_table().items():
        names = fields & set(re.findall(r"`(?:--)?(\w+)`", row))
        lacking = names & MISSING[trainer].keys()
        assert lacking in (set(), names), f"{row}: the trainer has some of these and lacks others"
        if names:
            assert re.match(r"\w+", cells[trainer])[0] == ("no" if lacking else "yes"), row  # type: ignore[index]
        listed |= lacking
    assert listed == MISSING[trainer].keys()
