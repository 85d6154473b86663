"""Networks of keras.applications, by the names of its functions, as "keras:EfficientNetV2B0".

    images [N, H, W, 3] float32, normalized ──pixels──▶ 0 … 255 ──preprocess_input──▶ Keras' network ──▶ logits

Weights are random; --init_from loads the weights of a .keras file of the same network. They were trained on images from
the network's own preprocess_input, so the normalization by the dataset's mean and deviation is undone.
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from estimator_app.model.keras_library import keras, layers

_MOST_SUGGESTIONS = 3  # similar names that a message lists


def applications() -> tuple[str, ...]:
    """Returns the names of the networks that the installed Keras has."""
    return tuple(sorted(name for name in dir(keras().applications) if name[0].isupper()))


def check_application(name: str) -> None:
    """Checks that the installed Keras has a network; imports and runs nothing of that name.

    Args:
      name: "keras:NAME", with the name of a function of keras.applications.

    Raises:
      ValueError: It has none of that name.
    """
    prefix, _, short = name.partition(":")
    names = applications()
    if short not in names:
        by_lower = {key.lower(): key for key in names}
        close = difflib.get_close_matches(short.lower(), by_lower, n=_MOST_SUGGESTIONS, cutoff=0.5)
        hint = f"; did you mean {' or '.join(f'{prefix}:{by_lower[key]}' for key in close)}?" if close else ""
        tensorflow = sys.modules.get("tensorflow")
        version = f"TensorFlow {tensorflow.__version__}" if tensorflow else f"Keras {keras().__version__}"
        raise ValueError(
            f"network {name!r}: keras.applications of {version} has {len(names)} networks, but no {short!r}{hint}"
        )


def application(name: str, mean: Sequence[float], std: Sequence[float]) -> Callable[[Any, int, bool | None], Any]:
    """Returns a network of keras.applications, (images, num_classes, training) -> logits.

    It is Keras' own with its top, but that the last layer with weights computes in float32 and without a softmax.

    Args:
      name: One of applications().
      mean: Of each channel, in 0 … 255, which was subtracted from the images.
      std: Of each channel, by which they were divided then.
    """
    make = getattr(keras().applications, name)
    preprocess = sys.modules[make.__module__].preprocess_input

    def network(images: Any, num_classes: int, training: bool | None) -> Any:
        to_pixels = layers.Rescaling(list(std), list(mean), dtype="float32")
        pixels, shape = preprocess(to_pixels(images)), images.shape[1:]
        model = make(weights=None, input_tensor=pixels, input_shape=shape, classes=num_classes)
        # ConvNeXt and RegNet of Keras 2 begin at the images, whatever comes before input_tensor.
        begins_at_pixels = to_pixels in model.layers
        if not begins_at_pixels:
            model = make(weights=None, input_shape=shape, classes=num_classes)
        last = [layer for layer in model.layers if layer.weights][-1]
        # Some have a convolution of a single pixel as the last layer, hence the Flatten.
        logits = layers.Flatten(dtype="float32")(_in_float32(last, activation="linear")(last.input))
        if not begins_at_pixels:
            logits = keras().Model(model.input, logits).call(pixels)  # adds each layer to the graph of `images`
        return _copied(images, logits, only_normalised=begins_at_pixels)

    network.__name__ = name
    return network


def _copied(images: Any, logits: Any, only_normalised: bool) -> Any:
    """Returns the logits of a copy of the network, whose Normalization layers have float32 variables.

    Keras makes them in the precision of the arithmetic, unlike all other layers'. Each layer of the copy is in
    one place of one graph only.

    Args:
      images: Input of the network.
      logits: Its output.
      only_normalised: Whether a network without such layers is returned as it is.
    """
    model = keras().Model(images, logits)
    if only_normalised and not any(isinstance(layer, layers.Normalization) for layer in model.layers):
        return logits

    def copied(layer: Any) -> Any:
        is_one = isinstance(layer, layers.Normalization)
        return _in_float32(layer) if is_one else type(layer).from_config(_config(layer))

    return keras().models.clone_model(model, input_tensors=images, clone_function=copied).output


def _in_float32(layer: Any, **options: Any) -> Any:
    """Returns a new layer like another one, with float32 arithmetic and variables."""
    return type(layer).from_config(_config(layer) | {"dtype": "float32"} | options)


def _config(layer: Any) -> dict[str, Any]:
    with warnings.catch_warnings():  # Keras 2 warns of initializers that its own networks have
        warnings.filterwarnings("ignore", "The `keras.initializers.serialize", UserWarning)
        config: dict[str, Any] = layer.get_config()
    return config
