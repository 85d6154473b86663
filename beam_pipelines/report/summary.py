"""Summary of a dataset in a few lines: splits, re-encoded images, other findings, rejected inputs."""

from __future__ import annotations

from typing import Any

from beam_pipelines.conversion.output_folder import rejected_name
from beam_pipelines.images.check import (
    GPS_POSITION,
    IGNORED_PROFILE,
    NOT_DECODED,
    SLIGHTLY_LARGER,
    STRIPPED,
    UNUSABLE_PROFILE,
)
from tpu_input.command_line import print_line
from tpu_input.dataset_format.records import Manifest

NOTED = {  # findings that are counted in addition to re-encoded images: the text after "N images"
    GPS_POSITION: "have one in their stored bytes; --reencode=all stores only the pixels",
    UNUSABLE_PROFILE: "have one that is damaged or for another kind of image; their colors are treated as sRGB",
    IGNORED_PROFILE: "have colors other than sRGB, which were not converted because of --color_profiles=ignore",
    NOT_DECODED: "were stored after a check of their headers alone, because of --check=header; the conversion looked "
    "neither for damage in their pixels nor for images that look alike",
    STRIPPED: "had EXIF, comments, profiles or previews, which are not stored because of --metadata=strip",
    SLIGHTLY_LARGER: "are at most 1.1 times as large, and stored unchanged",
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
        without = [manifest.classes[label] for label, count in enumerate(split.class_counts) if not count]
        print_line(
            f"{name}: {split.num_examples:,} examples of {len(manifest.classes)} classes"
            + (
                f", no examples of {without[0]!r}" + f" and {len(without) - 1} more" * (len(without) > 1)
                if without
                else ""
            )
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
        + (f" ({reasons}), listed in {manifest.path}/{rejected_name(manifest.edition)}" if rejected else "")
    )


def _most(counts: dict[str, int], limit: int = 8) -> str:
    """Returns text with the `limit` largest counts and their names, the largest first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    more = f" and {len(ordered) - limit} rarer kinds" if len(ordered) > limit else ""
    return ", ".join(f"{name} {count:,}" for name, count in ordered[:limit]) + more


def size(num_bytes: int) -> str:
    """Returns a number of bytes as readable text, e.g. "98.2 MB"."""
    for unit, unit_bytes in (("GB", 1000**3), ("MB", 1000**2), ("KB", 1000)):
        if num_bytes >= unit_bytes:
            return f"{num_bytes / unit_bytes:.3g} {unit}"
    return f"{num_bytes} bytes"
