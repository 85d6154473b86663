"""MDS, which MosaicML's streaming reads: SPLIT/index.json, and shards that name their columns.

number of samples | offset of each and of the end, uint32 | columns, as JSON | samples
sample: sizes of the values without a fixed size, uint32 | values, in the order of the names of the columns
"""

from __future__ import annotations

import itertools
import json
import shutil
import struct
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from beam_pipelines.shard_formats.shard_format import Columns, Sample, Schema, ShardFile, ShardFormat, Writer
from tpu_input.dataset_format.manifest import Manifest, parse_shard_name
from tpu_input.dataset_format.records import Record

_INDEX = "index.json"
_PIECE_BYTES = 1 << 20
_MOST_BYTES = 1 << 32  # of a shard, as offsets are 32 bits
_SIZES = {"int": 8, "float32": 4}  # of encodings with a fixed size
_PACKED = {"int": "<q", "float32": "<f"}
_FEATURE_ENCODINGS = {"float": "float32", "int": "int", "string": "str"}


def _encodings(schema: Schema) -> dict[str, str]:
    """Returns the encoding of each column, in the order of their names."""
    kind = schema.label_kind
    encodings = {"image": "bytes", "key": "str", "sha256": "str"}
    if kind.needs_classes:
        encodings |= {"labels" if kind.is_list else "label": "json" if kind.is_list else "int"}
        encodings |= {"class": "json" if kind.is_list else "str"}
    for name, feature_type in schema.features.items():
        encodings[name] = "json" if feature_type.length else _FEATURE_ENCODINGS[feature_type.kind]
    return dict(sorted(encodings.items()))


def _config(encodings: dict[str, str]) -> dict[str, Any]:
    """Returns what MDSWriter.get_config() of streaming does."""
    columns = {
        "column_encodings": list(encodings.values()),
        "column_names": list(encodings),
        "column_sizes": [_SIZES.get(encoding) for encoding in encodings.values()],
    }
    return columns | {"compression": None, "format": "mds", "hashes": [], "size_limit": None, "version": 2}


class _Samples(Writer):
    """Keeps samples in a temporary file, as their offsets come before them."""

    def __init__(self, file: ShardFile, schema: Schema) -> None:
        super().__init__(file, schema)
        self._samples: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._sizes = list[int]()

    def add(self, data: memoryview, columns: Columns, crc32c: int) -> None:
        self._samples.write(data)
        self._sizes += columns[4]  # lengths, of IndexRow

    def close(self) -> None:
        config = json.dumps(_config(_encodings(self.schema)), sort_keys=True).encode()
        first = 4 * (len(self._sizes) + 2) + len(config)
        offsets = list(itertools.accumulate(self._sizes, initial=first))
        if offsets[-1] >= _MOST_BYTES:
            raise ValueError(
                f"a shard of MDS must be smaller than 4 GiB, not {offsets[-1]:,} bytes; use --shard_size=1GB"
            )
        self.file.write(struct.pack(f"<{len(offsets) + 1}I", len(self._sizes), *offsets) + config)
        with self._samples:
            self._samples.seek(0)
            shutil.copyfileobj(self._samples, self.file, _PIECE_BYTES)


class MDS(ShardFormat):
    """MDS for MosaicML's streaming."""

    name = "mds"
    purpose = "for MosaicML's streaming"
    writer = _Samples

    def encode(self, record: Record, schema: Schema) -> bytes:
        values: dict[str, Any] = {"image": record.encoded, "key": record.key, "sha256": record.sha256}
        values |= dict.fromkeys(("label", "labels"), record.label) | {"class": record.class_name}
        values |= schema.values_of(record)
        encodings = _encodings(schema)
        parts = {name: _packed(values[name], encoding) for name, encoding in encodings.items()}
        sizes = [len(part) for name, part in parts.items() if encodings[name] not in _SIZES]
        return struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(parts.values())

    def path(self, shard: str) -> str:
        parts = parse_shard_name(shard)
        return f"{parts.split}/{shard}" if parts else shard

    def side_names(self, splits: set[str]) -> set[str]:
        return {f"{split}/{_INDEX}" for split in splits}

    def side_files(self, manifest: Manifest) -> Iterator[tuple[str, str]]:
        config = _config(_encodings(Schema.from_manifest(manifest)))
        for name, split in manifest.splits.items():
            shards = [
                config
                | {"raw_data": {"basename": shard.name, "bytes": shard.num_bytes, "hashes": {}}}
                | {"samples": shard.num_examples, "zip_data": None}
                for shard in split.shards
            ]
            yield f"{name}/{_INDEX}", json.dumps({"shards": shards, "version": 2}, sort_keys=True) + "\n"

    def samples(self, file: IO[bytes], num_bytes: int) -> Iterator[Sample]:
        (count,) = struct.unpack("<I", _read(file, 4))
        if 4 * (count + 2) > num_bytes:
            raise ValueError(f"it has {num_bytes:,} bytes, too few for {count:,} samples")
        offsets = struct.unpack(f"<{count + 1}I", _read(file, 4 * (count + 1)))
        begins = (4 * (count + 2), *offsets)
        if any(end < begin for begin, end in itertools.pairwise(begins)) or offsets[-1] != num_bytes:
            raise ValueError("the offsets of its samples contradict its size")
        config = json.loads(_read(file, offsets[0] - 4 * (count + 2)))
        try:
            encodings = dict(zip(config["column_names"], config["column_encodings"], strict=True))
        except (TypeError, LookupError) as error:
            raise ValueError(f"it does not name its columns: {error!r}") from error
        if unknown := set(map(str, encodings.values())) - {"bytes", "str", "json", *_SIZES}:
            raise ValueError(f"it has a column of {min(unknown)}, which this package does not write")
        for begin, end in itertools.pairwise(offsets):
            yield _sample(_read(file, end - begin), begin, encodings)


def _packed(value: Any, encoding: str) -> bytes:
    if encoding in _PACKED:
        return struct.pack(_PACKED[encoding], value)
    if encoding == "json":
        return json.dumps(value).encode()
    return value if isinstance(value, bytes) else str(value).encode()


def _read(file: IO[bytes], num_bytes: int) -> bytes:
    if len(data := file.read(num_bytes)) != num_bytes:
        raise ValueError("it is not complete")
    return data


def _sample(data: bytes, begin: int, encodings: dict[str, str]) -> Sample:
    num_sizes = sum(encoding not in _SIZES for encoding in encodings.values())
    position = 4 * num_sizes
    if len(data) < position:
        raise ValueError(f"the sample at byte {begin:,} is damaged")
    sizes = iter(struct.unpack(f"<{num_sizes}I", data[:position]))
    values, image = dict[str, Any](), (0, 0)
    for name, encoding in encodings.items():
        size = _SIZES.get(encoding) or next(sizes)
        value, position = data[position : position + size], position + size
        if len(value) != size:
            break
        if encoding == "bytes":
            image = begin + position - size, size
        elif encoding in _PACKED:
            (values[name],) = struct.unpack(_PACKED[encoding], value)
        else:
            values[name] = json.loads(value) if encoding == "json" else value.decode()
    if position != len(data):
        raise ValueError(f"the sample at byte {begin:,} is damaged")
    return Sample(*image, values)
