"""Sizes, shares, counts and inputs as people write them on a command line, and what a dataset holds in words."""

from __future__ import annotations

import argparse
import dataclasses
import re

from beam_pipelines import storage
from beam_pipelines.conversion.output import REJECTED_NAME
from beam_pipelines.images.check import GPS_POSITION, IGNORED_PROFILE, UNUSABLE_PROFILE
from beam_pipelines.options import Source
from beam_pipelines.sources.lists import read_names
from tpu_input.command_line import print_line
from tpu_input.dataset_format.records import Manifest

NOTED = {  # what is counted beside what was encoded again: what follows "N images"
    GPS_POSITION: "carry one in the bytes that are stored; --reencode=all stores pixels alone",
    UNUSABLE_PROFILE: "have one that is damaged or of another kind of image; their colors are taken for sRGB",
    IGNORED_PROFILE: "are in other colors than sRGB and were left so, as --color_profiles=ignore says",
}
_UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def print_summary(manifest: Manifest) -> None:
    """Prints a line for each split, then what was encoded again, what else is counted, and what was rejected."""
    for name, split in manifest.splits.items():
        sizes = [shard.num_bytes for shard in split.shards]
        without = [manifest.classes[label] for label, count in enumerate(split.class_counts) if not count]
        print_line(
            f"{name}: {split.num_examples:,} examples of {len(manifest.classes)} classes"
            + (f", none of {without[0]!r}" + f" and {len(without) - 1} more" * (len(without) > 1) if without else "")
            + " in "
            + (
                f"{len(sizes)} shards, {size(min(sizes))} to {size(max(sizes))} each"
                if sizes[1:]
                else f"1 shard, {size(sizes[0])}"
            )
        )
    num_examples = sum(split.num_examples for split in manifest.splits.values())
    if num_fixed := sum(manifest.num_fixed.values()):
        print_line(f"re-encoded: {num_fixed:,} of {num_examples:,} images ({_most(manifest.num_fixed)})")
    for what, count in manifest.num_noted.items():
        print_line(f"{what}: {count:,} of {num_examples:,} images {NOTED.get(what, '')}".rstrip())
    rejected = sum(manifest.num_rejected.values())
    reasons = ", ".join(f"{reason} {count}" for reason, count in manifest.num_rejected.items())
    print_line(
        f"rejected: {rejected:,} of {manifest.num_inputs:,} inputs"
        + (f" ({reasons}), each in {manifest.path}/{REJECTED_NAME}" if rejected else "")
    )


def _most(counts: dict[str, int], limit: int = 8) -> str:
    """Returns the largest counts by name, the largest first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    more = f" and {len(ordered) - limit} rarer kinds" if len(ordered) > limit else ""
    return ", ".join(f"{name} {count:,}" for name, count in ordered[:limit]) + more


def size(num_bytes: int) -> str:
    """Returns bytes as a person reads them, e.g. "98.2 MB"."""
    for unit, unit_bytes in (("GB", 1000**3), ("MB", 1000**2), ("KB", 1000)):
        if num_bytes >= unit_bytes:
            return f"{num_bytes / unit_bytes:.3g} {unit}"
    return f"{num_bytes} bytes"


def num_bytes(text: str) -> int:
    """Returns the bytes of "500KB", "100MB", "1GB"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?B?)", text.strip().upper())
    if not match or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 500KB, 100MB or 1GB")
    return int(float(match[1]) * _UNITS[match[2]])


def percent(text: str) -> float:
    """Returns the share, in [0, 1], of "1%"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage; write 1% or 0.5%")
    return float(match[1]) / 100


def splits(text: str) -> tuple[tuple[str, float], ...]:
    """Returns the shares of "train=90%,validation=10%"."""
    parts = [re.fullmatch(r"(\w+)=(.*%)", part.strip()) for part in text.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of splits; write train=90%,validation=10%")
    return tuple((part[1], percent(part[2])) for part in parts if part)


def counts(text: str) -> tuple[tuple[str, int], ...]:
    """Returns the numbers of "train=1024,validation=128"."""
    parts = [re.fullmatch(r"(\w+)=(\d+)", part.strip()) for part in text.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of counts; write train=1024,validation=128")
    return tuple((part[1], int(part[2])) for part in parts if part)


def _split_and_path(text: str) -> tuple[str, str]:
    """Returns (split or "", path) of [SPLIT=]PATH; a path that exists is taken as one, whatever it is called."""
    split, separator, path = text.partition("=")
    if not separator or "/" in split or storage.exists(text):
        return "", storage.absolute(text)
    return split, storage.absolute(path)


def source(text: str) -> Source:
    """Returns the input of "PATH" or "SPLIT=PATH"."""
    split, path = _split_and_path(text)
    return Source(path, split)


def with_label_lists(sources: list[Source], label_lists: list[str]) -> tuple[Source, ...]:
    """Returns the inputs with their label lists, each "FILE" or "SPLIT=FILE"."""
    lists = dict(map(_split_and_path, label_lists))
    if len(lists) < len(label_lists):
        raise ValueError(f"each split needs a --label_list of its own, as SPLIT=FILE; got {label_lists!r}")
    if unknown := lists.keys() - {source.split for source in sources}:
        raise ValueError(f"--label_list names the split {min(unknown)!r}, but no --input does")
    return tuple(dataclasses.replace(source, label_list=lists.get(source.split, "")) for source in sources)


def names(path: str) -> tuple[str, ...]:
    """Returns the lines of a text file."""
    try:
        return read_names(path)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {path!r}: {error}") from error
