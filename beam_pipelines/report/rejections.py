"""Rejected inputs in the report: for every reason its count, its meaning, and some of its inputs.

The file DATASET/rejected.jsonl is read line by line, as it may be as long as the list of inputs. Like any file of a
dataset, it may come from an untrusted source, and it names files by path: only files below folders that the user has
named are read for pictures.
"""

from __future__ import annotations

import dataclasses
import itertools
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from beam_pipelines import storage
from beam_pipelines.conversion.output_folder import rejected_name
from beam_pipelines.conversion.receipts import Rejection
from beam_pipelines.images.rejection_reasons import Reason, explain
from beam_pipelines.report.thumbnails import Thumbnail, source_thumbnails
from beam_pipelines.sources.url_names import domain
from tpu_input.dataset_format.records import Manifest

MAX_SHOWN = 6  # inputs per reason


@dataclasses.dataclass(frozen=True)
class Rejections:
    """The inputs that were rejected for one reason.

    Attributes:
      code: Code of the reason.
      count: Number of inputs.
      reason: Meaning and advice.
      examples: Some of the inputs, spread over the alphabet, each with a picture if its source may be read and still
        can be.
      domains: (host, number of inputs) of the hosts with the most of them, of those that were read by URL.
    """

    code: str
    count: int
    reason: Reason
    examples: list[tuple[Rejection, Thumbnail | None]]
    domains: list[tuple[str, int]]


def read_rejected(manifest: Manifest, sources: Sequence[str] = ()) -> list[Rejections]:
    """Returns all reasons that occur in a dataset, the most frequent first.

    Args:
      manifest: Manifest of the dataset.
      sources: Folders, archives or URIs; only inputs below one of them are read for a picture.

    Raises:
      ValueError: A line of rejected.jsonl is invalid.
    """
    domains = {code: Counter[str]() for code in manifest.num_rejected}
    samples = _spread(_counting_domains(read_lines(manifest), domains), manifest.num_rejected)
    ordered = sorted(manifest.num_rejected.items(), key=lambda item: (-item[1], item[0]))
    return [
        Rejections(
            code=code,
            count=count,
            reason=explain(code),
            examples=list(zip(samples[code], source_thumbnails(_pictured(samples[code], sources)), strict=True)),
            domains=sorted(domains[code].items(), key=lambda item: (-item[1], item[0]))[:MAX_SHOWN],
        )
        for code, count in ordered
    ]


_MAX_DOMAINS = 100_000  # of a reason, that are counted; some 10 MB


def _counting_domains(lines: Iterable[Rejection], domains: dict[str, Counter[str]]) -> Iterator[Rejection]:
    """Yields the lines, and counts the hosts of those with a URL by reason."""
    for line in lines:
        counts = domains.get(line.reason)
        if counts is not None and (host := domain(line.uri)) and (host in counts or len(counts) < _MAX_DOMAINS):
            counts[host] += 1
        yield line


_MAX_LINE_BYTES = 1 << 20  # paths have at most 4 KiB


def read_lines(manifest: Manifest) -> Iterator[Rejection]:
    """Yields the lines of a dataset's rejected.jsonl, nothing if there is no such file.

    Raises:
      ValueError: A line is invalid.
      OSError: The file cannot be read.
    """
    path = f"{manifest.path}/{rejected_name(manifest.edition)}"
    if not storage.exists(path):
        return
    with storage.open_file(path) as file:
        for number in itertools.count(1):
            if not (line := file.readline(_MAX_LINE_BYTES)):
                return
            try:
                yield Rejection.from_json(line)
            except ValueError as error:
                raise ValueError(f"{path!r}, line {number}: {error}; copy the file again") from error


def _spread(lines: Iterable[Rejection], counts: dict[str, int]) -> dict[str, list[Rejection]]:
    """Returns up to MAX_SHOWN lines of each reason, evenly spread over all of them."""
    samples: dict[str, list[Rejection]] = {code: [] for code in counts}
    num_read = dict.fromkeys(counts, 0)
    for line in lines:
        if line.reason not in counts:
            continue
        threshold = len(samples[line.reason]) * counts[line.reason] // MAX_SHOWN
        if num_read[line.reason] >= threshold and len(samples[line.reason]) < MAX_SHOWN:
            samples[line.reason].append(line)
        num_read[line.reason] += 1
    return samples


def _pictured(lines: list[Rejection], sources: Sequence[str]) -> list[str]:
    """Returns the URI of each line that may be read for a picture, else ""."""
    # The URI of a bad line is the list itself, as the line names no image.
    return [
        line.uri if line.reason != "bad_line" and any(_lies_below(line.uri, source) for source in sources) else ""
        for line in lines
    ]


def _lies_below(uri: str, source: str) -> bool:
    """Returns whether an absolute path or URI is `source`, a part of it, or a file in it, after resolving links."""
    path = storage.containing_file(uri)
    if storage.is_uri(source):
        return posixpath.normpath(path) == path and f"{path}/".startswith(f"{source}/")
    if storage.is_uri(path) or not posixpath.isabs(path) or "\0" in path:
        return False
    return f"{storage.real(path)}/".startswith(storage.real(source).rstrip("/") + "/")
