"""Parameters and arithmetic of the networks, for docs/benchmarks.md; what else TensorFlow says goes to stderr.

python -m benchmarks.training.networks 2>/dev/null
"""

from __future__ import annotations

import platform

import numpy as np
import tensorflow as tf

from estimator_app.model.networks import NETWORKS, find_network, make_model

v1 = tf.compat.v1
CASES = [
    ("cnn", 32, 10),
    *((name, 224, 1000) for name in ("resnet18", "resnet50", "vit_s16", "keras:EfficientNetV2B0", "keras:MobileNetV2")),
]


def flops(name: str, image_size: int, num_classes: int) -> int:
    """Returns the floating-point operations of one image's way through the network; a multiply-add counts as two."""
    model = make_model(find_network(name), image_size, num_classes)
    images = tf.TensorSpec([1, image_size, image_size, 3], tf.float32)
    graph = tf.function(lambda images: model(images, training=False)).get_concrete_function(images).graph
    options = v1.profiler.ProfileOptionBuilder.float_operation() | {"output": "none"}
    return int(v1.profiler.profile(graph, options=options).total_float_ops)


def main() -> None:
    assert {name for name, *_ in CASES} >= set(NETWORKS)
    print(f"Python {platform.python_version()}, TensorFlow {tf.__version__}\n")
    print("| network | image | classes | parameters | GFLOP an image |\n|---|---|---|---|---|")
    for name, image_size, num_classes in CASES:
        model = make_model(find_network(name), image_size, num_classes)
        parameters = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
        arithmetic = flops(name, image_size, num_classes) / 1e9
        print(f"| {name} | {image_size} px | {num_classes:,} | {parameters:,} | {arithmetic:.3g} |", flush=True)


if __name__ == "__main__":
    main()
