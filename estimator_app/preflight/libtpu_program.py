"""Program that compiles a step for a TPU, without a TPU; runs in an environment that has libtpu.

    REQUEST.json {"topology", "hlo"} + the HloModuleProto it names ──libtpu──▶ RESULT.json
    REQUEST.json {"topology", "jax_step", "arguments", "folder"} + the function it names ──JAX, libtpu──▶ RESULT.json

    python libtpu_program.py REQUEST.json RESULT.json

It imports neither TensorFlow nor this package, and no module imports it: JAX needs another version of NumPy than
TensorFlow 2.15. Most functions that compiled() calls are private to jaxlib 0.10.2, and are called nowhere else;
compiled_jax_step() calls public ones, so that another JAX and libtpu may be installed for it.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

# Read when libtpu is loaded: without a TPU there is no metadata server, and several processes may compile in parallel.
os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
# libtpu writes a verbose log into the current directory; reduce it.
os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")
os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")

_UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Messages of libtpu about a program that is too large: before and after it has placed the tensors.
_TOO_LARGE = (
    re.compile(r"\(([\d.]+)([BKMGT])\) exceeds available HBM \(([\d.]+)([BKMGT])\)"),
    re.compile(r"Used ([\d.]+)([BKMGT]) of ([\d.]+)([BKMGT]) hbm"),
)


def main(request_path: str, result_path: str) -> None:
    """Compiles the step of the request file, and writes the compiler's result to the result file."""
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    try:
        if "jax_step" in request:
            result = compiled_jax_step(**request)
        else:
            with open(request["hlo"], "rb") as file:
                hlo = file.read()
            result = compiled(request["topology"], hlo)
    except Exception as error:
        result = refused(str(error))
    with open(result_path, "w", encoding="utf-8") as file:
        json.dump(result, file)


def compiled(topology: str, hlo: bytes) -> dict[str, Any]:
    """Returns the compiler's statistics and output for a step.

    "flops", "bytes_accessed"; "memory", bytes by use; "text", the optimized HLO that would run on the TPU.
    """
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    device = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]], "int32"))
    text = _jax.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(hlo))
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        _drop_copies(module.operation)
        executable = device.client.compile(module, _jax.DeviceList((device,)), options)
    text = executable.hlo_modules()[0].to_string()
    return _statistics(executable.get_compiled_memory_stats(), executable.cost_analysis(), text)


def compiled_jax_step(topology: str, jax_step: str, arguments: Sequence[Any], folder: str) -> dict[str, Any]:
    """Returns the same for a step in JAX on all cores of the topology; "problem" in one line if there is no such step.

    Args:
      topology: Name of the topology.
      jax_step: "package.module:function" of a function that takes the list of the topology's devices, and `arguments`,
        and returns (step, arguments of the step): the step is a function of JAX, under jax.jit or not, and its
        arguments are trees of jax.ShapeDtypeStruct with a sharding over these devices.
      arguments: See jax_step; a user's own function has none.
      folder: Folder in which the module is looked for after the installed ones.
    """
    import jax
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    sys.path[:] = [*sys.path[1:], folder]  # without the folder of this file, whose modules are not meant
    try:
        module, _, function = jax_step.partition(":")
        step, shapes = getattr(importlib.import_module(module), function)(list(devices), *arguments)
        if not _are_on(devices, jax.tree.leaves(shapes)):
            raise ValueError("an argument of the step has no sharding over the devices that the function is given")
        lowered = (step if hasattr(step, "lower") else jax.jit(step)).lower(*shapes)
    except Exception as error:
        return {"problem": f"{jax_step}: {_described(error, folder)}"}
    executable = lowered.compile()
    return _statistics(executable.memory_analysis(), executable.cost_analysis(), executable.as_text())


def _are_on(devices: Sequence[Any], arguments: Sequence[Any]) -> bool:
    shardings = [getattr(argument, "sharding", None) for argument in arguments]
    return all(sharding is not None and sharding.device_set <= set(devices) for sharding in shardings)


def _described(error: Exception, folder: str) -> str:
    """Returns an error of a user's module in one line, with the last line of a file of the folder that led to it."""
    message = (str(error).strip().splitlines() or [type(error).__name__])[0]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(f"{folder}/")]
    place = f" ({os.path.relpath(frames[-1].filename, folder)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{place}"


def _statistics(memory: Any, cost: Any, text: str) -> dict[str, Any]:
    kinds = ("argument", "output", "alias", "temp", "generated_code")
    return {
        "flops": cost["flops"],
        "bytes_accessed": cost["bytes accessed"],
        "memory": {kind: getattr(memory, f"{kind}_size_in_bytes") for kind in kinds},
        "text": text,
    }


def refused(message: str) -> dict[str, Any]:
    """Returns why the compilation failed: "error"; if the step is too large, also "needs" and "has" in bytes."""
    first = message.strip().splitlines()[0]
    sizes = next((match for match in (pattern.search(message) for pattern in _TOO_LARGE) if match), None)
    if "RESOURCE_EXHAUSTED" not in message or not sizes:
        return {"error": first}
    needs, needs_unit, has, has_unit = sizes.groups()
    return {"error": first, "needs": float(needs) * _UNITS[needs_unit], "has": float(has) * _UNITS[has_unit]}


def _drop_copies(operation: Any) -> None:
    """Replaces every mhlo.copy by its operand: libtpu has no such op, and its compiler inserts copies where needed."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                _drop_copies(inner)
                if inner.operation.name == "mhlo.copy":
                    inner.results[0].replace_all_uses_with(inner.operands[0])
                    inner.erase()


if __name__ == "__main__":
    main(*sys.argv[1:])
