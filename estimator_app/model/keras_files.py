"""Weights in files of Keras: .keras, .weights.h5, .h5. They are read as arrays; nothing of a file is built or run.

    .keras ──▶ config.json: names of layers ┐
           ──▶ model.weights.h5: arrays ────┴▶ {"stage1_conv1/vars/0": array, …}

Keras itself builds the layers that a .keras file describes before it reads their weights, and a layer may name any
function. Here config.json is data: of each layer its class and its name.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any

import numpy.typing as npt

from estimator_app.model.layer_names import folder_name, numbered

Array = npt.NDArray[Any]

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
# Arrays may take _MAX_RATIO times the bytes of their file plus _MORE_BYTES: weights hardly compress, but a tiny file
# can declare arrays of any size.
_MAX_RATIO, _MORE_BYTES = 100, 64 << 20
_MAX_LAYERS = 10_000  # some kilobytes can describe millions; the largest networks of Keras have 1,000
# Variables of a file or a checkpoint that belong to its optimizer, its averages or its trainer, not to the network.
NOT_WEIGHTS = re.compile(
    r"(^|/)(\.OPTIMIZER_SLOT|optimizer|_optimizer|optimizer_weights|save_counter|global_step|_CHECKPOINTABLE_OBJECT_GRAPH)(/|$)"
    r"|/(Momentum|Adam|Adam_1|ExponentialMovingAverage)$"
)


def read_keras_weights(path: str) -> dict[str, Array]:
    """Returns the arrays of a local .keras, .weights.h5 or .h5 file by LAYER/vars/NUMBER, or as the file names them.

    Raises:
      ValueError: It has not the form of such a file, refers to other files, or declares more than it can hold.
      OSError: It is neither a zip file nor HDF5, or cannot be read.
    """
    if not path.endswith(".keras"):
        return _read_hdf5(path, os.path.getsize(path))
    try:
        with zipfile.ZipFile(path) as archive:
            members = Counter(archive.namelist())
            if any(members[name] != 1 for name in (_CONFIG, _WEIGHTS)):
                raise ValueError(f"it needs one {_CONFIG} and one {_WEIGHTS}, and has {', '.join(members)}")
            limit = _MAX_RATIO * sum(member.compress_size for member in archive.infolist()) + _MORE_BYTES
            if sum(archive.getinfo(name).file_size for name in (_CONFIG, _WEIGHTS)) > limit:
                raise ValueError("it inflates to more than such a file can hold")
            config = json.loads(archive.read(_CONFIG))
            with archive.open(_WEIGHTS) as file:
                arrays = _read_hdf5(file, archive.getinfo(_WEIGHTS).file_size)
    except (zipfile.BadZipFile, RecursionError, NotImplementedError) as error:
        raise ValueError(str(error)) from error
    names = _layer_names(config)
    return {_renamed(path, names): array for path, array in arrays.items()}


def _layer_names(config: Any) -> dict[str, str]:
    """Returns the name of each layer, as layers_of() has it, by its folder in the weights, such as layers/conv2d_1."""
    leaves = list(itertools.islice(_leaves(config, ""), _MAX_LAYERS + 1))
    if len(leaves) > _MAX_LAYERS:
        raise ValueError(f"its {_CONFIG} has more than {_MAX_LAYERS:,} layers")
    names = numbered((class_name, layer_name) for _, class_name, layer_name in leaves)
    return {folder: name for (folder, _, _), (name, _) in zip(leaves, names, strict=True)}


def _leaves(model: Any, folder: str) -> Iterator[tuple[str, str, str]]:
    """Yields (folder in the weights, class, given name) of the layers of a model and of models inside it, in order."""
    counts = Counter[str]()
    for layer in _layers_in(model):
        class_name = str(layer.get("class_name")).rpartition(">")[2]
        kind = folder_name(class_name)
        inside = f"{folder}layers/{kind}_{counts[kind]}" if counts[kind] else f"{folder}layers/{kind}"
        counts[kind] += 1
        if _layers_in(layer):
            yield from _leaves(layer, f"{inside}/")
        else:
            settings = layer.get("config")
            yield inside, class_name, str(settings.get("name") if isinstance(settings, dict) else "")


def _layers_in(model: Any) -> list[dict[str, Any]]:
    settings = model.get("config") if isinstance(model, dict) else None
    layers = settings.get("layers") if isinstance(settings, dict) else None
    return [layer for layer in layers if isinstance(layer, dict)] if isinstance(layers, list) else []


def _renamed(path: str, names: dict[str, str]) -> str:
    parts = path.split("/")
    for end in range(len(parts), 0, -1):
        if name := names.get("/".join(parts[:end])):
            return "/".join([name, *parts[end:]])
    return path


def _read_hdf5(file: str | IO[bytes], num_bytes: int) -> dict[str, Array]:
    """Returns the arrays of numbers in an HDF5 file by name, without an optimizer's."""
    import h5py  # comes with Keras

    datasets: dict[str, Any] = {}

    def add(path: str, item: Any) -> None:  # called for what lies in the file, not for its links to other files
        is_array = isinstance(item, h5py.Dataset) and item.shape is not None and item.dtype.kind in "fiub"
        if is_array and not NOT_WEIGHTS.search(path):
            # Keras 2 keeps the layers of a layer as _query_dense, Keras 3 as query_dense.
            datasets["/".join(part.lstrip("_") for part in path.removesuffix(":0").split("/"))] = item

    with h5py.File(file) as opened:
        opened.visititems(add)
        if outside := [path for path, item in datasets.items() if item.external or item.is_virtual]:
            raise ValueError(f"its {outside[0]!r} lies in another file; save the model as one file")
        if sum(item.nbytes for item in datasets.values()) > _MAX_RATIO * num_bytes + _MORE_BYTES:
            raise ValueError(f"its arrays inflate to more than {_MAX_RATIO} times the {num_bytes:,} bytes of the file")
        return {path: item[()] for path, item in datasets.items()}
