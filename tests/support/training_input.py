"""Batches of training's input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tpu_input import InputConfig, make_train_input_fn
from tpu_input.dataset_format.records import Manifest

Batch = tuple[npt.NDArray[Any], npt.NDArray[np.int32]]

UNCROPPED = InputConfig(image_size=8, crop_area=(1.0, 1.0), crop_aspect=(1.0, 1.0), flip=False)  # every crop the image


AUGMENTED = InputConfig(image_size=8)


def batches(manifest: Manifest, config: InputConfig, count: int, start_step: int = 0, **params: Any) -> list[Batch]:
    params = {"batch_size": 48, **params}
    dataset = make_train_input_fn(manifest, config, start_step=start_step)(params)
    return [(features["image"], labels) for features, labels in dataset.take(count).as_numpy_iterator()]


def images(steps: Iterable[Batch]) -> list[bytes]:
    return [image.tobytes() for batch, _ in steps for image in batch]


def same(left: Iterable[Batch], right: Iterable[Batch]) -> bool:
    return all(
        np.array_equal(a, b) for one, other in zip(left, right, strict=True) for a, b in zip(one, other, strict=True)
    )


class Context:
    """What TPUEstimator hands an input_fn as params["context"], for one of several hosts (PER_HOST_V2)."""

    def __init__(self, host: int, num_hosts: int, replicas_per_host: int = 1) -> None:
        self._deployment = (f"/task:{host}/device:CPU:0", host, num_hosts, replicas_per_host)

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        return self._deployment
