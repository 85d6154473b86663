"""What a writer leaves beside a finished shard: all that the manifest is made of, and what a rerun continues from."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Any, NamedTuple

from beam_pipelines.images.check import SAMPLE_SIDE, CheckedImage
from tpu_input.dataset_format import json_fields
from tpu_input.dataset_format.records import FRAME_BYTES


class Rejection(NamedTuple):
    """One line of rejected.jsonl."""

    key: str
    uri: str
    reason: str
    detail: str

    @classmethod
    def from_json(cls, line: bytes) -> Rejection:
        """Returns what a line of rejected.jsonl says.

        Raises:
          ValueError: It is no such line.
        """
        return cls(**json_fields.fields(json_fields.load(line), "a rejection", cls._fields)).checked()

    def checked(self) -> Rejection:
        """Returns itself.

        Raises:
          ValueError: A field is no text.
        """
        for name, value in zip(self._fields, self, strict=True):
            json_fields.text(value, f"{name} of a rejection")
        return self


@dataclasses.dataclass
class Receipt:
    """What a writer leaves beside a finished shard; receipts are all that the manifest is made of.

    Attributes:
      name: The shard's file name.
      num_examples: Its records; with 0 no file is written.
      num_bytes: Its size.
      sha256: Hex digest of its bytes.
      class_counts: Examples by label.
      heights: [smallest, sum, largest] in pixels.
      widths: [smallest, sum, largest] in pixels.
      num_measured: Examples whose pixels are in sums and squares.
      sums: Red, green and blue, summed over SAMPLE_SIDE**2 pixels of each measured image.
      squares: Their squares, summed likewise.
      fixed: Images that were encoded again, by why.
      noted: Images of which something else is counted, by what it is.
      rejected: Inputs that are in no shard.
    """

    name: str
    num_examples: int = 0
    num_bytes: int = 0
    sha256: str = ""
    class_counts: Counter[int] = dataclasses.field(default_factory=Counter)
    heights: list[int] = dataclasses.field(default_factory=lambda: [1 << 62, 0, 0])
    widths: list[int] = dataclasses.field(default_factory=lambda: [1 << 62, 0, 0])
    num_measured: int = 0
    sums: list[int] = dataclasses.field(default_factory=lambda: [0, 0, 0])
    squares: list[int] = dataclasses.field(default_factory=lambda: [0, 0, 0])
    fixed: Counter[str] = dataclasses.field(default_factory=Counter)
    noted: Counter[str] = dataclasses.field(default_factory=Counter)
    rejected: list[Rejection] = dataclasses.field(default_factory=list)

    def add(self, image: CheckedImage, label: int, num_bytes: int) -> None:
        """Counts one record of `num_bytes` in all."""
        self.num_examples += 1
        self.num_bytes += num_bytes
        self.class_counts[label] += 1
        for sizes, size in ((self.heights, image.height), (self.widths, image.width)):
            sizes[:] = min(sizes[0], size), sizes[1] + size, max(sizes[2], size)
        if image.sums and image.squares:
            self.num_measured += 1
            self.sums = [total + value for total, value in zip(self.sums, image.sums, strict=True)]
            self.squares = [total + value for total, value in zip(self.squares, image.squares, strict=True)]
        if image.fixed:
            self.fixed[image.fixed] += 1
        self.noted.update(image.noted)

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, content: bytes, shard: str, num_classes: int) -> Receipt:
        """Returns the receipt of a shard that to_json() has written.

        Raises:
          ValueError: It is none, or that of another shard, or its numbers are out of range or do not add up.
        """
        fields = json_fields.fields(
            json_fields.load(content), "a receipt", [field.name for field in dataclasses.fields(cls)]
        )
        if fields["name"] != shard:
            raise ValueError(f"it is the receipt of {json_fields.shown(fields['name'])}")
        labels = {str(label): label for label in range(num_classes)}
        class_counts = json_fields.counts(fields["class_counts"], "class_counts", 1)
        if unknown := class_counts.keys() - labels.keys():
            raise ValueError(f"there is no class {json_fields.shown(min(unknown))}")
        num_examples = json_fields.count(fields["num_examples"], "num_examples")
        receipt = cls(
            name=shard,
            num_examples=num_examples,
            num_bytes=json_fields.count(fields["num_bytes"], "num_bytes", FRAME_BYTES * num_examples),
            sha256=json_fields.sha256(fields["sha256"], "sha256") if num_examples else "",
            class_counts=Counter({labels[label]: number for label, number in class_counts.items()}),
            heights=_whole_numbers(fields["heights"], "heights"),
            widths=_whole_numbers(fields["widths"], "widths"),
            num_measured=json_fields.count(fields["num_measured"], "num_measured", 0, num_examples),
            sums=_whole_numbers(fields["sums"], "sums"),
            squares=_whole_numbers(fields["squares"], "squares"),
            fixed=Counter(json_fields.counts(fields["fixed"], "fixed", 1)),
            noted=Counter(json_fields.counts(fields["noted"], "noted", 1)),
            rejected=[
                Rejection(*json_fields.array(rejection, "a rejection", len(Rejection._fields))).checked()
                for rejection in json_fields.array(fields["rejected"], "rejected")
            ],
        )
        receipt._check_sums()
        return receipt

    def _check_sums(self) -> None:
        if sum(self.class_counts.values()) != self.num_examples or sum(self.fixed.values()) > self.num_examples:
            raise ValueError(f"its classes or fixes do not add up to {self.num_examples} examples")
        for smallest, total, largest in (self.heights, self.widths) if self.num_examples else ():
            if not 1 <= smallest * self.num_examples <= total <= largest * self.num_examples:
                raise ValueError(f"sizes {smallest} to {largest} of {total} pixels in all cannot be")
        brightest = 255 * self.num_measured * SAMPLE_SIDE**2
        if max(self.sums) > brightest or max(self.squares) > 255 * brightest:
            raise ValueError("its sums of pixels are larger than pixels are")


def _whole_numbers(value: Any, name: str) -> list[int]:
    """Returns the three numbers of a receipt's list; a Receipt() begins with 1 << 62 as the smallest size."""
    return [json_fields.count(each, name, most=1 << 62) for each in json_fields.array(value, name, 3)]
