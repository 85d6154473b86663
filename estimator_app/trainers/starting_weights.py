"""Initial weights that are taken from a trained model (--init_from).

    run, checkpoint, SavedModel, .keras, .h5 ──read_source()──▶ {"stage1_conv1/kernel": array, …}
                                             ──starting_weights()──▶ values by variable, and a table of all variables
    .safetensors of timm, torchvision, transformers ──model/published_weights.py──▶ the same

Variables are called as in model/layer_names.py. Files without names of layers, such as Keras' .weights.h5, number the
layers of each class, and the variables of each layer, in the order of the model.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from estimator_app.config import TrainConfig
from estimator_app.model.keras_files import NOT_WEIGHTS, read_keras_weights
from estimator_app.model.layer_names import layers_of, variables_of
from estimator_app.model.network_names import is_users
from estimator_app.model.published_weights import Normalization, find_normalization, is_published, read_published
from estimator_app.model.safetensors_files import read_header
from estimator_app.model_dir.array_files import ArrayReader
from estimator_app.model_dir.checkpoints import NAME, VARIABLE_SUFFIX, main_file, open_checkpoint
from estimator_app.model_dir.exports import STABLEHLO_NAME, WEIGHTS, program_name
from estimator_app.model_dir.run_files import CONFIG_NAME, read_config
from estimator_app.runtime import files
from estimator_app.runtime.missing_paths import no_weights
from estimator_app.saved_model.find import find_checkpoint, find_export, read_origin
from estimator_app.trainers.checks import make_weighted_model, named_weights
from tpu_input.command_line.wording import enumerated, first_line
from tpu_input.dataset_format.csv_cells import csv_cell

Array = npt.NDArray[Any]

TABLE_NAME = "initial_weights.csv"
_MOST_NAMES = 3  # number of names that a message lists
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


@dataclasses.dataclass(frozen=True)
class Source:
    """Weights of a trained model.

    Attributes:
      values: Arrays by name of the variable.
      classes: Class names in label order; empty if they are not known.
    """

    values: Mapping[str, Array]
    classes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class StartingWeights:
    """What a run takes from a trained model.

    Attributes:
      values: Initial values, by LAYER/KIND; missing variables keep their initializers' values.
      rows: (variable, its shape, variable of the source, its shape, why it was not taken or "") of every variable of
        the network, then of the variables of the source that no variable of the network has taken.
      remark: What was changed of the values; "" if nothing was.
    """

    values: Mapping[str, Array]
    rows: tuple[tuple[str, str, str, str, str], ...]
    remark: str = ""

    def to_csv(self) -> str:
        """Returns the table as CSV, with a header."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("variable", "shape", "source", "source_shape", "not_taken_because"))
        writer.writerows(map(csv_cell, row) for row in self.rows)
        return text.getvalue()

    def __str__(self) -> str:
        network_rows = [row for row in self.rows if row[0]]
        new = [f"{row[0]} ({row[4]})" for row in network_rows if row[4]]
        new_ones = f"; new: {enumerated(new, _MOST_NAMES)}" if new else ""
        remark = f"; {self.remark}" if self.remark else ""
        return f"{len(self.values)} of {len(network_rows)} variables{new_ones}{remark}"


def starting_weights(config: TrainConfig) -> StartingWeights:
    """Returns the weights that the run takes from config.init_from, matched by name and shape.

    The last layer is left new if the source has other classes.

    Raises:
      ValueError: There is no trained model at that path, it cannot be read, or none of its variables fits.
    """
    if is_published(config.init_from):
        return _published_weights(config)
    source, model = read_source(config), make_weighted_model(config)
    head = list(layers_of(model))[-1][0]
    values, rows = {}, []
    for path, (variable, aliases) in variables_of(model).items():
        source_name, reason = _match(aliases, source.values)
        shape = tuple(variable.shape)
        if source_name and source.values[source_name].shape != shape:
            reason = "another shape"
        elif source_name and path.startswith(f"{head}/") and source.classes and source.classes != config.classes:
            reason = "other classes"
        if source_name and not reason:
            values[path] = source.values[source_name].astype(_dtype(variable))
        source_shape = str(list(source.values[source_name].shape)) if source_name else ""
        rows.append((path, str(list(shape)), source_name, source_shape, reason))
    if not values:
        raise ValueError(
            f"--init_from={config.init_from} has no variable that {config.network} has by name and shape: it has "
            f"{_some(source.values) or 'nothing'}, the network {_some(variables_of(model))}"
        )
    listed = {row[2] for row in rows}
    rows += [
        ("", "", name, str(list(value.shape)), "not in the network")
        for name, value in source.values.items()
        if name not in listed
    ]
    return StartingWeights(values, tuple(rows))


