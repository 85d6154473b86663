"""A run under JAX: its network as pure functions, compiled for all devices, and the values of its variables.

    TrainConfig + model_dir ──make_run()──▶ JaxRun
    JaxRun.initial() or checkpoints.restore() ──JaxRun.on_devices()──▶ TrainState ──JaxRun.train_step──▶ TrainState

Keras makes the network and knows its layers. Its own variables keep the initial values: what is trained is the plain
state of step.py, which Keras' stateless_call() takes in their place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from estimator_app.config import TrainConfig
from estimator_app.model.layer_names import variables_of
from estimator_app.trainers.checks import make_weighted_model
from estimator_app.trainers.jax.batches import device_errors, divided_over, make_mesh, whole_on
from estimator_app.trainers.jax.initial_values import programs_of_few_shapes
from estimator_app.trainers.jax.optimizer import make_optimizer
from estimator_app.trainers.jax.processes import Group, current
from estimator_app.trainers.jax.step import TrainState, Variables, make_eval_step, make_train_step
from estimator_app.trainers.missing_options import check_options
from tpu_input import InputConfig
from tpu_input.command_line.private_folders import make_private

_CACHE = "~/.cache/jpeg2tpu/jax"  # JAX_COMPILATION_CACHE_DIR names another folder


@dataclasses.dataclass(frozen=True)
class JaxRun:
    """The functions of a run, and what they are compiled for.

    Attributes:
      config: Config of the run.
      model_dir: Folder or URI of the checkpoints and event files.
      mesh: The devices.
      variables: The network, and the names of its variables.
      train_step: Of step.make_train_step(), compiled; the state that it is given is used up.
      eval_step: Of step.make_eval_step(), compiled.
      group: The processes that have these devices.
    """

    config: TrainConfig
    model_dir: str
    mesh: Mesh
    variables: Variables
    train_step: Callable[..., Any]
    eval_step: Callable[..., Any]
    group: Group

    def initial(self) -> TrainState:
        """Returns the state before the first step, in NumPy arrays."""
        model = self.variables.model
        weights = _values(self.variables.weights, model.trainable_variables)
        fixed = _values(self.variables.fixed, model.non_trainable_variables)
        averages = {**weights, **fixed} if self.config.ema else {}
        moments = jax.jit(make_optimizer(self.config).init)(weights)  # one program instead of one for each shape
        state = TrainState(np.zeros([], np.int32), weights, fixed, moments, averages)
        on_host: TrainState = jax.tree.map(np.asarray, state)
        return on_host

    def on_devices(self, values: Any) -> Any:
        """Returns process 0's arrays, such as a TrainState's, with a copy on each device; all processes call it."""
        replicated, values = whole_on(self.mesh), self.group.from_first(values)
        with device_errors():
            return jax.tree.map(
                lambda value: jax.make_array_from_callback(np.shape(value), replicated, np.asarray(value).__getitem__),
                values,
            )


def make_run(
    config: TrainConfig,
    model_dir: str,
    cluster: Any = None,
    initial: Mapping[str, Any] | None = None,
    devices: Any = None,
) -> JaxRun:
    """Returns the functions of a run, compiled when they are first called; process 0 has the others make it too.

    Args:
      config: Config of the run.
      model_dir: Folder or URI of the checkpoints.
      cluster: None; JAX finds the devices of this machine itself, a TPU's too.
      initial: Initial weights, see make_weighted_model().
      devices: List of jax.Device; None for all.

    Raises:
      ValueError: An option of the config is one that this trainer does not have, there is a cluster, or a program has
        connected several processes itself.
    """
    if cluster is not None:
        raise ValueError("trainer='jax' takes no tpu: JAX finds the TPU of its machine itself; leave it out")
    check_options("jax", config.options())
    set_cache_folder()
    mesh, group = make_mesh(devices), current()
    if jax.process_count() != group.size:
        raise ValueError(
            "JAX has already connected several processes; leave out jax.distributed.initialize(), and run the command "
            "jpeg2tpu train in each process, which connects them itself"
        )
    group.call("make", config=config.to_json({}))
    config = dataclasses.replace(config, input=fed_input(config.input))
    variables = make_variables(config, initial)
    replicated, divided = whole_on(mesh), divided_over(mesh)
    return JaxRun(
        config,
        model_dir,
        mesh,
        variables,
        jax.jit(
            make_train_step(variables, config),
            in_shardings=(replicated, divided, replicated),
            out_shardings=(replicated, replicated),
            donate_argnums=0,
        ),
        # Every process then has the values of all examples.
        jax.jit(make_eval_step(variables, config), in_shardings=(replicated, divided), out_shardings=replicated),
        group,
    )


def make_variables(config: TrainConfig, initial: Mapping[str, Any] | None = None) -> Variables:
    """Returns the run's network with its initial weights; the arguments are as of make_weighted_model().

    Raises:
      ValueError: As make_weighted_model(), or the devices cannot compute the weights.
    """
    with device_errors(), programs_of_few_shapes():  # the first that is computed on the devices
        model = make_weighted_model(config, initial)
    # They depend on the layers alone. Keras' own names would count the layers made before in the same process.
    names = {id(variable): name for name, (variable, _) in variables_of(model).items()}

    def name(number: int, variable: Any) -> str:
        # What has no name is the state of a layer's random numbers.
        return names.get(id(variable), f"random/{number}")

    return Variables(
        model,
        tuple(name(number, variable) for number, variable in enumerate(model.trainable_variables)),
        tuple(name(number, variable) for number, variable in enumerate(model.non_trainable_variables)),
    )


def fed_input(config: InputConfig) -> InputConfig:
    """Returns the input's config in the layout that is fed: XLA chooses a layout on the device by itself."""
    return dataclasses.replace(config, layout="NHWC")


def set_cache_folder() -> None:
    """Keeps what XLA compiles in the user's cache, unless JAX has been told where to keep it.

    What is read there is run, so a folder to which others can write is not used, nor is one that cannot be made.
    """
    if jax.config.jax_compilation_cache_dir:
        return
    folder = os.path.expanduser(_CACHE)
    with contextlib.suppress(OSError):
        if make_private(folder):
            jax.config.update("jax_compilation_cache_dir", folder)
            # Not only what takes a second: the first values of all layers together take longer than a step of `cnn`.
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _values(names: tuple[str, ...], variables: Any) -> dict[str, Any]:
    return {name: variable.value for name, variable in zip(names, variables, strict=True)}
