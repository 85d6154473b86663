"""Changes of an input's options, as candidates to be timed on the user's own images.

a sample of the split ──▶ decoding alone, and stored smaller; the complete split ──▶ echo, dtype, layout, shards, cache
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpu_input.benchmark.stages import Candidate
from tpu_input.config import InputConfig
from tpu_input.dataset_format.records import Manifest, Record, RecordSpec, Shard, encode, frame, parse, shard_name
from tpu_input.pipeline.caching import cache_bytes, check_memory
from tpu_input.pipeline.decoding import parallel_decodes
from tpu_input.pipeline.hosts import Host
from tpu_input.pipeline.images import decode_whole
from tpu_input.pipeline.reading import no_autograph, records

# Enough images for costs to repeat within a few percent, few enough to re-encode in seconds and to keep in memory.
_SAMPLE, _SAMPLE_BYTES = 256, 200_000_000
_CACHE_BYTES = 1_000_000_000  # largest cache that is filled for a trial
_QUALITY = 90  # JPEG quality that a conversion uses by default


def sampled(manifest: Manifest, split: str) -> list[bytes]:
    """Returns the encoded images of a sample of the records."""
    dataset = records(manifest, split)
    parsed = dataset.map(no_autograph(lambda _, serialized: parse(serialized, manifest.first_label, manifest.record)))
    sample: list[bytes] = []
    for record in itertools.islice(parsed.as_numpy_iterator(), _SAMPLE):
        sample.append(record["encoded"])
        if sum(map(len, sample)) > _SAMPLE_BYTES:
            break
    return sample


def decode_alone(sample: Sequence[bytes], manifest: Manifest, batch_size: int) -> Candidate:
    """Returns a candidate that decodes all pixels of files in memory, and does nothing else."""

    @no_autograph
    def height(encoded: tf.Tensor) -> tf.Tensor:
        return tf.shape(decode_whole(encoded, manifest.record))[0]

    def make() -> tf.data.Dataset:
        encoded = tf.data.Dataset.from_tensor_slices(tf.constant(sample)).repeat()
        return encoded.map(height, num_parallel_calls=parallel_decodes()).batch(batch_size, drop_remainder=True)

    return Candidate(make, batch_size)


def changes(
    manifest: Manifest, config: InputConfig, split: str, batch_size: int, sample: Sequence[bytes], folder: str
) -> tuple[dict[str, Candidate], tuple[str, ...]]:
    """Returns (candidates of the complete input with one option changed, by change; reasons why others were not tried).

    Args:
      manifest: The dataset.
      config: Options to change, one at a time.
      split: Name of the split.
      batch_size: Images per batch.
      sample: Encoded images of some records.
      folder: Folder where the sample may be stored at a smaller size.
    """
    candidates = {
        f"{name}={value!r}": Candidate.from_config(
            manifest, dataclasses.replace(config, **{name: value}), split, batch_size
        )
        for name, value in _others(config).items()
    }
    side = round(config.image_size / config.eval_crop)
    smaller = _stored_smaller(manifest, split, sample, side, folder)
    if smaller:
        name = f"stored smaller (convert --resize_shorter={side})"
        candidates[name] = Candidate.from_config(smaller, config, split, batch_size)
    not_tried = []
    for cache in () if config.cache else ("records", "decoded"):
        cached = dataclasses.replace(config, cache=cache)
        try:
            check_memory(cache_bytes(manifest, split, Host(), cached), cached)
            split_info = manifest.split(split)
            first_shard = dataclasses.replace(split_info, shards=split_info.shards[:1])
            part = dataclasses.replace(manifest, splits={split: first_shard})
            if cache_bytes(part, split, Host(), cached) > _CACHE_BYTES:
                raise ValueError(
                    f'cache="{cache}" was not tried: the first shard alone needs more memory than a trial may use'
                )
        except ValueError as error:
            not_tried.append(str(error))
            continue
        candidates[f"cache={cache!r}"] = Candidate.from_config(part, cached, split, batch_size)
    return candidates, tuple(not_tried)


def _others(config: InputConfig) -> dict[str, Any]:
    """Returns the options that are worth changing, with their new values."""
    others: dict[str, Any] = {"echo": max(config.echo, 2), "dtype": "uint8", "layout": "NHWC", "deterministic": False}
    return {name: value for name, value in others.items() if getattr(config, name) != value}


def _stored_smaller(manifest: Manifest, split: str, sample: Sequence[bytes], side: int, folder: str) -> Manifest | None:
    """Returns a dataset of the sample, resized to `side`, in `folder`; None unless half of the images are larger."""
    stored, larger = [], 0
    for encoded in sample:
        pixels = decode_whole(tf.constant(encoded), manifest.record)
        height, width = pixels.shape[:2]
        scale = min(1.0, side / min(height, width))
        larger += scale < 1
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        smaller = tf.cast(tf.round(tf.image.resize(pixels, size, "area")), tf.uint8)
        data = tf.io.encode_jpeg(smaller, quality=_QUALITY).numpy()
        stored.append(Record("", data, *size, 3, 0, "", ""))
    if not larger or larger < len(sample) / 2:
        return None
    name = shard_name(split, 0, 1)
    with open(os.path.join(folder, name), "wb") as file:
        num_bytes = sum(file.write(frame(encode(record))) for record in stored)
    shards = (Shard(name, len(stored), num_bytes, ""),)
    splits = {split: dataclasses.replace(manifest.split(split), shards=shards)}
    return dataclasses.replace(manifest, path=folder, first_label=0, splits=splits, record=RecordSpec())
