"""Names of the layers and variables of a keras.Model that do not depend on the models made before in a process.

A layer keeps the name that the user gave it. Keras' own names, numbered per process, are renumbered per model:
conv2d, conv2d_1, … A variable is called LAYER/KIND, such as conv2d_1/kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from estimator_app.model.keras_library import layers, plain_variable


def layers_of(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields (name, layer) of the layers of a keras.Model that have weights, also of models inside it, in order."""
    return ((name, layer) for name, _, layer in _named_layers(model) if layer.weights)


def every_layer(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields (name, layer) of all layers of a keras.Model but its input, also of those without weights, in order."""
    return ((name, layer) for name, _, layer in _named_layers(model) if not isinstance(layer, layers.InputLayer))


def _named_layers(model: Any) -> Iterator[tuple[str, str, Any]]:
    """Yields (name, the name that counts layers of its class, layer) of all layers."""
    leaves = list(_leaves(model))
    for layer, (name, counted) in zip(leaves, numbered((type(x).__name__, x.name) for x in leaves), strict=True):
        yield name, counted, layer


def numbered(layers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yields (name, the name that counts layers of its class) of layers, from their class and the name of each."""
    counts, repeats = Counter[str](), Counter[str]()
    names: set[str] = set()
    for class_name, layer_name in layers:
        kind = folder_name(class_name)
        counted = f"{kind}_{counts[kind]}" if counts[kind] else kind
        counts[kind] += 1
        name = base = counted if re.fullmatch(rf"{re.escape(kind)}(_\d+)?", layer_name) else layer_name
        while name in names:  # two models inside have layers of the same given name
            repeats[base] += 1
            name = base + "_" * repeats[base]
        names.add(name)
        yield name, counted


def freeze(model: Any, pattern: str) -> None:
    """Makes the layers whose names match a regular expression keep their weights, with all statistics.

    Args:
      model: A keras.Model.
      pattern: Has to match a whole name of layers_of().

    Raises:
      ValueError: It matches no layer, or no layer is left to train.
    """
    matches = [(name, layer) for name, layer in layers_of(model) if re.fullmatch(pattern, name)]
    names = ", ".join(name for name, _ in layers_of(model))
    if not matches:
        raise ValueError(f"--freeze={pattern} matches no whole name of a layer; the network has {names}")
    for _, layer in matches:
        layer.trainable = False
    if not model.trainable_weights:
        raise ValueError(f"--freeze={pattern} leaves nothing to train; the network has {names}")


def folder_name(class_name: str) -> str:
    """Returns the name that Keras gives to the first layer of a class, such as conv2d or batch_normalization."""
    parted = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", class_name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", parted).lower()


def _leaves(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        if getattr(layer, "layers", None):
            yield from _leaves(layer)
        else:
            yield layer


def variables_of(model: Any) -> dict[str, tuple[Any, list[str]]]:
    """Returns the variables of a model by LAYER/KIND, each with the names under which a file may hold it."""
    variables: dict[str, tuple[Any, list[str]]] = {}
    for name, counted, layer in _named_layers(model):
        stored = _stored_names(layer)
        for number, weight in enumerate(layer.weights):
            suffix, file_suffix = _name_in(layer, weight), stored.get(id(weight), f"vars/{number}")
            path = f"{name}/{suffix}" if f"{name}/{suffix}" not in variables else f"{name}/{suffix}_{number}"
            aliases = [path, f"{counted}/{suffix}", f"{name}/{file_suffix}", f"{counted}/{file_suffix}"]
            variables[path] = plain_variable(weight), list(dict.fromkeys(aliases))
    ids = {id(variable) for variable, _ in variables.values()}
    for weight in model.weights:  # of a model inside that has variables besides its layers'
        if id(plain_variable(weight)) not in ids:
            path = "/".join(getattr(weight, "path", weight.name).removesuffix(":0").split("/")[-2:])
            variables[path] = plain_variable(weight), [path]
    return variables


def _stored_names(layer: Any) -> dict[int, str]:
    """Returns how files of Keras name the weights of the layers inside a layer, such as query_dense/vars/0, by id."""
    stored: dict[int, str] = {}
    for attribute, inside in vars(layer).items():
        if isinstance(inside, layers.Layer) and inside is not layer:
            names = {id(weight): f"vars/{number}" for number, weight in enumerate(inside.weights)} | _stored_names(
                inside
            )
            stored |= {key: f"{attribute.lstrip('_')}/{name}" for key, name in names.items()}
    return stored


def _name_in(layer: Any, weight: Any) -> str:
    """Returns the name of a weight within its layer, such as kernel or query/kernel."""
    path = getattr(weight, "path", weight.name).removesuffix(":0")
    _, separator, inside = path.rpartition(f"{layer.name}/")
    name = str(inside if separator else path.rpartition("/")[2])
    return re.sub(r"\bvariable_\d+$", "variable", name)  # Keras 3 counts the variables without a name of a process
