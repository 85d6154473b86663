"""One convolution of 3 x 3 with both its gradients, by XLA and by TensorFlow with oneDNN, on this machine's processor.

    python -m benchmarks.training.convolutions [--repeats=5] [--newest=.venv-newest/bin/python]

Batches and maps are those of ResNet-18: of images of 32 pixels in batches of 64, and of images of 224 pixels in batches
of 16. It explains the step of `resnet18` in `python -m benchmarks.training.trainers`. The two take turns in the Python
of --newest, which has JAX and TensorFlow, each in a process of its own.
"""

from __future__ import annotations

import argparse
import functools

from benchmarks import measure

# (batch size, pixels a side of a map, channels)
SHAPES = ((64, 8, 64), (64, 2, 256), (64, 1, 512), (16, 56, 64), (16, 14, 256), (16, 7, 512))
PROGRAMS = {
    "xla": """
        import jax
        @jax.jit
        def step(images, filters, weights):
            def total(images, filters):
                form = ("NHWC", "HWIO", "NHWC")
                maps = jax.lax.conv_general_dilated(images, filters, (1, 1), "SAME", dimension_numbers=form)
                return (maps * weights).sum()
            return jax.grad(total, (0, 1))(images, filters)
        def run(*arrays):
            jax.block_until_ready(step(*arrays))
        arrays = jax.device_put(arrays)
    """,
    "onednn": """
        import tensorflow as tf
        @tf.function
        def step(images, filters, weights):
            with tf.GradientTape() as tape:
                tape.watch((images, filters))
                total = tf.reduce_sum(tf.nn.conv2d(images, filters, 1, "SAME") * weights)
            return tape.gradient(total, (images, filters))
        def run(*arrays):
            for gradient in step(*arrays):
                gradient.numpy()
        arrays = [tf.constant(array) for array in arrays]
    """,
}
PROGRAM = """
import json, sys, textwrap, time
import numpy as np
batch, side, channels, least_seconds = json.loads(sys.argv[2])
rng = np.random.default_rng(0)
maps, filters = (batch, side, side, channels), (3, 3, channels, channels)
arrays = [rng.normal(size=shape).astype(np.float32) for shape in (maps, filters, maps)]
exec(textwrap.dedent(sys.argv[1]))
run(*arrays)
times, end = [], time.monotonic() + least_seconds
while time.monotonic() < end or len(times) < 5:
    start = time.perf_counter()
    run(*arrays)
    times.append(1000 * (time.perf_counter() - start))
print(json.dumps({"ms": float(np.median(times))}))
"""
COLUMNS = {
    "batch": "batch",
    "map": "map",
    "channels": "channels",
    "XLA, ms": "xla:.1f",
    "oneDNN, ms": "onednn:.1f",
    "ratio": "ratio:.1f",
}


def timed(newest: str, name: str, shape: tuple[int, int, int]) -> dict[str, float]:
    """Returns {"ms": the median time of a convolution and its gradients}."""
    command = [newest, "-W", "ignore", "-c", PROGRAM, PROGRAMS[name], str([*shape, 1.0])]
    return measure.check(measure.run(command, TF_ENABLE_ONEDNN_OPTS="1"), command).result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--newest", default=".venv-newest/bin/python", help="Python with JAX and TensorFlow")
    flags = parser.parse_args()
    rows = []
    for shape in SHAPES:
        batch, side, channels = shape
        ways = {name: functools.partial(timed, flags.newest, name, shape) for name in PROGRAMS}
        times = {name: measure.medians(runs)["ms"] for name, runs in measure.in_turn(ways, flags.repeats).items()}
        row = {"batch": batch, "map": f"{side} x {side}", "channels": channels, **times}
        rows.append(row | {"ratio": times["xla"] / times["onednn"]})
    versions = measure.versions(flags.newest, "tensorflow", "jax")
    notes = [f"medians of {flags.repeats} runs of a second each; {versions}"]
    measure.keep("convolutions", measure.Table(rows, COLUMNS, notes))


if __name__ == "__main__":
    main()
