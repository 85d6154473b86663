"""Files of safetensors: tensors by name, read from any file that can seek, so also from one in a bucket.

    8 bytes: length of the header
    header:  {"conv1.weight": {"dtype": "F32", "shape": [64, 3, 7, 7], "data_offsets": [0, 37632]}, …}, in JSON
    data:    the tensors one after another, little endian

Everything that the header claims is checked before a tensor is read. This is done here rather than by the package
safetensors, because its reader needs the whole file in memory or on a local disk, accepts headers of 100 MB, and gives
no NumPy arrays of bfloat16; the tests read files that the package has written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tpu_input.dataset_format import json_fields

# Bytes of a header. A tensor takes some 100, and the largest network of published_weights.py has 500 tensors.
_MOST_HEADER = 4 << 20
_MOST_AXES = 8
# Bytes of an element, by dtype; the layout of a file can only be checked if all are known.
_SIZES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
READABLE = ("F32", "F16", "BF16")


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Where a tensor lies in its file.

    Attributes:
      dtype: Name of the type, such as "F32".
      shape: Size of each axis.
      start: Position of its first byte in the file.
      num_bytes: Length in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class Header:
    """What a file holds.

    Attributes:
      tensors: The tensors by name, in the order of the file.
      metadata: Texts by name, which the file's writer has added.
    """

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


def read_header(file: IO[bytes], num_bytes: int) -> Header:
    """Returns what a file holds; reads the header alone.

    Args:
      file: The file, from its beginning.
      num_bytes: Length of the file.

    Raises:
      ValueError: It is not a file of safetensors, it is cut off, or tensors overlap, leave gaps or leave the file.
    """
    length = int.from_bytes(_read(file, 0, 8), "little") if num_bytes >= 8 else -1
    if not 2 <= length <= num_bytes - 8:
        raise ValueError("it is not a safetensors file, or it is cut off")
    if length > _MOST_HEADER:
        raise ValueError(f"its header has {length:,} bytes; at most {_MOST_HEADER:,} are read")
    entries = dict(json_fields.mapping(json_fields.load(_read(file, 8, length)), "the header"))
    metadata = json_fields.mapping(entries.pop("__metadata__", {}), "__metadata__")
    for name, value in metadata.items():
        json_fields.text(value, f"{json_fields.short_repr(name)} in __metadata__")
    tensors = {json_fields.text(name, "the name of a tensor"): _tensor(entry, name) for name, entry in entries.items()}
    tensors = dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].num_bytes)))
    end = 0
    for name, tensor in tensors.items():
        if tensor.start != end:
            problem = "overlaps the one before it" if tensor.start < end else "leaves a gap before it"
            raise ValueError(f"the tensor {json_fields.short_repr(name)} {problem}")
        end += tensor.num_bytes
    if end != num_bytes - 8 - length:
        raise ValueError(f"its tensors take {end:,} bytes, but {num_bytes - 8 - length:,} follow the header")
    moved = {name: dataclasses.replace(tensor, start=tensor.start + 8 + length) for name, tensor in tensors.items()}
    return Header(moved, metadata)


def _tensor(entry: Any, name: str) -> Tensor:
    """Returns a tensor of the header; its start is counted from the end of the header."""
    description = f"the tensor {json_fields.short_repr(name)}"
    fields = json_fields.fields(entry, description, ("dtype", "shape", "data_offsets"))
    dtype, shape = fields["dtype"], json_fields.array(fields["shape"], f"the shape of {description}")
    if not isinstance(dtype, str) or dtype not in _SIZES:
        raise ValueError(f"{description} has the unknown dtype {json_fields.short_repr(dtype)}")
    if len(shape) > _MOST_AXES:
        raise ValueError(f"{description} has {len(shape)} axes; at most {_MOST_AXES} are read")
    for size in shape:
        json_fields.count(size, f"each size in the shape of {description}")
    start, end = (
        json_fields.count(offset, f"each of the data_offsets of {description}")
        for offset in json_fields.array(fields["data_offsets"], f"data_offsets of {description}", 2)
    )
    if end - start != math.prod(shape) * _SIZES[dtype]:
        raise ValueError(f"{description} of shape {shape} and dtype {dtype} cannot have {end - start:,} bytes")
    return Tensor(dtype, tuple(shape), start, end - start)


def read_tensor(file: IO[bytes], name: str, tensor: Tensor) -> npt.NDArray[np.float32]:
    """Returns a tensor as float32.

    Args:
      file: The file.
      name: Name of the tensor, for messages.
      tensor: Of read_header().

    Raises:
      ValueError: It has another dtype than READABLE, holds values that are not finite, or the file has become shorter.
    """
    if tensor.dtype not in READABLE:
        raise ValueError(
            f"the tensor {json_fields.short_repr(name)} has dtype {tensor.dtype}; {', '.join(READABLE)} are read"
        )
    content = _read(file, tensor.start, tensor.num_bytes)
    if tensor.dtype == "BF16":  # the upper half of a float32
        values = (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4")
    else:
        values = np.frombuffer(content, "<f2" if tensor.dtype == "F16" else "<f4")
    if not np.isfinite(values).all():
        raise ValueError(f"the tensor {json_fields.short_repr(name)} has values that are infinite or NaN")
    return values.astype(np.float32).reshape(tensor.shape)


def _read(file: IO[bytes], start: int, length: int) -> bytes:
    file.seek(start)
    content = file.read(length)
    if len(content) != length:
        raise ValueError("it is cut off")
    return content
