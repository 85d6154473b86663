"""Files of safetensors with timm's names, made by NumPy; the names and shapes are written down from timm's networks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Shapes = dict[str, tuple[int, ...]]


def timm_resnet18(num_classes: int) -> Shapes:
    """The tensors of timm's resnet18 by name, in the order of its state_dict()."""
    shapes: Shapes = {"conv1.weight": (64, 3, 7, 7)} | _norm("bn1", 64)
    width = 64
    for stage, filters in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            name = f"layer{stage}.{block}"
            shapes |= {f"{name}.conv1.weight": (filters, width, 3, 3)} | _norm(f"{name}.bn1", filters)
            shapes |= {f"{name}.conv2.weight": (filters, filters, 3, 3)} | _norm(f"{name}.bn2", filters)
            if width != filters:
                shapes |= {f"{name}.downsample.0.weight": (filters, width, 1, 1)} | _norm(
                    f"{name}.downsample.1", filters
                )
            width = filters
    return shapes | {"fc.weight": (num_classes, 512), "fc.bias": (num_classes,)}


def _norm(name: str, size: int) -> Shapes:
    kinds = ("weight", "bias", "running_mean", "running_var")
    return {f"{name}.{kind}": (size,) for kind in kinds} | {f"{name}.num_batches_tracked": ()}


def timm_vit_s16(num_classes: int, image_size: int) -> Shapes:
    """The tensors of timm's vit_small_patch16_224 for images of another size."""
    width, tokens = 384, 1 + (image_size // 16) ** 2
    shapes: Shapes = {"cls_token": (1, 1, width), "pos_embed": (1, tokens, width)}
    shapes |= {"patch_embed.proj.weight": (width, 3, 16, 16), "patch_embed.proj.bias": (width,)}
    for block in range(12):
        dense = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
        dense |= {"mlp.fc1": (4 * width, width), "mlp.fc2": (width, 4 * width)}
        for layer, shape in dense.items():
            shapes |= {f"blocks.{block}.{layer}.weight": shape, f"blocks.{block}.{layer}.bias": shape[:1]}
        for layer in ("norm1", "norm2"):
            shapes |= {f"blocks.{block}.{layer}.{kind}": (width,) for kind in ("weight", "bias")}
    shapes |= {"norm.weight": (width,), "norm.bias": (width,)}
    return shapes | {"head.weight": (num_classes, width), "head.bias": (num_classes,)}


def random_tensors(shapes: Shapes, seed: int = 0, dtype: str = "f2") -> dict[str, Array]:
    """Values for tensors; what PyTorch counts is int64."""
    random = np.random.default_rng(seed)
    return {
        name: np.array(7) if name.endswith("tracked") else random.uniform(0.5, 1, shape).astype(dtype)
        for name, shape in shapes.items()
    }


_DTYPES = {"float32": "F32", "float16": "F16", "int64": "I64", "float64": "F64", "uint16": "BF16"}


def to_bytes(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """A file of safetensors, as its format's description has it; uint16 stands for the bits of bfloat16."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, value in tensors.items():
        offsets = [start, start + value.nbytes]
        header[name] = {"dtype": _DTYPES[str(value.dtype)], "shape": [*value.shape], "data_offsets": offsets}
        start += value.nbytes
    return with_header(header, b"".join(value.tobytes() for value in tensors.values()))


def with_header(header: Any, data: bytes) -> bytes:
    """A file of any header, in JSON unless it is bytes, and any data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> str:
    path.write_bytes(to_bytes(tensors, metadata))
    return str(path)
