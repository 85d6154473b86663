"""Parquet as Hugging Face's datasets have it: a column of images with their bytes, labels that are a ClassLabel.

    image {bytes, path} | key | label, or labels | sha256 | height | width | further features

Workers send the images as they are; the columns are made here, around the bytes that were sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any, cast

from beam_pipelines.shard_formats.dataset_card import CARD, CROISSANT, card, croissant
from beam_pipelines.shard_formats.shard_format import Columns, Schema, ShardFile, ShardFormat, Writer
from tpu_input.dataset_format.manifest import FeatureType, Manifest
from tpu_input.dataset_format.records import Record

_GROUP_ROWS = 100  # of a row group: datasets.config.PARQUET_ROW_GROUP_SIZE_FOR_IMAGE_DATASETS
_TYPES = {"float": "float32", "int": "int64", "string": "string"}


class _Table(Writer):
    """Writes row groups of _GROUP_ROWS rows, so that the file does not depend on how many rows come together."""

    def __init__(self, file: ShardFile, schema: Schema) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        super().__init__(file, schema)
        self._schema = _arrow_schema(schema)
        self._pending = self._schema.empty_table()
        # Images do not become smaller, and their least and greatest bytes tell nothing.
        options = {"compression": "NONE", "use_dictionary": False, "write_statistics": False}
        sink = pa.PythonFile(cast(IO[bytes], file), mode="w")
        self._writer = pq.ParquetWriter(sink, self._schema, **options)

    def add(self, data: memoryview, columns: Columns, crc32c: int) -> None:
        import pyarrow as pa

        self._pending = pa.concat_tables([self._pending, _table(data, columns, self.schema, self._schema)])
        while self._pending.num_rows >= _GROUP_ROWS:
            self._write(_GROUP_ROWS)

    def _write(self, num_rows: int) -> None:
        self._writer.write_table(self._pending.slice(0, num_rows).combine_chunks(), num_rows)
        self._pending = self._pending.slice(num_rows)

    def close(self) -> None:
        if self._pending.num_rows:
            self._write(self._pending.num_rows)
        self._writer.close()


class Parquet(ShardFormat):
    """Parquet for Hugging Face's datasets, with a dataset card."""

    name = "parquet"
    purpose = "for Hugging Face's datasets"
    writer = _Table

    def encode(self, record: Record, schema: Schema) -> bytes:
        return record.encoded

    def side_names(self, splits: set[str]) -> set[str]:
        return {CARD, CROISSANT}

    def side_files(self, manifest: Manifest) -> Iterator[tuple[str, str]]:
        yield CARD, card(manifest)
        yield CROISSANT, croissant(manifest, _features(Schema.from_manifest(manifest)))


def _features(schema: Schema) -> dict[str, Any]:
    """Returns Hugging Face's features, in the order of the columns."""
    kind = schema.label_kind
    features: dict[str, Any] = {"image": {"_type": "Image"}, "key": _value("string")}
    if kind.needs_classes:
        label = {"names": list(schema.classes), "_type": "ClassLabel"}
        features |= {"labels": {"feature": label, "_type": "Sequence"}} if kind.is_list else {"label": label}
    features |= {"sha256": _value("string"), "height": _value("int32"), "width": _value("int32")}
    return features | {name: _feature(feature_type) for name, feature_type in schema.features.items()}


def _arrow_schema(schema: Schema) -> Any:
    """Returns Arrow's schema, with Hugging Face's features in its metadata."""
    import pyarrow as pa

    features, fields = _features(schema), list[Any]()
    for name, feature in features.items():
        value = feature.get("feature", feature)
        if value["_type"] == "Image":
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        else:
            kind = getattr(pa, value.get("dtype", "int64"))()  # a ClassLabel has no dtype
        fields.append((name, pa.list_(kind) if "feature" in feature else kind))
    return pa.schema(fields, {"huggingface": json.dumps({"info": {"features": features}})})


def _value(dtype: str) -> dict[str, str]:
    return {"dtype": dtype, "_type": "Value"}


def _feature(feature_type: FeatureType) -> dict[str, Any]:
    value = _value(_TYPES[feature_type.kind])
    return {"feature": value, "length": feature_type.length, "_type": "Sequence"} if feature_type.length else value


def _table(data: memoryview, columns: Columns, schema: Schema, arrow: Any) -> Any:
    """Returns the rows of some records as a table."""
    import numpy as np
    import pyarrow as pa

    from tpu_input.dataset_format.index import IndexRow

    index = dict(zip(IndexRow._fields, columns, strict=True))
    ends = np.array([*index["offset"], len(data)], np.int64)
    images = pa.Array.from_buffers(
        pa.large_binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)]
    ).cast(pa.binary())
    names = pa.array([key.rpartition("/")[2] for key in index["key"]], pa.string())
    values: dict[str, Any] = {"image": pa.StructArray.from_arrays([images, names], ["bytes", "path"])}
    values |= {name: index[name] for name in ("key", "sha256", "height", "width")}
    values |= {"label": index["label"], "labels": index["label"]}
    if schema.features:
        rows = list(map(json.loads, index["features"]))
        for name, feature_type in schema.features.items():
            values[name] = [row[name] if feature_type.length else row[name][0] for row in rows]
    arrays = [
        values[field.name] if field.name == "image" else pa.array(values[field.name], field.type) for field in arrow
    ]
    return pa.Table.from_arrays(arrays, schema=arrow)
