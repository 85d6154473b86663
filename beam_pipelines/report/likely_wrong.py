"""Labels that are likely wrong: records for which a model is sure of another class.

predictions.parquet ──key──▶ p(predicted), p(label) of a record ──p(predicted) - p(label), largest first──▶ LikelyWrong

The file is written by `jpeg2tpu predict --dataset=…`. Labels are read from the dataset as it is now. The
file may come from an untrusted source: types and sizes are checked before its rows are loaded, a batch at a time. Keys
of the dataset are held in memory, some 150 bytes each.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipelines import storage
from beam_pipelines.report.examples import Example, read_examples
from beam_pipelines.report.index_columns import Columns, read_rows
from beam_pipelines.sources.dataset_examples import LABEL_COLUMNS, PROBABILITY_COLUMNS
from tpu_input.command_line.wording import first_line
from tpu_input.dataset_format import json_fields
from tpu_input.dataset_format.csv_cells import csv_cell
from tpu_input.dataset_format.index import check_room
from tpu_input.dataset_format.parquet_footer import ColumnChunk, column_chunks
from tpu_input.dataset_format.records import Manifest

MAX_SHOWN_LABELS = 100  # records on the page; the file has all
# Of the file: what the predictions depend on, with the model's classes, as JSON.
_METADATA_KEY = b"jpeg2tpu.predictions"
_BATCH_ROWS = 4096
_MAX_KEY_BYTES = 1 << 16
_SLACK = 1e-3  # a probability in float16 or float32 may be this much larger than 1
ADVICE = "write it with: jpeg2tpu predict --dataset=DATASET --output=FILE"

Probabilities = npt.NDArray[np.float64]


class WrongLabel(NamedTuple):
    """A record whose label is likely wrong.

    Attributes:
      key: Key of the record.
      number: Number of the record; see Columns.
      predicted: Name of the predicted class.
      predicted_probability: Probability of the predicted class.
      label_probability: Probability of the record's label.
    """

    key: str
    number: int
    predicted: str
    predicted_probability: float
    label_probability: float


@dataclasses.dataclass(frozen=True)
class LikelyWrong:
    """The labels of a dataset that are likely wrong.

    Attributes:
      records: All of them, the most likely first.
      examples: (record, example) of the first MAX_SHOWN_LABELS.
      num_compared: Records whose label was compared with a prediction.
      num_unknown: Predictions of keys that the dataset does not have.
      num_unknown_classes: Records that have a prediction, but a label that the model does not know.
    """

    records: list[WrongLabel]
    examples: list[tuple[WrongLabel, Example]]
    num_compared: int
    num_unknown: int
    num_unknown_classes: int

    def to_csv(self) -> str:
        """Returns the predicted classes and the two probabilities as `relabel --labels` takes them."""
        text = io.StringIO()
        text.write(",".join(LABEL_COLUMNS + PROBABILITY_COLUMNS) + "\n")
        minimal, quoted = (
            csv.writer(text, lineterminator="\n", quoting=style) for style in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
        )
        for record in self.records:
            probabilities = (f"{value:.4f}" for value in (record.predicted_probability, record.label_probability))
            row = (csv_cell(record.key), csv_cell(record.predicted), *probabilities)
            # relabel strips lines
            (minimal if row == tuple(map(str.strip, row)) else quoted).writerow(row)
        return text.getvalue()


def find_likely_wrong(manifest: Manifest, columns: Columns, paths: Sequence[str]) -> LikelyWrong:
    """Returns the records whose predicted class is not their label, by falling p(predicted) - p(label), then by key.

    The predicted class is the most likely one of those that the dataset has.

    Args:
      manifest: Manifest of the dataset.
      columns: Columns of its indexes.
      paths: Files of predictions, of different records.

    Raises:
      ValueError: A file cannot be used, no record has a prediction or one has two, or records have not one label each.
    """
    if manifest.label_kind.is_list:
        raise ValueError(f"--predictions needs a dataset with one label an image, unlike {manifest.path!r}")
    shard_tables = (read_rows(manifest.path, shard, ["key"]) for shard in columns.shards)
    record_keys = [key for table in shard_tables for key in table.column(0).to_pylist()]
    numbers = {key: number for number, key in enumerate(record_keys)}
    is_compared = np.zeros(len(numbers), bool)
    records: list[WrongLabel] = []
    num_unknown = num_unknown_classes = 0
    for path in paths:
        for model_positions, keys, probabilities in _read(path, manifest):
            common = np.flatnonzero(model_positions >= 0)  # the dataset's labels that the model has, too
            if not len(common):
                raise ValueError(f"{path!r} has predictions of other classes than {manifest.path!r}")
            places = np.array([numbers.get(key, -1) for key in keys], np.int64)
            mask = places >= 0
            num_unknown += int((~mask).sum())
            places, probabilities = places[mask], probabilities[mask]
            _, inverse, counts = np.unique(places, return_inverse=True, return_counts=True)
            is_repeated = is_compared[places] | (counts[inverse] > 1)
            if is_repeated.any():
                twice = record_keys[places[is_repeated.argmax()]]
                raise ValueError(f"{path!r} has a second prediction of {twice!r}; give one for each record")
            is_compared[places] = True
            labels = columns.labels[places]
            usable = model_positions[labels] >= 0
            num_unknown_classes += int((~usable).sum())
            places, labels, probabilities = places[usable], labels[usable], probabilities[usable]
            common_probabilities = probabilities[:, model_positions[common]]
            predicted = common[common_probabilities.argmax(axis=1)]
            best = common_probabilities.max(axis=1)
            actual = probabilities[np.arange(len(labels)), model_positions[labels]]
            records += [
                WrongLabel(
                    record_keys[places[index]],
                    int(places[index]),
                    manifest.classes[predicted[index]],
                    float(best[index]),
                    float(actual[index]),
                )
                for index in np.flatnonzero(best > actual).tolist()
            ]
    if not is_compared.any():
        raise ValueError(f"{', '.join(map(repr, paths))}: no prediction is of a record of {manifest.path!r}")
    records.sort(key=lambda record: (record.label_probability - record.predicted_probability, record.key))
    first = records[:MAX_SHOWN_LABELS]
    examples = read_examples(manifest, columns, [record.number for record in first])
    first_examples = [(record, examples[record.number]) for record in first]
    return LikelyWrong(
        records, first_examples, int(is_compared.sum()) - num_unknown_classes, num_unknown, num_unknown_classes
    )


def _read(path: str, manifest: Manifest) -> Iterator[tuple[npt.NDArray[np.int64], list[str], Probabilities]]:
    """Yields a file of predictions batch by batch: [N] keys, and [N, the model's classes] probabilities.

    The first of the three is the same for all: the position of each of the manifest's classes among the model's, or -1.
    """
    path = storage.absolute(path)
    try:
        with storage.open_file(path) as file:
            parquet = pq.ParquetFile(file)
            classes = _classes(parquet, manifest)
            _check(parquet.schema_arrow, column_chunks(file), len(classes))
            by_name = {name: position for position, name in enumerate(classes)}
            positions = np.array([by_name.get(name, -1) for name in manifest.classes], np.int64)
            # Dictionary-encoded: otherwise, a long text that the file stores once would take memory per row.
            parquet = pq.ParquetFile(file, read_dictionary=["key"])
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=["key", "probabilities"], use_threads=False):
                yield positions, _texts(batch.column("key")), _matrix(batch.column("probabilities"), len(classes))
    except (FileNotFoundError, storage.Unavailable):
        raise
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise ValueError(f"{path!r} cannot be used as predictions: {first_line(error)}; {ADVICE}") from error


def _classes(parquet: pq.ParquetFile, manifest: Manifest) -> tuple[str, ...]:
    """Returns the model's classes, in the order of the probabilities: the dataset's if the file does not name any."""
    origin = (parquet.schema_arrow.metadata or {}).get(_METADATA_KEY)
    if origin is None:
        return manifest.classes
    names = json_fields.mapping(json_fields.load(origin), "its origin").get("classes")
    classes = tuple(json_fields.text(name, "a class", 1) for name in json_fields.array(names, "classes"))
    if not classes or len(set(classes)) < len(classes):
        raise ValueError("its classes are not different names")
    return classes


def _check(schema: pa.Schema, chunks: list[ColumnChunk], num_classes: int) -> None:
    """Raises ValueError if a column is missing, of another type, or larger than its rows can be; loads no row."""
    if missing := [name for name in ("key", "probabilities") if schema.names.count(name) != 1]:
        raise ValueError(f"it has no column {' and no column '.join(missing)}")
    key, probabilities = schema.field("key").type, schema.field("probabilities").type
    if not pa.types.is_string(key) and not pa.types.is_large_string(key):
        raise ValueError(f"its column key has the type {key}, not string")
    if not _is_list(probabilities) or not pa.types.is_floating(probabilities.value_type):
        raise ValueError(f"its column probabilities has the type {probabilities}, not list of float")
    for chunk in chunks:
        if chunk.path[0] == "key":
            check_room(chunk.num_rows, chunk.unpacked_bytes)
        if chunk.path[0] == "probabilities" and chunk.num_values != chunk.num_rows * num_classes:
            raise ValueError(
                f"it has {chunk.num_values} probabilities in {chunk.num_rows} rows, of {num_classes} classes"
            )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _texts(column: pa.Array) -> list[str]:
    texts = column.dictionary if pa.types.is_dictionary(column.type) else column
    if column.null_count or (len(texts) and pc.max(pc.binary_length(texts)).as_py() > _MAX_KEY_BYTES):
        raise ValueError("it has a record without a key, or one with a very long key")
    return column.to_pylist()  # type: ignore[no-any-return]


def _matrix(column: pa.Array, num_classes: int) -> Probabilities:
    values = column.flatten()
    if (
        column.null_count
        or values.null_count
        or len(values) != len(column) * num_classes
        or (len(column) and pc.min(pc.list_value_length(column)).as_py() != num_classes)
    ):
        raise ValueError(f"it has a record with other than {num_classes} probabilities, one for each class")
    matrix: Probabilities = values.to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, num_classes)
    if not ((matrix >= 0) & (matrix <= 1 + _SLACK)).all():  # also NaN
        raise ValueError("its probabilities are not all between 0 and 1")
    return matrix
