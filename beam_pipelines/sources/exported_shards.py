"""Examples of an export as rows of a conversion, read as the library reads them for which it was made.

    manifest.json ──▶ a part for each shard ──its records──▶ Row(key, where its image lies, class, split)

Nothing but the names of shards and splits is taken from the manifest: the keys, labels and images are the records'.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions, RecordFormat, Source
from beam_pipelines.shard_formats.all_formats import EXPORTS, format_of
from beam_pipelines.shard_formats.shard_format import ShardFormat
from beam_pipelines.sources.dataset_examples import check_labels, read_dataset, shards_by_name
from beam_pipelines.sources.input_kinds import InputKind, Part
from beam_pipelines.sources.read_ahead import Loaded, read_rows
from beam_pipelines.sources.records import array_record_files, parquet_files, webdataset
from beam_pipelines.sources.rows import Row, label_row, with_features
from tpu_input.dataset_format.manifest import Manifest

_Reader = Callable[[str, str, RecordFormat, ConvertOptions], Iterator[Row]]
# How the records of a format are read, with the key and the names of the classes in them, where samples() does not.
_READERS: dict[str, tuple[_Reader, RecordFormat]] = {
    "webdataset": (webdataset.rows_of_file, RecordFormat(label="json.class", id="json.key")),
    "parquet": (parquet_files.rows_of_file, RecordFormat(image="image", id="key")),
    "array_record": (array_record_files.rows_of_file, RecordFormat()),
}


class Export(InputKind):
    """An export, whose examples are the inputs."""

    name = "an export"
    has_splits = True

    def is_kind(self, source: Source) -> bool:
        return read_export(source.path) is not None

    def check(self, source: Source, options: ConvertOptions) -> None:
        if manifest := read_export(source.path):
            check_labels(manifest, options)

    def rows(self, part: Part, options: ConvertOptions) -> Iterator[Row | Part]:
        manifest = read_export(part.source.path)
        if not manifest:
            raise ValueError(f"{part.source.path!r} was replaced while it was listed; run the command again")
        if part.shard:
            yield from rows_of_shard(manifest, part.shard, options)
        else:
            yield from (Part(part.source, shard=name) for name in shards_by_name(manifest))

    def remarks(self, source: Source, options: ConvertOptions) -> Iterator[str]:
        manifest = read_export(source.path)
        if manifest and (unstored := sorted(manifest.features.keys() - dict(options.features).keys())):
            yield f"{source.path}: the features {', '.join(map(repr, unstored))} are not stored without --feature"


def read_export(path: str) -> Manifest | None:
    """Returns the manifest of the export in a folder; None if there is none."""
    manifest = read_dataset(path, allow_export=True)
    return manifest if manifest and manifest.format in EXPORTS else None


def rows_of_shard(manifest: Manifest, name: str, options: ConvertOptions) -> Iterator[Row]:
    """Yields a row for each example of a shard.

    Raises:
      ValueError: It is damaged, or has not as many examples as the manifest says.
    """
    split, shard = shards_by_name(manifest).get(name, ("", None))
    if not shard:
        raise ValueError(f"{manifest.path!r} was replaced while it was listed; run the command again")
    shard_format = format_of(name)
    if manifest.format in _READERS:
        read, record_format = _READERS[manifest.format]
        rows = read(manifest.path, shard_format.path(name), record_format, options)
    else:
        rows = _rows_of_samples(f"{manifest.path}/{shard_format.path(name)}", shard_format, options)
    count = 0
    for row in rows:
        count += 1
        yield row._replace(split=split, number=0)
    if count != shard.num_examples:
        raise ValueError(
            f"{name!r} of {manifest.path!r} has {count:,} examples, but its manifest says {shard.num_examples:,}; "
            "export the dataset again into another output"
        )


def _rows_of_samples(path: str, shard_format: ShardFormat, options: ConvertOptions) -> Iterator[Row]:
    num_bytes, version = storage.look(path)
    with storage.open_file(path) as file:
        try:
            for sample in shard_format.samples(file, num_bytes):
                uri = storage.slice_uri(path, sample.begin, sample.num_bytes)
                row = Row(str(sample.values["key"]), uri, num_bytes=sample.num_bytes, version=version)
                row = with_features(row, sample.values, options)
                label = sample.values["class"] if options.label_kind.needs_classes else ""
                yield row if row.reason else label_row(row, label, options, are_names=True)
        except (ValueError, LookupError, RecursionError) as error:
            shard = f"{path!r} is not a complete shard of {shard_format.name}"
            raise ValueError(f"{shard}: {error}; copy it again") from error


def examples_of(manifest: Manifest) -> Iterator[tuple[str, Iterator[Loaded]]]:
    """Yields (shard, rows with their image bytes) of an export; consume the rows before taking the next shard.

    Raises:
      ValueError: A shard is damaged.
    """
    features = tuple((name, str(text)) for name, text in manifest.options.get("features", {}).items())
    for name in shards_by_name(manifest):
        # Some formats need a place to which images are copied.
        with tempfile.TemporaryDirectory() as folder:
            options = ConvertOptions(
                (Source(manifest.path),), folder, label_type=manifest.label_kind.name, features=features
            )
            yield name, read_rows(rows_of_shard(manifest, name, options))
