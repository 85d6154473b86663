"""Summary of a dataset in a few lines: splits, re-encoded images, other findings, rejected inputs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from beam_pipelines.conversion.option_flags import command_flags
from beam_pipelines.conversion.output_folder import rejected_name
from beam_pipelines.options import ConvertOptions, complete
from tpu_input.command_line import print_line
from tpu_input.command_line.wording import enumerated
from tpu_input.dataset_format.records import Manifest
from tpu_input.stored_images.check import (
    DARK,
    GPS_POSITION,
    IGNORED_PROFILE,
    NOT_DECODED,
    SLIGHTLY_LARGER,
    STRIPPED,
    TRANSPARENT,
    UNUSABLE_PROFILE,
)

NOTED = {  # findings that are counted in addition to re-encoded images: the text after "N images"
    GPS_POSITION: "have one in their stored bytes; --reencode=all stores only the pixels",
    UNUSABLE_PROFILE: "have one that is damaged or for another kind of image; their colors are treated as sRGB",
    IGNORED_PROFILE: "have colors other than sRGB, which were not converted because of --color_profiles=ignore",
    NOT_DECODED: "were stored after a check of their headers alone (--check=header, the default of relabel, merge, "
    "filter, split and reshard); the conversion looked neither for damage in their pixels nor for images that look "
    "alike",
    STRIPPED: "had EXIF, comments, profiles or previews, which are not stored because of --metadata=strip",
    SLIGHTLY_LARGER: "are at most 1.1 times as large, and stored unchanged",
    TRANSPARENT: "have no visible pixel, and are stored as white; look whether their alpha channel is meant",
    DARK: "have no value above a quarter of white, and are stored as dark; if they were recorded in 10 to 14 bits, "
    "scale their values to 16",
}


def summary(manifest: Manifest) -> dict[str, Any]:
    """Returns what print_summary() prints as a value for JSON, with the manifest's names."""
    return {
        "dataset": manifest.path,
        "fingerprint": manifest.fingerprint,
        "num_inputs": manifest.num_inputs,
        "splits": {
            name: {
                "num_examples": split.num_examples,
                "num_shards": len(split.shards),
                "num_bytes": sum(shard.num_bytes for shard in split.shards),
            }
            for name, split in manifest.splits.items()
        },
        "num_fixed": manifest.num_fixed,
        "num_noted": manifest.num_noted,
        "num_rejected": manifest.num_rejected,
    }


def print_summary(manifest: Manifest) -> None:
    """Prints one line per split, then the counts of re-encoded images, other findings and rejected inputs."""
    for name, split in manifest.splits.items():
        sizes = [shard.num_bytes for shard in split.shards]
        absent = [manifest.classes[label] for label, count in enumerate(split.class_counts) if not count]
        print_line(
            f"{name}: {split.num_examples:,} examples of {len(manifest.classes)} classes"
            + (f", no examples of {enumerated([*map(repr, absent)], 1)}" if absent else "")
            + " in "
            + (
                f"{len(sizes)} shards, {size(min(sizes))} to {size(max(sizes))} each"
                if sizes[1:]
                else f"1 shard, {size(sizes[0])}"
            )
        )
    num_examples = manifest.num_examples
    if num_fixed := sum(manifest.num_fixed.values()):
        print_line(f"re-encoded: {num_fixed:,} of {num_examples:,} images ({_most(manifest.num_fixed)})")
    for finding, count in manifest.num_noted.items():
        print_line(f"{finding}: {count:,} of {num_examples:,} images {NOTED.get(finding, '')}".rstrip())
    rejected = sum(manifest.num_rejected.values())
    reasons = ", ".join(f"{reason} {count}" for reason, count in manifest.num_rejected.items())
    print_line(
        f"rejected: {rejected:,} of {manifest.num_inputs:,} inputs"
        + (f" ({reasons}), listed in {manifest.path}/{rejected_name(manifest.edition)}" if rejected else "")
    )


def _most(counts: Mapping[str, int], limit: int = 8) -> str:
    """Returns text with the `limit` largest counts, each before its reasons, the largest first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    more = f", {len(ordered) - limit} rarer kinds" if len(ordered) > limit else ""
    return ", ".join(f"{count:,} {reasons.replace(', ', ' + ')}" for reasons, count in ordered[:limit]) + more


def reasons_once(num_fixed: Mapping[str, int]) -> list[tuple[str, int]]:
    """Returns (reason, number of images that were re-encoded for it) by falling number.

    The manifest counts combinations of reasons, such as "format PNG, larger than --resize_shorter"; here, an image with
    several of them counts for each.
    """
    counts: Counter[str] = Counter()
    for reasons, count in num_fixed.items():
        for reason in reasons.split(", "):
            counts[reason] += count
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def formats(num_fixed: Mapping[str, int], num_records: int) -> list[tuple[str, int]]:
    """Returns (format, number of sources) by falling number, as the reasons for re-encoding tell it.

    Images that were not re-encoded for their format count as "JPEG", with --lossless as "JPEG or PNG"; see the caller.
    """
    counts = {reason[7:]: count for reason, count in reasons_once(num_fixed) if reason.startswith("format ")}
    rest = num_records - sum(counts.values())
    return sorted([*counts.items(), *([("JPEG", rest)] if rest > 0 else [])], key=lambda item: (-item[1], item[0]))


# Fields of a source, and options, that a command can have in the form NAME=VALUE.
_SOURCE_FIELDS = (
    *("label_list", "record", "label_names", "label_pattern"),
    *("image_column", "label_column", "image_folder", "image_suffix"),
)


def command_of(manifest: Manifest) -> str:
    """Returns a command that makes the same shards of the same inputs; "" if the manifest does not tell one.

    That is the case for a dataset that was extended or made of other datasets, and for odd values of a stranger.
    """
    try:
        words = ["jpeg2tpu", "convert", *_source_flags(manifest.sources), "--output=OUTPUT"]
        words += command_flags(complete(manifest.options), complete(ConvertOptions((), manifest.path).shaping()))
    except (AttributeError, KeyError, TypeError, ValueError):  # the options are not checked when a manifest is read
        return ""
    command = shlex.join(words)
    return command if command.isprintable() and not manifest.earlier and manifest.sources else ""


def _source_flags(sources: list[dict[str, str]]) -> Iterator[str]:
    for source in sources:
        if source.keys() - {"path", "split", *_SOURCE_FIELDS}:
            raise ValueError("a source of another command")
        split = f"{source['split']}=" if source["split"] else ""
        yield f"--input={split}{source['path']}"
        if source["label_list"]:
            yield f"--label_list={split}{source['label_list']}"
    for name in _SOURCE_FIELDS[1:]:
        if values := {source[name] for source in sources if source.get(name)}:
            (value,) = values  # one flag is for all inputs
            yield f"--{name}={value}"


def size(num_bytes: int) -> str:
    """Returns a number of bytes as readable text, e.g. "98.2 MB"."""
    for unit, unit_bytes in (("GB", 1000**3), ("MB", 1000**2), ("KB", 1000)):
        if num_bytes >= unit_bytes:
            return f"{num_bytes / unit_bytes:.3g} {unit}"
    return f"{num_bytes} bytes"
