"""One format's own writer, fed from the records of a dataset; __main__.py starts it, in a process of its own.

    python -m benchmarks.exports.peers webdataset|datasets|pyarrow|array_record|mds DATASET OUTPUT

Needs the writer's package, and of this repository what reads TFRecords: each record's CRC-32C is checked and its
tf.train.Example is parsed, the least that anyone who hands the records on has to do; nothing is hashed or flushed. What
is written has the keys, labels, sizes and SHA-256 that the export has, which are in the records.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpu_input.dataset_format.records import Record, decode, read_frames

SHARD_BYTES = int(os.environ.get("SHARD_BYTES", 100_000_000))
_GROUP_ROWS = 100  # of a row group, as in the export


def shards_of(dataset: str) -> list[Path]:
    return sorted(Path(dataset).glob("*.tfrecord"))


def splits_of(dataset: str) -> Iterator[tuple[str, Iterator[Record]]]:
    """Yields (split, its records)."""
    for split, paths in itertools.groupby(shards_of(dataset), key=lambda path: path.name.partition("-")[0]):
        yield split, (decode(payload) for path in paths for payload in payloads_of(path))


def payloads_of(shard: Path) -> Iterator[bytes]:
    with open(shard, "rb") as file:
        for _, payload in read_frames(file):
            yield payload


def rows_of(shard: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a Parquet file, as Hugging Face's datasets have them."""
    for payload in payloads_of(shard):
        record = decode(payload)
        image = {"bytes": record.encoded, "path": record.key.rpartition("/")[2]}
        row = {"image": image, "key": record.key, "label": record.label}
        yield row | {"sha256": record.sha256, "height": record.height, "width": record.width}


def webdataset(dataset: str, output: Path) -> None:
    """ShardWriter: https://webdataset.github.io/webdataset/creating/."""
    from webdataset import ShardWriter

    for split, records in splits_of(dataset):
        with ShardWriter(f"{output}/{split}-%06d.tar", maxsize=SHARD_BYTES, verbose=0) as shards:
            for record in records:
                name = urllib.parse.quote(record.key, safe="").replace(".", "%2E")
                fields = {"key": record.key, "label": record.label, "class": record.class_name, "sha256": record.sha256}
                shards.write({"__key__": name, "cls": record.label, "jpg": record.encoded, "json": fields})


def datasets(dataset: str, output: Path) -> None:
    """Dataset.from_generator() and to_parquet(): https://huggingface.co/docs/datasets/create_dataset.

    Between the two, the library keeps the rows in an Arrow file of its cache.
    """
    from datasets import ClassLabel, Dataset, Features, Image, Value

    features = {"image": Image(), "key": Value("string"), "label": ClassLabel(names=_classes(dataset))}
    features |= {"sha256": Value("string"), "height": Value("int32"), "width": Value("int32")}
    with tempfile.TemporaryDirectory() as cache:
        for shard in shards_of(dataset):
            rows = Dataset.from_generator(
                rows_of,
                Features(features),
                cache_dir=cache,
                gen_kwargs={"shard": shard},
                split=shard.stem.split("-")[0],
            )
            rows.to_parquet(output / f"{shard.stem}.parquet")


def _classes(dataset: str) -> list[str]:
    return list(json.loads(Path(dataset, "manifest.json").read_bytes())["classes"])


def pyarrow(dataset: str, output: Path) -> None:
    """ParquetWriter with the schema and the options of the export: https://arrow.apache.org/docs/python/parquet.html."""
    import pyarrow as arrow
    from pyarrow.parquet import ParquetWriter

    image = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    fields = [("image", image), ("key", arrow.string()), ("label", arrow.int64()), ("sha256", arrow.string())]
    schema = arrow.schema([*fields, ("height", arrow.int32()), ("width", arrow.int32())])
    options: dict[str, Any] = {"compression": "NONE", "use_dictionary": False, "write_statistics": False}
    for shard in shards_of(dataset):
        rows = rows_of(shard)
        with ParquetWriter(output / f"{shard.stem}.parquet", schema, **options) as writer:
            while group := list(itertools.islice(rows, _GROUP_ROWS)):
                writer.write_table(arrow.Table.from_pylist(group, schema))


def array_record(dataset: str, output: Path) -> None:
    """ArrayRecordWriter with the options of the export: https://github.com/google/array_record.

    Its records are the serialized examples of the dataset, which are not parsed.
    """
    from array_record.python.array_record_module import ArrayRecordWriter

    for shard in shards_of(dataset):
        writer = ArrayRecordWriter(f"{output}/{shard.stem}.array_record", "group_size:1,uncompressed")
        for payload in payloads_of(shard):
            writer.write(payload)
        writer.close()


def mds(dataset: str, output: Path) -> None:
    """MDSWriter, with images as bytes: https://docs.mosaicml.com/projects/streaming, preparing datasets."""
    from streaming import MDSWriter

    columns = {"image": "bytes", "key": "str", "label": "int", "class": "str", "sha256": "str"}
    for split, records in splits_of(dataset):
        with MDSWriter(out=str(output / split), columns=columns, size_limit=SHARD_BYTES) as shards:
            for record in records:
                values = {"key": record.key, "label": record.label, "class": record.class_name, "sha256": record.sha256}
                shards.write({"image": record.encoded, **values})


WAYS = {way.__name__: way for way in (webdataset, datasets, pyarrow, array_record, mds)}

if __name__ == "__main__":
    Path(sys.argv[3]).mkdir(parents=True)
    WAYS[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