def _published_weights(config: TrainConfig) -> StartingWeights:
    variables = variables_of(make_weighted_model(config))
    shapes = {path: tuple(variable.shape) for path, (variable, _) in variables.items()}
    with _open_published(config.init_from) as (file, num_bytes):
        weights = read_published(file, num_bytes, config.network, shapes)
    return StartingWeights(weights.values, weights.rows, weights.remark)


def published_normalization(path: str) -> Normalization | None:
    """Returns the normalization that published weights, or a file in their folder, name; None if they name none.

    Args:
      path: Path or URI of a file of safetensors.

    Raises:
      ValueError: There is no such file, or it or a file in its folder is damaged.
    """
    folder = f"{path.rpartition('/')[0]}/" if "/" in path else ""

    def read_beside(name: str) -> str | None:
        files.check_plain(folder or ".", beginning=name)  # a pipe would be waited for
        return files.read_text(f"{folder}{name}") if files.exists(f"{folder}{name}") else None

    with _open_published(path) as (file, num_bytes):
        return find_normalization(read_header(file, num_bytes), read_beside)


class _Parts:
    """A file of a place that is read in parts."""

    def __init__(self, path: str) -> None:
        self._path, self._start = path, 0

    def seek(self, start: int) -> None:
        self._start = start

    def read(self, num_bytes: int) -> bytes:
        return files.read_bytes(self._path, self._start, num_bytes)


@contextlib.contextmanager
def _open_published(path: str) -> Iterator[tuple[Any, int]]:
    """Opens a file of safetensors; yields it and its length. Errors name the file.

    Raises:
      ValueError: There is no such file, or as what reads it.
    """
    if "://" not in path and os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise ValueError(f"--init_from={path} is not a file")
    if not files.exists(path):
        raise ValueError(no_weights(path))
    try:
        yield _Parts(path), files.num_bytes(path)
    except (OSError, ValueError) as error:
        reason = files.reason(error) if isinstance(error, OSError) else error
        raise ValueError(f"--init_from={path} cannot be read: {reason}") from error


def read_source(config: TrainConfig) -> Source:
    """Returns the weights at config.init_from: a run, checkpoint, SavedModel, Keras' .keras, .h5 or .weights.h5.

    Raises:
      ValueError: There is none of these, it cannot be read, or it is of a custom network other than config.network.
    """
    path = config.init_from
    if path.endswith((".keras", ".h5", ".hdf5")):
        return Source(_read_keras_file(path))
    files.check_no_pattern(path)
    folder = path.rpartition("/")[0]
    if files.exists(main_file(path)):
        if files.exists(f"{folder}/{CONFIG_NAME}"):
            checkpoint = find_checkpoint(folder, path=path, flag=f"--init_from={folder}/{NAME}-")
            return _read_run(read_config(folder), checkpoint, config)
        return Source(_read_checkpoint(path))
    if files.exists(f"{path}/{CONFIG_NAME}"):
        return _read_run(read_config(path), find_checkpoint(path, flag=f"--init_from={path}/{NAME}-"), config)
    if not files.exists(path):
        raise ValueError(no_weights(path))
    if not files.is_folder(path):
        raise ValueError(
            f"--init_from={path} is a file that is not read; give a .keras, .h5, .weights.h5 or .safetensors file, or "
            "a checkpoint without its ending, such as MODEL_DIR/model.ckpt-5000"
        )
    export = find_export(path)
    try:
        origin = read_origin(export)[0]
    except ValueError:  # exported by another program
        return Source(_read_checkpoint(f"{export}/variables/variables"))
    variables = WEIGHTS if program_name(export) == STABLEHLO_NAME else "variables/variables"
    return _read_run(origin, f"{export}/{variables}", config)


