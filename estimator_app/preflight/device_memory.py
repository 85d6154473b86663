"""How a compiled step lies in a TPU's memory, read from its HLO.

    "%x = bf16[128,56,56,64]{3,0,2,1:T(8,128)(2,1)} fusion(…)" ──tensors()──▶ sizes, order of the axes, padding

The memory of a TPU is in tiles: T(8,128) are 8 × 128 of the two axes that change fastest, and what does not fill a tile
is padding: https://openxla.org/xla/tiled_layout
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4}
_BYTES |= {"f64": 8, "s64": 8, "u64": 8}
_RESULT = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\(")
_TENSOR = re.compile(r"(\w+)\[([\d,]*)\]\{([\d,]*)(?::T\(([\d,]+)\))?([^}]*)\}")
_NAME = re.compile(r'op_name="([^"]*)"')
# These make no tensor of their own.
_NO_MEMORY = frozenset({"tuple", "get-tuple-element", "bitcast", "constant", "copy-start", "copy-done"})
_ELSEWHERE = "S("  # in another memory than the large one


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor on the device.

    Attributes:
      kind: Its type, as HLO says it.
      sizes: Of its axes, as the program says them.
      minor_to_major: The axes, from the one that changes fastest.
      tile: Of the axes that change fastest, the fastest last.
      opcode: What makes it.
      made_by: The TensorFlow op that it was.
    """

    kind: str
    sizes: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    tile: tuple[int, ...]
    opcode: str
    made_by: str

    @property
    def bytes(self) -> int:
        """What its numbers take."""
        return _BYTES.get(self.kind, 4) * math.prod(self.sizes)

    @property
    def padded_bytes(self) -> int:
        """What it takes."""
        fastest = [self.sizes[axis] for axis in self.minor_to_major]
        missing = [1] * (len(self.tile) - len(fastest))
        for place, tile in enumerate(reversed(self.tile)):
            sizes = fastest if place < len(fastest) else missing
            at = place if place < len(fastest) else place - len(fastest)
            sizes[at] = -(-sizes[at] // tile) * tile
        return _BYTES.get(self.kind, 4) * math.prod(fastest) * math.prod(missing)

    def order(self, axes: str) -> str:
        """Returns `axes`, a letter each, as they lie in memory, the one that changes fastest last."""
        return "".join(axes[axis] for axis in reversed(self.minor_to_major))

    def __str__(self) -> str:
        return f"{self.kind}[{','.join(map(str, self.sizes))}]"


def tensors(text: str) -> Iterator[Tensor]:
    """Yields what the main computation of a compiled HLO module keeps in a core's large memory."""
    entry = text[text.index("\nENTRY ") :]
    for line in entry[: entry.index("\n}")].splitlines():
        result = _RESULT.match(line)
        if result and result[3] not in _NO_MEMORY:
            name = _NAME.search(line)
            for kind, sizes, order, tile, rest in _TENSOR.findall(result[2]):
                if _ELSEWHERE not in rest:
                    yield Tensor(kind, _ints(sizes), _ints(order), _ints(tile), result[3], name[1] if name else "")


def _ints(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()
