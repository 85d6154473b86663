"""Trains, evaluates and exports a small classifier with Keras 3, on TensorFlow or JAX.

    KERAS_BACKEND=jax python examples/keras_train.py --dataset=photos_tfrecords --model_dir=model

The same command resumes a training that was killed, exactly, from the last of its checkpoints.
"""

import argparse
import os
import time

import keras

import tpu_input
from tpu_input.keras import Checkpoint, Normalize, trained_steps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dataset", required=True, help="folder or URI of a converted dataset")
parser.add_argument("--model_dir", required=True, help="folder of the checkpoint and the export")
parser.add_argument("--train_steps", type=int, default=600, help="steps in all")
parser.add_argument("--steps_per_eval", type=int, default=200, help="steps between evaluations, an epoch of Keras")
parser.add_argument("--save_steps", type=int, default=100, help="steps between checkpoints")
parser.add_argument("--learning_rate", type=float, default=0.1, help="peak learning rate, after 1/18 of the steps")
parser.add_argument("--no_flip", dest="flip", action="store_false", help="do not mirror images, e.g. of digits")
parser.add_argument("--eval_crop", type=float, default=0.875, help="share of the shorter side that evaluation sees")
parser.add_argument("--seed", type=int, default=0, help="seed of weights, order and crops")
flags = parser.parse_args()


def make_model(size: int, num_classes: int) -> keras.Model:
    images = keras.Input([size, size, 3], dtype="uint8")
    x = Normalize.from_dataset(flags.dataset)(images)  # on the device
    for filters in (32, 64, 128):
        for stride in (2, 1):
            x = keras.layers.Conv2D(filters, 3, stride, "same", use_bias=False, kernel_initializer="he_normal")(x)
            x = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x))
    model = keras.Model(images, keras.layers.Dense(num_classes)(keras.layers.GlobalAveragePooling2D()(x)))
    warm, peak = flags.train_steps // 18, flags.learning_rate
    rate = keras.optimizers.schedules.CosineDecay(0.0, flags.train_steps - warm, warmup_target=peak, warmup_steps=warm)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=1e-4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, weighted_metrics=["accuracy"])
    return model


class Progress(keras.callbacks.Callback):
    """Prints a line about every ten seconds and after the last step."""

    def on_epoch_begin(self, epoch, logs=None):
        self.before, self.steps, self.time = trained_steps(self.model), 0, time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        self.steps, seconds = self.steps + 1, time.monotonic() - self.time
        if seconds > 10 or batch + 1 == self.params["steps"]:
            speed = self.steps * options["batch_size"] / seconds
            print(f"step {self.before + batch + 1}: mean loss {logs['loss']:.4f}, {speed:.3g} images/s", flush=True)
            self.steps, self.time = 0, time.monotonic()


keras.utils.set_random_seed(flags.seed)
manifest, path = tpu_input.read_manifest(flags.dataset), f"{flags.model_dir}/checkpoint.keras"
options = {"batch_size": 64, "seed": flags.seed, "flip": flags.flip, "eval_crop": flags.eval_crop}
validation = tpu_input.load(manifest, "validation", **options)  # every example once, without padding
os.makedirs(flags.model_dir, exist_ok=True)
image, _, _ = validation.element_spec
model = keras.models.load_model(path) if os.path.exists(path) else make_model(image.shape[1], len(manifest.classes))
while (step := trained_steps(model)) < flags.train_steps:
    epoch, callbacks = step // flags.steps_per_eval, [Checkpoint(path, flags.save_steps), Progress()]
    steps = min((epoch + 1) * flags.steps_per_eval, flags.train_steps) - step  # of what is left of the epoch
    train = tpu_input.load(manifest, start_step=step, **options)
    fitting = {"steps_per_epoch": steps, "initial_epoch": epoch, "epochs": epoch + 1, "callbacks": callbacks}
    model.fit(train, **fitting, shuffle=False, verbose=0)  # load() has shuffled
    print(model.evaluate(validation, return_dict=True, verbose=0), flush=True)
if keras.backend.backend() == "tensorflow":  # run once more so after a training on JAX, whose programs it may not read
    model.export(f"{flags.model_dir}/export", verbose=False)
