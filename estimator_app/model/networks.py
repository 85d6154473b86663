"""Networks: functions from images to logits.

    images [N, H, W, 3] float32, normalized ──network(images, num_classes, training)──▶ logits [N, num_classes]

A network is made of Keras layers and models applied to `images`, a keras.Input, and passes `training` on to those that
take it. Changes that it makes to their weights, such as load_weights() or trainable = False, take effect in all
trainers.

ResNet-18 to ResNet-101 v1.5 follow He et al. 2016, "Deep Residual Learning", table 1. Version 1.5 has the stride
of 2 in a bottleneck's 3 × 3 convolution instead of the 1 × 1 before it, which skips three of four positions: 0.5 % more
accuracy at 5 % fewer images/s, according to NVIDIA's Deep Learning Examples, "ResNet50 v1.5".

The vision transformer is in vit.py, and what makes networks of keras.applications by name is in keras_applications.py.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from estimator_app.model.keras_applications import application
from estimator_app.model.keras_library import is_keras_3, keras, layers, on_jax
from estimator_app.model.network_names import PATCH, PREFIX, check_network, is_users, users_network
from estimator_app.runtime.origin import raised_at
from estimator_app.runtime.tensorflow_startup import one_line

HEAD = "head"  # name of the last layer of the networks below, which has one output for each class

# (images, filters, stride, training, name) -> images
Block = Callable[[Any, int, int, "bool | None", str], Any]


def resnet18(images: Any, num_classes: int, training: bool | None) -> Any:
    """Returns the logits of ResNet-18."""
    return _resnet(images, num_classes, training, _basic, (2, 2, 2, 2))


def resnet34(images: Any, num_classes: int, training: bool | None) -> Any:
    """Returns the logits of ResNet-34."""
    return _resnet(images, num_classes, training, _basic, (3, 4, 6, 3))


def resnet50(images: Any, num_classes: int, training: bool | None) -> Any:
    """Returns the logits of ResNet-50 v1.5."""
    return _resnet(images, num_classes, training, _bottleneck, (3, 4, 6, 3))


def resnet101(images: Any, num_classes: int, training: bool | None) -> Any:
    """Returns the logits of ResNet-101 v1.5."""
    return _resnet(images, num_classes, training, _bottleneck, (3, 4, 23, 3))


def _resnet(images: Any, num_classes: int, training: bool | None, block: Block, depths: tuple[int, ...]) -> Any:
    images = layers.ReLU()(_convolved(images, 64, 7, 2, training, "stem"))
    # Padding with zeros is as good as with -inf, as the output of a ReLU is never negative.
    images = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(images))
    for stage, depth in enumerate(depths):
        for number in range(depth):
            stride = 2 if stage and not number else 1
            images = block(images, 64 * 2**stage, stride, training, f"stage{stage + 1}_block{number + 1}")
    return logits(layers.GlobalAveragePooling2D()(images), num_classes)


def _basic(images: Any, filters: int, stride: int, training: bool | None, name: str) -> Any:
    residual = layers.ReLU()(_convolved(images, filters, 3, stride, training, f"{name}_conv1"))
    residual = _convolved(residual, filters, 3, 1, training, f"{name}_conv2", scale="zeros")
    return layers.ReLU()(layers.add([residual, _shortcut(images, filters, stride, training, name)]))


def _bottleneck(images: Any, filters: int, stride: int, training: bool | None, name: str) -> Any:
    residual = layers.ReLU()(_convolved(images, filters, 1, 1, training, f"{name}_conv1"))
    residual = layers.ReLU()(_convolved(residual, filters, 3, stride, training, f"{name}_conv2"))
    residual = _convolved(residual, 4 * filters, 1, 1, training, f"{name}_conv3", scale="zeros")
    return layers.ReLU()(layers.add([residual, _shortcut(images, 4 * filters, stride, training, name)]))


def _shortcut(images: Any, filters: int, stride: int, training: bool | None, name: str) -> Any:
    """Returns the images unchanged, or projected to the shape of the block's output."""
    if stride == 1 and images.shape[-1] == filters:
        return images
    return _convolved(images, filters, 1, stride, training, f"{name}_shortcut")


