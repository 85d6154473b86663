"""Networks: functions from images to logits.

    images [N, H, W, 3] float32, normalised ──network(images, num_classes, training)──▶ logits [N, num_classes]

A network is made of Keras layers and models applied to `images`, a keras.Input, and passes `training` on to those that
ask for it. Whatever it does to their weights, such as load_weights() or trainable = False, holds in either trainer.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from estimator_app.model.resnet import convolved, normalised, resnet18, resnet50
from estimator_app.runtime.choices import check_choice

layers = tf.keras.layers

# (images, num_classes, training) -> logits. `training` is None, which leaves it to each call of the keras.Model.
Network = Callable[[Any, int, "bool | None"], Any]


def cnn(images: Any, num_classes: int, training: bool | None) -> Any:
    """Returns the logits of a small convolutional network.

    Three stages of two 3 x 3 convolutions, the first of which halves the image; then the mean over all places, so that
    any image_size will do. There is no dropout: its state would not survive a restart, and resuming is exact.
    """
    for filters in (32, 64, 128):
        for stride in (2, 1):
            images = layers.ReLU()(normalised(convolved(images, filters, 3, stride), training))
    return layers.Dense(num_classes, dtype="float32")(layers.GlobalAveragePooling2D()(images))


NETWORKS: dict[str, Network] = {"cnn": cnn, "resnet18": resnet18, "resnet50": resnet50}


def is_users(name: str) -> bool:
    """Returns whether a network is somebody's own, whose module has to be imported."""
    return ":" in name


def check_network(name: str) -> None:
    """Checks how a network is written; imports nothing, for the name may come from a stranger's config.json.

    Raises:
      ValueError: There is no such network, or it is not written as package.module:function.
    """
    if not is_users(name):
        check_choice("network", name, [*NETWORKS, "package.module:function"])
    elif not re.fullmatch(r"\w[\w.-]*:\w+", name):
        raise ValueError(f"network {name!r}: no function; write package.module:function")


def find_network(name: str) -> Network:
    """Returns the network of that name: one of NETWORKS, or anybody's, as "package.module:function".

    Raises:
      ValueError: There is none, or it cannot be imported, or takes other arguments.
    """
    check_network(name)
    if not is_users(name):
        return NETWORKS[name]
    module_name, _, function_name = name.partition(":")
    try:
        network = getattr(importlib.import_module(module_name), function_name)
        inspect.signature(network).bind("images", "num_classes", "training")
    except ModuleNotFoundError as error:
        raise ValueError(
            f"network {name!r}: no module {error.name!r} in the working directory or among the installed packages"
        ) from error
    except AttributeError as error:
        raise ValueError(f"network {name!r}: {error}") from error
    except TypeError as error:
        raise ValueError(f"network {name!r}: must take (images, num_classes, training): {error}") from error
    except Exception as error:  # somebody's module may raise anything while it is imported
        raise ValueError(f"network {name!r}: {module_name} cannot be imported: {error!r}") from error
    return network  # type: ignore[no-any-return]


def make_model(network: Network, image_size: int, num_classes: int, precision: str = "float32") -> Any:
    """Returns the keras.Model of `network` that takes images [N, image_size, image_size, 3] and the call's `training`.

    Its output are the logits, [N, num_classes] float32.

    Raises:
      ValueError: The network's logits have another shape.
    """
    inputs = tf.keras.Input([image_size, image_size, 3])
    with _computing_in(precision):
        logits = network(inputs, num_classes, None)
        shape = getattr(logits, "shape", None)
        if shape is None or tuple(shape) != (None, num_classes):
            found = f"shape {tuple(shape)}" if shape is not None else repr(logits)
            raise ValueError(
                f"network {network.__name__!r} returned logits of {found}, needs {(None, num_classes)}: "
                "a row an image, a column a class"
            )
        logits = layers.Activation("linear", dtype="float32")(logits)
    return tf.keras.Model(inputs, logits)


def apply(model: Any, images: tf.Tensor, training: bool) -> tf.Tensor:
    """Returns the logits of a keras.Model, in a tf.function of any kind.

    Keras 2 understands a layer's `if` and `for` over tensors where its caller does, as Keras' own fit() does; and the
    functions of the trainers, whose own statements are Python's, do not. Keras 3 understands none.
    """
    if hasattr(tf.keras, "ops"):  # Keras 3
        return model(images, training=training)
    return _understood()(model, images, training)


@functools.cache
def _understood() -> Callable[..., tf.Tensor]:
    def call(model: Any, images: tf.Tensor, training: bool) -> tf.Tensor:
        return model(images, training=training)

    return tf.autograph.to_graph(call)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _computing_in(precision: str) -> Iterator[None]:
    """Makes Keras layers compute in `precision`; their variables are float32 in any case.

    The policy is Keras' own and global, which is how it reaches anybody's layers; so it is put back.
    """
    policies = tf.keras.mixed_precision
    before = policies.global_policy()
    policies.set_global_policy("mixed_bfloat16" if precision == "bfloat16" else "float32")
    try:
        yield
    finally:
        policies.set_global_policy(before)