def _read_run(origin: TrainConfig, checkpoint: str, config: TrainConfig) -> Source:
    """Returns the weights of a run of this program, whose config names its network."""
    if is_users(origin.network) and origin.network != config.network:
        raise ValueError(
            f"--init_from={config.init_from} has the custom network {origin.network}, whose code is imported only if "
            f"you name it; use --network={origin.network}, or export the run to Keras' .weights.h5"
        )
    return Source(weights_of_run(origin, checkpoint, f"--init_from={config.init_from}"), origin.classes)


def weights_of_run(config: TrainConfig, checkpoint: str, source: str) -> dict[str, Array]:
    """Returns the weights in a checkpoint of a run of this program, as make_weighted_model() takes them.

    Args:
      config: Config of the run, whose network is made.
      checkpoint: Path of one of its checkpoints, or of the variables of an export.
      source: How a message names it.

    Raises:
      ValueError: The checkpoint lacks a variable.
    """
    model, values = make_weighted_model(config), {}
    names = {id(variable): name for name, variable in named_weights(model).items()}
    reader = open_checkpoint(checkpoint)
    for path, (variable, _) in variables_of(model).items():
        # With --ema the averages are what is evaluated; an export has no other weights.
        if isinstance(reader, ArrayReader):  # of --trainer=jax
            name, keys = path, [f"ema/{path}", f"weights/{path}", f"fixed/{path}", path]
        else:
            name = names[id(variable)]
            keys = [f"ema_{name}", f"ema/{name}{VARIABLE_SUFFIX}", name, f"weights/{name}{VARIABLE_SUFFIX}"]
        key = next((key for key in keys if reader.has_tensor(key)), None)
        if key is None:
            raise ValueError(f"{source}: {checkpoint!r} has no {name}, the {path} of its network")
        values[path] = reader.get_tensor(key)
    return values


def _read_checkpoint(checkpoint: str) -> dict[str, Array]:
    """Returns the variables of any checkpoint of TensorFlow by name, without its optimizer's."""
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(checkpoint)
        full_names = _full_names(reader)
        return {
            full_names.get(key) or key.removesuffix(VARIABLE_SUFFIX): reader.get_tensor(key)
            for key, dtype in reader.get_variable_to_dtype_map().items()
            if (dtype.is_floating or dtype.is_integer) and not NOT_WEIGHTS.search(full_names.get(key) or key)
        }
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        raise ValueError(f"{checkpoint!r} is not a checkpoint that TensorFlow can read: {first_line(error)}") from error


def _full_names(reader: Any) -> dict[str, str]:
    """Returns the names of variables, such as conv2d/kernel, by the key of an object-based checkpoint."""
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    if not reader.has_tensor(_OBJECT_GRAPH):
        return {}
    graph = TrackableObjectGraph.FromString(reader.get_tensor(_OBJECT_GRAPH))
    attributes = [attribute for node in graph.nodes for attribute in node.attributes]
    return {attribute.checkpoint_key: attribute.full_name for attribute in attributes if "/" in attribute.full_name}


def _read_keras_file(path: str) -> dict[str, Array]:
    try:
        with tempfile.TemporaryDirectory() as folder:
            local = f"{folder}/{path.rpartition('/')[2]}"  # neither Keras nor h5py opens gs://
            files.copy(path, local)
            return read_keras_weights(local)
    except Exception as error:  # of h5py, of almost any type
        raise ValueError(f"--init_from={path} cannot be read: {first_line(error)}") from error


def _dtype(variable: Any) -> npt.DTypeLike:
    """Returns the NumPy dtype of a variable of TensorFlow or Keras."""
    return np.dtype(getattr(variable.dtype, "as_numpy_dtype", variable.dtype))


def _match(aliases: Iterable[str], values: Mapping[str, Array]) -> tuple[str, str]:
    """Returns the name in `values` that is one of the aliases, alone or after folders, or "" and the reason."""
    for alias in aliases:
        if alias in values:
            return alias, ""
        matches = [name for name in values if name.endswith(f"/{alias}")]
        if len(matches) == 1:
            return matches[0], ""
        if matches:
            return "", f"{len(matches)} variables of the source have this name"
    return "", "not in the source"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_MOST_NAMES]) + (", …" if len(listed) > _MOST_NAMES else "")