def _convolved(
    images: Any, filters: int, size: int, stride: int, training: bool | None, name: str, scale: str = "ones"
) -> Any:
    """Returns convolved() with size // 2 zeros on each side of the images, whatever their size and the stride.

    torchvision's and tensorflow/tpu's networks pad in the same way. Padding "same" pads an image of even size less at a
    stride of 2, and asymmetrically, so that published weights would be applied to shifted positions.
    """
    if stride == 1 or size == 1:  # "same" pads equally here, without a separate layer
        return convolved(images, filters, size, stride, training, name, scale)
    padded = layers.ZeroPadding2D(size // 2)(images)
    return convolved(padded, filters, size, stride, training, name, scale, padding="valid")


def convolved(
    images: Any,
    filters: int,
    size: int,
    stride: int,
    training: bool | None,
    name: str,
    scale: str = "ones",
    padding: str = "same",
) -> Any:
    """Returns a batch-normalized convolution of `size` × `size` without a bias.

    Its weights are initialized as in He et al. 2015, "Delving Deep into Rectifiers", section 2.2. Statistics and
    parameters of the normalization are float32 under any precision.

    Args:
      images: [N, H, W, C].
      filters: Number of channels of the result.
      size: Height and width of the kernel, in pixels.
      stride: In pixels.
      training: Whether to use the batch's statistics instead of the moving averages.
      name: Name of the convolution; the normalization is called NAME_norm. --freeze and --init_from use these names.
      scale: Initializer of the normalization's scale. "zeros" in the last one of a block makes the block start as the
        identity: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 5.1.
      padding: "same" or "valid", as Keras has them.
    """
    convolution = layers.Conv2D(
        filters, size, stride, padding, use_bias=False, kernel_initializer="he_normal", name=name
    )
    # With Keras' default momentum of 0.99, the moving averages need thousands of steps to forget their initial values;
    # 0.9 is from Goyal et al.
    normalisation = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, gamma_initializer=scale, name=f"{name}_norm")
    return normalisation(convolution(images), training=training)


def logits(features: Any, num_classes: int) -> Any:
    """Returns the output of the last dense layer, float32 under any precision; initialized as in Goyal et al."""
    start = keras().initializers.RandomNormal(stddev=0.01)
    return layers.Dense(num_classes, kernel_initializer=start, dtype="float32", name=HEAD)(features)


def vit_s16(images: Any, num_classes: int, training: bool | None) -> Any:
    """Returns the logits of ViT-S/16, the smallest of Steiner et al. 2022, table 2, with a class token.

    The last layer begins as zeros, as in the code of Dosovitskiy et al.
    """
    from estimator_app.model.vit import encoded  # has layers of its own, whose base class is Keras'

    features = encoded(images, PATCH["vit_s16"], width=384, depth=12, heads=6, mlp_width=1536)
    return layers.Dense(num_classes, kernel_initializer="zeros", dtype="float32", name=HEAD)(features)


def vit_b16(images: Any, num_classes: int, training: bool | None) -> Any:
    """Returns the logits of ViT-B/16 of Dosovitskiy et al., table 1; otherwise as vit_s16()."""
    from estimator_app.model.vit import encoded

    features = encoded(images, PATCH["vit_b16"], width=768, depth=12, heads=12, mlp_width=3072)
    return layers.Dense(num_classes, kernel_initializer="zeros", dtype="float32", name=HEAD)(features)


# (images, num_classes, training) -> logits. `training` is None here, so that each call of the keras.Model decides.
Network = Callable[[Any, int, "bool | None"], Any]


def cnn(images: Any, num_classes: int, training: bool | None) -> Any:
    """Returns the logits of a small convolutional network.

    Three stages of two 3 x 3 convolutions each, the first with stride 2; then global average pooling, so that any
    image_size works. There is no dropout: its random state is not saved, and resumed runs must be exact.
    """
    for stage, filters in enumerate((32, 64, 128), 1):
        for number, stride in enumerate((2, 1), 1):
            images = convolved(images, filters, 3, stride, training, f"stage{stage}_conv{number}")
            images = layers.ReLU()(images)
    return layers.Dense(num_classes, dtype="float32", name=HEAD)(layers.GlobalAveragePooling2D()(images))


NETWORKS: dict[str, Network] = {
    network.__name__: network for network in (cnn, resnet18, resnet34, resnet50, resnet101, vit_s16, vit_b16)
}


def find_network(name: str, mean: Sequence[float] = (0, 0, 0), std: Sequence[float] = (1, 1, 1)) -> Network:
    """Returns the network of that name.

    Args:
      name: One of NETWORKS, a network of keras.applications as "keras:NAME", or a custom one, as
        "package.module:function".
      mean: Mean of each channel, in 0 … 255, of the images' normalization, which networks of keras.applications undo.
      std: Standard deviation of each channel, likewise.

    Raises:
      ValueError: There is no such network, its module cannot be imported, or the function takes other arguments.
    """
    check_network(name)
    if name.startswith(PREFIX):
        return application(name.removeprefix(PREFIX), mean, std)
    if not is_users(name):
        return NETWORKS[name]
    return users_network(name)  # type: ignore[no-any-return]


