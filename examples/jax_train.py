"""Trains an image classifier in JAX, on all devices of one or several processes, with the input of tpu_input.

    shards ──tpu_input──▶ each process's part ──global_batches()──▶ a batch over all devices ──train_step()──▶ loss
    python examples/jax_train.py --dataset=DATASET --model_dir=MODEL

Several processes each run this command: with --distributed on Cloud TPU, Slurm and Kubernetes, else with --distributed
ADDRESS:PORT N I for process I of N. It resumes from the last checkpoint, also with another number of processes.
"""

import argparse
import functools
import os

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tpu_input


def create_model(num_classes, dtype, rngs):
    """Returns estimator_app's network `cnn`, from images [N, H, W, 3] float32 to logits [N, num_classes] float32."""
    layers = []
    common = {"use_bias": False, "kernel_init": nnx.initializers.he_normal(), "dtype": dtype, "rngs": rngs}
    for channels, filters, stride in ((3, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)):
        norm = nnx.BatchNorm(filters, momentum=0.9, epsilon=1e-5, dtype=dtype, rngs=rngs)
        layers += [nnx.Conv(channels, filters, (3, 3), stride, **common), norm, nnx.relu]
    layers.append(lambda images: images.astype(jnp.float32).mean((1, 2)))
    return nnx.Sequential(*layers, nnx.Linear(128, num_classes, rngs=rngs))


def create_train_state(args, manifest):
    """Returns the model and its optimizer: momentum, a warm-up and half a cosine, weight decay of kernels alone."""
    model = create_model(len(manifest.classes), jnp.bfloat16 if args.bfloat16 else jnp.float32, nnx.Rngs(args.seed))
    peak, warmup = args.learning_rate, round(args.train_steps * 5 / 90)
    rate = optax.warmup_cosine_decay_schedule(peak / (warmup + 1), peak, warmup, args.train_steps)
    decay = optax.add_decayed_weights(1e-4, lambda weights: jax.tree.map(lambda weight: weight.ndim > 1, weights))
    return model, nnx.Optimizer(model, optax.chain(decay, optax.sgd(rate, 0.9, nesterov=True)), wrt=nnx.Param)


def batch_sums(model, config, batch):
    """Returns sums over the examples of all processes, where padding has weight 0; XLA makes a psum of each."""
    image, label, weight = batch
    logits = model(tpu_input.from_infeed(image, config))  # undoes the layout and normalizes, on the device
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, label)
    values = {"examples": 1, "correct": logits.argmax(-1) == label, "loss": losses}
    return {name: jnp.sum(value * weight) for name, value in values.items()}


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def train_step(definition, config, state, batch):
    """Returns the state after a step, and the step's mean loss."""
    model, optimizer = nnx.merge(definition, state)

    def mean_loss(model):
        sums = batch_sums(model, config, batch)
        return sums["loss"] / jnp.maximum(sums["examples"], 1)

    loss, gradients = nnx.value_and_grad(mean_loss)(model)
    optimizer.update(model, gradients)
    return nnx.state((model, optimizer)), loss


@functools.partial(jax.jit, static_argnums=(0, 1))
def eval_step(definition, config, state, batch):
    """Returns batch_sums(), normalized by the moving averages of training."""
    model, _ = nnx.merge(definition, state)
    model.eval()
    return batch_sums(model, config, batch)


def make_shardings(devices, layout):
    """Returns how the state lies on the devices, a copy on each, and image, label and weight, divided by examples."""
    mesh = Mesh(devices, ("data",))
    divided = [NamedSharding(mesh, PartitionSpec(*[None] * axis, "data")) for axis in (layout.index("N"), 0, 0)]
    return NamedSharding(mesh, PartitionSpec()), tuple(divided)


