"""Descriptions of the elements that an input sends to a core, and checks for dtypes and shapes that a TPU cannot take.

({"image": TensorSpec, "weight": TensorSpec}, TensorSpec) ──▶ "image [128, 224, 224, 3] uint8, weight …, label …"
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# _SUPPORTED_INFEED_DTYPES of tensorflow/python/tpu/ops/tpu_ops.py, TensorFlow 2.15.1.
_INFEED = frozenset({"bool", "int32", "int64", "bfloat16", "float32", "complex64", "uint32", "uint8", "int8"})


def described(spec: Any) -> str:
    """Returns a description of all parts of an element, in the order in which they are sent to a core."""
    return ", ".join(f"{name} {_tensor(part)}" for name, part in parts_of(spec))


def parts_of(spec: Any) -> Iterator[tuple[str, Any]]:
    """Yields (name, spec) of the parts of an element: features by their names, or "features"; "label"; "weights"."""
    features, *others = spec if isinstance(spec, tuple) else (spec,)
    yield from _parts("features", features)
    for name, part in zip(["label", "weights"], others, strict=False):
        yield from _parts(name, part)


def misfits(spec: Any) -> Iterator[str]:
    """Yields a message, with advice, for every part of an element that cannot be sent to a TPU."""
    for name, part in parts_of(spec):
        if part.dtype.name not in _INFEED:
            change = "cast it to float32" if part.dtype.is_floating else "leave it out, or send a number instead"
            yield f"the input's {name} is {_tensor(part)}, and {part.dtype.name} cannot be sent to a TPU: {change}"
        elif not part.shape.is_fully_defined():
            sizes = part.shape.as_list() if part.shape.rank is not None else []
            change = "use batch(…, drop_remainder=True)" if sizes[:1] == [None] else "resize it, or use set_shape"
            yield f"the input's {name} is {_tensor(part)}, but a TPU needs static shapes: {change}"


def _parts(name: str, spec: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(spec, dict):
        for key in sorted(spec):  # same order as in tf.nest
            yield from _parts(key, spec[key])
    elif isinstance(spec, (tuple, list)):
        for number, part in enumerate(spec):
            yield from _parts(f"{name}[{number}]", part)
    else:
        yield name, spec


def _tensor(spec: Any) -> str:
    if spec.shape.rank is None:
        return f"of any shape {spec.dtype.name}"
    return f"[{', '.join('?' if size is None else str(size) for size in spec.shape)}] {spec.dtype.name}"