def make_model(network: Network, image_size: int, num_classes: int, precision: str = "float32") -> Any:
    """Returns the keras.Model of `network` that takes images [N, image_size, image_size, 3] and the call's `training`.

    Its outputs are the logits, [N, num_classes] float32.

    Raises:
      ValueError: The network's logits have another shape or are probabilities, or it has no weights to train; or as
        _called().
    """
    inputs = keras().Input([image_size, image_size, 3])
    with _computing_in(precision):
        logits = _called(network, inputs, num_classes)
        shape = getattr(logits, "shape", None)
        if shape is None or tuple(shape) != (None, num_classes):
            returned = f"shape {tuple(shape)}" if shape is not None else repr(logits)
            raise ValueError(
                f"network {network.__name__!r} must return logits of shape {(None, num_classes)}, one row per image "
                f"and one column per class, got {returned}"
            )
        _check_logits(network, model := keras().Model(inputs, logits))
        if not model.trainable_weights:
            raise ValueError(f"network {network.__name__!r} has no weights to train; add a layer that has some")
        logits = layers.Activation("linear", dtype="float32")(logits)
    return keras().Model(inputs, logits)


def _called(network: Network, inputs: Any, num_classes: int) -> Any:
    """Returns the output of a network.

    Raises:
      ValueError: A user's own network raises an exception, or Keras on JAX cannot build it, as it has operations of
        TensorFlow.
      jax.errors.JaxRuntimeError: A device cannot compute the initial weights.
    """
    try:
        return network(inputs, num_classes, None)
    except (Exception, SystemExit) as error:
        if isinstance(error, _device_errors()):
            raise
        reason = one_line(error) if isinstance(error, Exception) else repr(error)
        if on_jax() and "tensorflow" in sys.modules:
            raise ValueError(
                f"network {network.__name__!r} cannot be built by Keras on JAX ({reason}); --trainer=jax takes layers "
                "of Keras 3 and keras.ops, without TensorFlow's operations"
            ) from error
        if getattr(network, "__module__", "").startswith("estimator_app."):
            raise
        place = f" ({line})" if (line := raised_at(error)) else ""
        raise ValueError(f"network {network.__name__!r} raises {type(error).__name__}: {reason}{place}") from error


def _device_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions of JAX or TensorFlow, which Keras has imported, of devices that fail or lack memory."""
    if on_jax():
        return (sys.modules["jax"].errors.JaxRuntimeError,)
    return (sys.modules["tensorflow"].errors.OpError,)


def _check_logits(network: Network, model: Any) -> None:
    """Raises ValueError if the last layer of a network makes probabilities, which would train, but badly."""
    last = model
    while getattr(last, "layers", None):  # a model may be the last layer of another
        last = last.layers[-1]
    function = type(last) if isinstance(last, layers.Softmax) else getattr(last, "activation", None)
    if (name := getattr(function, "__name__", "").lower()) in ("softmax", "sigmoid"):
        raise ValueError(
            f"network {network.__name__!r} ends in a {name}, but must return logits, to which the loss applies one; "
            f"leave it out of the last layer, {last.name!r}"
        )


def apply(model: Any, images: Any, training: bool) -> Any:
    """Returns the logits of a keras.Model, called inside a tf.function with or without autograph.

    Keras 2 converts a layer's `if` and `for` over tensors with autograph only if its caller is converted, as in Keras'
    own fit(). The trainers' functions use autograph=False, so this call is converted by itself. Keras 3 converts none.
    """
    if is_keras_3():
        return model(images, training=training)
    return _understood()(model, images, training)


@functools.cache
def _understood() -> Callable[..., Any]:
    import tensorflow as tf

    def call(model: Any, images: Any, training: bool) -> Any:
        return model(images, training=training)

    return tf.autograph.to_graph(call)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _computing_in(precision: str) -> Iterator[None]:
    """Makes Keras layers compute in `precision`; their variables are always float32.

    Keras' dtype policy is global, so it also applies to the layers of custom networks; it is restored at the end.
    """
    policies = keras().mixed_precision
    before = policies.global_policy()
    policies.set_global_policy("mixed_bfloat16" if precision == "bfloat16" else "float32")
    try:
        yield
    finally:
        policies.set_global_policy(before)