def global_batches(manifest, split, batch_size, divided, **options):
    """Yields (image, label, weight) over all devices, of which each process reads and holds its own part."""
    host_options = {"host": jax.process_index(), "num_hosts": jax.process_count(), "static_batch": True}
    dataset = tpu_input.load(manifest, split, batch_size=batch_size // jax.process_count(), **host_options, **options)
    for batch in tpu_input.as_numpy(dataset):
        yield jax.make_array_from_process_local_data(divided, batch)


def evaluate(definition, config, state, batches):
    """Returns the metrics of a split as text: every example counts once, over all processes."""
    results = [eval_step(definition, config, state, batch) for batch in batches]
    examples, correct, loss = (sum(float(sums[name]) for sums in results) for name in ("examples", "correct", "loss"))
    return f"{examples:.0f} examples, accuracy {correct / examples:.4f}, loss {loss / examples:.6f}"


def restore_checkpoint(checkpoints, state, position):
    """Returns state and step of the last checkpoint, of a run with the same batches; `state` and 0 without one."""
    if (step := checkpoints.latest_step()) is None:
        return state, 0
    saved = checkpoints.restore(step, args=ocp.args.Composite(position=ocp.args.JsonRestore())).position
    if saved != position | {"step": step}:
        raise SystemExit(f"error: {checkpoints.directory} has a run of {saved}, this one is of {position}")
    return checkpoints.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(state))).state, step


def train(args):
    """Trains up to args.train_steps, from the last checkpoint on if there is one."""
    manifest, num_devices = tpu_input.read_manifest(args.dataset), jax.device_count()
    if args.batch_size % num_devices:
        raise SystemExit(f"error: --batch_size must be a multiple of the {num_devices} devices, got {args.batch_size}")
    options = {"layout": "HWCN", "flip": not args.no_flip, "seed": args.seed}
    config = tpu_input.InputConfig.of(manifest, **options)
    replicated, divided = make_shardings(jax.devices(), config.layout)
    definition, state = jax.jit(lambda: nnx.split(create_train_state(args, manifest)), out_shardings=replicated)()
    position = {"dataset": manifest.fingerprint, "batch_size": args.batch_size, "seed": args.seed}
    checkpoints = ocp.CheckpointManager(args.model_dir, options=ocp.CheckpointManagerOptions(max_to_keep=3))
    state, start = restore_checkpoint(checkpoints, state, position)
    say = functools.partial(print, flush=True) if jax.process_index() == 0 else lambda text: None
    say(f"step {start} of {args.train_steps}, on {num_devices} devices of {jax.process_count()} processes")
    batches = functools.partial(global_batches, manifest, batch_size=args.batch_size, divided=divided, **options)
    for step, batch in zip(range(start + 1, args.train_steps + 1), batches("train", start_step=start), strict=False):
        state, loss = train_step(definition, config, state, batch)
        if step % args.log_steps == 0:
            say(f"step {step}: loss {float(loss):.6f}")
        if step % args.steps_per_eval == 0 or step == args.train_steps:
            items = {"state": ocp.args.StandardSave(state), "position": ocp.args.JsonSave(position | {"step": step})}
            checkpoints.save(step, args=ocp.args.Composite(**items))
            say(f"step {step}: {evaluate(definition, config, state, batches('validation'))}")
    checkpoints.close()  # when the last checkpoint is written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="folder or URI of a dataset made by jpeg2tpu convert")
    parser.add_argument("--model_dir", required=True, help="folder or URI of the checkpoints")
    defaults = {"batch_size": 256, "learning_rate": 0.1, "seed": 0}
    for name, default in {**defaults, "train_steps": 1000, "steps_per_eval": 200, "log_steps": 10}.items():
        parser.add_argument(f"--{name}", default=default, type=type(default), help="(default: %(default)s)")
    parser.add_argument("--distributed", nargs="*", help="several processes; see above (default: this one)")
    parser.add_argument("--no_flip", action="store_true", help="do not mirror images at random")
    parser.add_argument("--bfloat16", action="store_true", help="compute in bfloat16; weights stay float32")
    args = parser.parse_args()
    args.model_dir = args.model_dir if "://" in args.model_dir else os.path.abspath(args.model_dir)  # as orbax wants it
    if args.distributed is not None:
        jax.distributed.initialize(*args.distributed[:1], *map(int, args.distributed[1:]))
    import tensorflow as tf

    tf.config.set_visible_devices(tf.config.get_visible_devices("CPU"))  # TensorFlow prepares the input on the host
    train(args)
