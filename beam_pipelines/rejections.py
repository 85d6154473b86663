"""DATASET/rejected.jsonl as it is shown: every reason with its count, what it means, and some of its inputs.

The file is read line by line, as it may be as long as the list of inputs; the sources are read again where they can be.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator

from beam_pipelines import storage
from beam_pipelines.dataset import REJECTED_NAME
from beam_pipelines.reasons import REASONS, Reason
from beam_pipelines.receipts import Rejection
from beam_pipelines.thumbnails import Thumbnail, of_sources
from tpu_input.schema import Manifest

MAX_SHOWN = 6  # inputs of each reason
_UNKNOWN = Reason("This version of jpeg2tpu does not know this reason.", "See the details.")


@dataclasses.dataclass(frozen=True)
class Rejections:
    """The inputs that were rejected for one reason.

    Attributes:
      code: The reason's.
      count: Inputs.
      reason: What it means and what to do.
      examples: Some of them, spread over the alphabet, with a picture where their source can still be read.
    """

    code: str
    count: int
    reason: Reason
    examples: list[tuple[Rejection, Thumbnail | None]]


def read_rejected(manifest: Manifest) -> list[Rejections]:
    """Returns all reasons that occur in a dataset, the most frequent first."""
    shown = _spread(_lines(f"{manifest.path}/{REJECTED_NAME}"), manifest.num_rejected)
    ordered = sorted(manifest.num_rejected.items(), key=lambda item: (-item[1], item[0]))
    return [
        Rejections(
            code=code,
            count=count,
            reason=REASONS.get(code, _UNKNOWN),
            examples=list(zip(shown[code], of_sources(_sources(shown[code])), strict=True)),
        )
        for code, count in ordered
    ]


def _lines(path: str) -> Iterator[Rejection]:
    """Yields what rejected.jsonl lists; nothing of lines that cannot be read, which is for verify to tell."""
    if not storage.exists(path):
        return
    with storage.open_file(path) as file:
        for line in file:
            try:
                yield Rejection(**json.loads(line))
            except (ValueError, TypeError):
                continue


def _spread(lines: Iterable[Rejection], counts: dict[str, int]) -> dict[str, list[Rejection]]:
    """Returns up to MAX_SHOWN lines of each reason, evenly spread over all of them."""
    shown: dict[str, list[Rejection]] = {code: [] for code in counts}
    seen = dict.fromkeys(counts, 0)
    for line in lines:
        if line.reason not in counts:
            continue
        wanted = len(shown[line.reason]) * counts[line.reason] // MAX_SHOWN
        if seen[line.reason] >= wanted and len(shown[line.reason]) < MAX_SHOWN:
            shown[line.reason].append(line)
        seen[line.reason] += 1
    return shown


def _sources(lines: list[Rejection]) -> list[str]:
    # What stands for a line without an image is the list itself.
    return ["" if line.reason == "bad_line" else line.uri for line in lines]
