"""Receipts: what is known of a written shard, or of a unit of its rows, from which the manifest is computed.

    Receipt of a unit ──extend()──▶ Receipt of a shard ──commit──▶ Manifest

The receipts of units are added up in the order of the rows, so that the receipt of a shard does not depend on how its
rows were divided.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from typing import NamedTuple

from tpu_input.dataset_format import json_fields
from tpu_input.dataset_format.label_kinds import ONE, SEVERAL, Label, stored_kind
from tpu_input.dataset_format.records import FRAME_BYTES
from tpu_input.stored_images.check import SAMPLE_SIDE, CheckedImage

ATTEMPT = re.compile("[0-9a-f]{32}")  # identifier of an attempt, which becomes part of a path


class Rejection(NamedTuple):
    """One line of rejected.jsonl.

    Attributes:
      key: Path of the input within its source, or the line of the list that names it.
      uri: Location of the input.
      reason: Reason code; the codes keep their meaning in all versions.
      detail: Description of the problem, for people; its words may change.
    """

    key: str
    uri: str
    reason: str
    detail: str

    @classmethod
    def from_json(cls, line: bytes) -> Rejection:
        """Returns the rejection in a line of rejected.jsonl.

        Raises:
          ValueError: The line is not a valid rejection.
        """
        return cls(**json_fields.fields(json_fields.load(line), "a rejection", cls._fields)).checked()

    def checked(self) -> Rejection:
        """Returns itself, if all fields are strings.

        Raises:
          ValueError: A field is not a string.
        """
        for name, value in zip(self._fields, self, strict=True):
            json_fields.text(value, f"{name} of a rejection")
        return self


@dataclasses.dataclass
class Receipt:
    """Result of a written shard: counts and statistics, from which the manifest is computed.

    Attributes:
      name: File name of the shard.
      num_examples: Number of records; with 0 no file is written.
      num_bytes: Size of the shard.
      sha256: SHA-256 of the shard, as a hex digest; "" without records.
      crc32c: CRC-32C of the shard in base64, which is what a bucket keeps of each object; "" without records.
      index_bytes: Size of the index.
      index_crc32c: CRC-32C of the index.
      attempt: Identifier of the attempt that wrote the files, which are named after it until they are in place.
      class_counts: Number of examples by label.
      heights: [smallest, sum, largest] in pixels.
      widths: [smallest, sum, largest] in pixels.
      num_measured: Number of examples whose pixels are in sums and squares.
      sums: Sums of red, green and blue over SAMPLE_SIDE**2 pixels of each measured image.
      squares: Sums of the squares of the same values.
      fixed: Number of re-encoded images, by reason.
      noted: Number of images with other findings, such as a GPS position, by finding.
      rejected: Rejected inputs of this shard's rows.
      several: Whether an example counts for each of several classes, or for none.
    """

    name: str
    num_examples: int = 0
    num_bytes: int = 0
    sha256: str = ""
    crc32c: str = ""
    index_bytes: int = 0
    index_crc32c: str = ""
    attempt: str = ""
    class_counts: Counter[int] = dataclasses.field(default_factory=Counter)
    heights: list[int] = dataclasses.field(default_factory=lambda: [1 << 62, 0, 0])
    widths: list[int] = dataclasses.field(default_factory=lambda: [1 << 62, 0, 0])
    num_measured: int = 0
    sums: list[int] = dataclasses.field(default_factory=lambda: [0, 0, 0])
    squares: list[int] = dataclasses.field(default_factory=lambda: [0, 0, 0])
    fixed: Counter[str] = dataclasses.field(default_factory=Counter)
    noted: Counter[str] = dataclasses.field(default_factory=Counter)
    rejected: list[Rejection] = dataclasses.field(default_factory=list)
    several: bool = False

    def add(self, image: CheckedImage, label: Label, num_bytes: int) -> None:
        """Adds one record of `num_bytes` bytes, including its frame."""
        self.num_examples += 1
        self.num_bytes += num_bytes
        kind = stored_kind(label)
        self.several = kind.is_list
        for index in kind.indices(label):  # update() takes ten times as long for one
            self.class_counts[index] += 1
        for sizes, size in ((self.heights, image.height), (self.widths, image.width)):
            sizes[1] += size
            if size < sizes[0]:
                sizes[0] = size
            if size > sizes[2]:
                sizes[2] = size
        if image.sums and image.squares:
            self.num_measured += 1
            self.sums = [total + value for total, value in zip(self.sums, image.sums, strict=True)]
            self.squares = [total + value for total, value in zip(self.squares, image.squares, strict=True)]
        if image.fixed:
            self.fixed[image.fixed] += 1
        for finding in image.noted:
            self.noted[finding] += 1

    def extend(self, part: Receipt) -> None:
        """Adds the records and rejected inputs of a unit, which come after those that are in it; not the checksums."""
        self.num_examples += part.num_examples
        self.num_bytes += part.num_bytes
        self.class_counts.update(part.class_counts)
        for sizes, more in ((self.heights, part.heights), (self.widths, part.widths)):
            sizes[:] = min(sizes[0], more[0]), sizes[1] + more[1], max(sizes[2], more[2])
        self.num_measured += part.num_measured
        self.sums = [total + value for total, value in zip(self.sums, part.sums, strict=True)]
        self.squares = [total + value for total, value in zip(self.squares, part.squares, strict=True)]
        self.fixed.update(part.fixed)
        self.noted.update(part.noted)
        self.rejected += part.rejected
        self.several = self.several or part.several

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, content: bytes, shard: str, num_classes: int) -> Receipt:
        """Returns the receipt of `shard` from the JSON of to_json().

        Raises:
          ValueError: It is not a receipt, or another shard's, or its numbers are out of range or do not add up.
        """
        fields = json_fields.fields(
            json_fields.load(content),
            "a receipt",
            [field.name for field in dataclasses.fields(cls) if field.name != "several"],
            ("several",),
        )
        if fields["name"] != shard:
            raise ValueError(f"it is the receipt of another shard, {json_fields.short_repr(fields['name'])}")
        labels = {str(label): label for label in range(num_classes)}
        class_counts = json_fields.counts(fields["class_counts"], "class_counts", 1)
        if unknown := class_counts.keys() - labels.keys():
            raise ValueError(f"unknown class {json_fields.short_repr(min(unknown))}")
        num_examples = json_fields.count(fields["num_examples"], "num_examples")
        receipt = cls(
            name=shard,
            num_examples=num_examples,
            num_bytes=json_fields.count(fields["num_bytes"], "num_bytes", FRAME_BYTES * num_examples),
            sha256=json_fields.sha256(fields["sha256"], "sha256") if num_examples else "",
            crc32c=json_fields.text(fields["crc32c"], "crc32c"),
            index_bytes=json_fields.count(fields["index_bytes"], "index_bytes"),
            index_crc32c=json_fields.text(fields["index_crc32c"], "index_crc32c"),
            attempt=_attempt(fields["attempt"]) if num_examples else "",
            class_counts=Counter({labels[label]: number for label, number in class_counts.items()}),
            num_measured=json_fields.count(fields["num_measured"], "num_measured", 0, num_examples),
            fixed=Counter(json_fields.counts(fields["fixed"], "fixed", 1)),
            noted=Counter(json_fields.counts(fields["noted"], "noted", 1)),
            rejected=[
                Rejection(*json_fields.array(rejection, "a rejection", len(Rejection._fields))).checked()
                for rejection in json_fields.array(fields["rejected"], "rejected")
            ],
            several=fields.get("several") is True,
            **{name: _whole_numbers(fields[name], name) for name in ("heights", "widths", "sums", "squares")},
        )
        receipt._check_sums()
        return receipt

    def _check_sums(self) -> None:
        kind, counts = SEVERAL if self.several else ONE, list(self.class_counts.values())
        if kind.count_fault(counts, self.num_examples) or sum(self.fixed.values()) > self.num_examples:
            raise ValueError(
                f"its class counts do not add up to {self.num_examples} examples, or its counts of re-encoded images "
                "exceed them"
            )
        for smallest, total, largest in (self.heights, self.widths) if self.num_examples else ():
            if not 1 <= smallest * self.num_examples <= total <= largest * self.num_examples:
                raise ValueError(
                    f"image sizes from {smallest} to {largest} pixels contradict their sum, {total} pixels"
                )
        brightest = 255 * self.num_measured * SAMPLE_SIDE**2
        if max(self.sums) > brightest or max(self.squares) > 255 * brightest:
            raise ValueError("its sums of pixel values are larger than possible")


def _attempt(value: object) -> str:
    if not ATTEMPT.fullmatch(text := json_fields.text(value, "attempt")):
        raise ValueError(f"attempt must be 32 hexadecimal digits, got {json_fields.short_repr(value)}")
    return text


def _whole_numbers(value: object, name: str) -> list[int]:
    """Returns a list of three integers, 0 to 1 << 62, which is the initial value of the smallest size in Receipt()."""
    return [json_fields.count(item, name, most=1 << 62) for item in json_fields.array(value, name, 3)]
