"""A Parquet file that is written in parts, so that a process that is killed loses one part at most.

    rows ──write_part()──▶ OUTPUT.parts/part-00000.parquet, … ──join()──▶ OUTPUT; the parts are removed

Each file is written atomically and has the origin of its rows in its metadata: a part of another origin is never
joined, nor is a file of another origin replaced.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from estimator_app.model_dir.run_files import UNFINISHED_FILE
from estimator_app.runtime import files
from tpu_input.dataset_format import json_fields

METADATA_KEY = b"jpeg2tpu.predictions"  # of the Parquet file: the origin as JSON
_PART = re.compile(r"part-(\d{5,})\.parquet")
_MAGIC = b"PAR1"
_MAX_FOOTER_BYTES = 1 << 28
# Columns in which the same values come again and again.
_REPEATED = ["shard", "class"]


class Parts:
    """The parts of one Parquet file.

    Attributes:
      output: Path or URI of the file.
      folder: Folder or URI of the parts.
    """

    def __init__(self, output: str, schema: pa.Schema, origin: Mapping[str, Any], lengths: Sequence[int]) -> None:
        """Looks at what is there already.

        Args:
          output: Path or URI of the file.
          schema: Schema of the rows.
          origin: What the rows depend on, as JSON values.
          lengths: Number of rows of each part.

        Raises:
          ValueError: `output` or its parts are of another origin, or something else exists there.
        """
        self.output, self.folder = output, f"{output}.parts"
        self._origin, self._lengths = dict(origin), list(lengths)
        self._schema = schema.with_metadata({METADATA_KEY: json.dumps(self._origin, ensure_ascii=False).encode()})
        self.is_complete = self._is_whole(output, sum(lengths), "choose another --output, or remove it")
        self._present = self._find()

    def missing(self) -> list[int]:
        """Returns the numbers of the parts that have to be written, in ascending order."""
        present = range(len(self._lengths)) if self.is_complete else self._present
        return [number for number in range(len(self._lengths)) if number not in present]

    def write_part(self, number: int, columns: Mapping[str, Any]) -> None:
        """Writes one part atomically.

        Args:
          number: Number of the part.
          columns: Arrays or lists, by the names of the schema.

        Raises:
          OSError: It cannot be written.
        """
        files.make_folder(self.folder)
        table = pa.table(dict(columns), schema=self._schema)
        if len(table) != self._lengths[number]:
            raise ValueError(f"part {number} has {len(table)} rows, but must have {self._lengths[number]}")
        content = io.BytesIO()
        with self._writer(content) as writer:
            writer.write_table(table)
        files.write(self._path(number), content.getvalue())

    def join(self, paths: Iterable[str] | None = None) -> None:
        """Writes the file from all parts, each a row group, and removes the parts.

        Args:
          paths: Files that are read instead of the parts.

        Raises:
          OSError: It cannot be written.
        """
        if not self.is_complete:
            files.make_folder(self.folder)
            with files.writing(self.output, self.folder) as file, self._writer(file) as writer:
                for path in paths or map(self._path, range(len(self._lengths))):
                    writer.write_table(_read_table(path))
        # Only now: until the file stands, a process that is killed here continues from its parts.
        if files.is_folder(self.folder):
            for name in files.names(self.folder):
                files.remove(f"{self.folder}/{name}")
            with contextlib.suppress(OSError):  # in a bucket, the folder is gone with its last file
                files.remove_folder(self.folder)

    def _writer(self, sink: Any) -> pq.ParquetWriter:
        """Returns a writer of a file with the rows' schema and origin."""
        return pq.ParquetWriter(sink, self._schema, use_dictionary=_REPEATED)

    def _path(self, number: int) -> str:
        return f"{self.folder}/part-{number:05}.parquet"

    def _find(self) -> set[int]:
        """Returns the numbers of the parts that are there."""
        files.check_plain(self.folder)
        present = set()
        for name in files.names(self.folder):
            if match := _PART.fullmatch(name):
                number = int(match[1])
                rows = self._lengths[number] if number < len(self._lengths) else None
                if self._is_whole(f"{self.folder}/{name}", rows, f"remove {self.folder!r}, or choose another --output"):
                    present.add(number)
            elif not UNFINISHED_FILE.fullmatch(name):
                raise ValueError(
                    f"{self.folder!r} holds {name!r}, which is not a part of predictions; move it elsewhere"
                )
        return present

    def _is_whole(self, path: str, num_rows: int | None, advice: str) -> bool:
        """Returns whether a Parquet file of this origin is at `path`; of a part that a full disk cut off, False.

        Raises:
          ValueError: It is a file of another origin.
        """
        if not files.exists(path):
            return False
        if files.is_folder(path):
            raise ValueError(f"{path!r} is a folder; {advice}")
        metadata = _read_metadata(path)
        if metadata is None and path != self.output:
            return False
        origin = metadata and _origin_of(metadata)
        if metadata is None or origin is None:
            raise ValueError(f"{path!r} exists already and is not a file of predictions; {advice}")
        if origin != self._origin or metadata.num_rows != num_rows:
            other = [name for name in {**self._origin, **origin} if origin.get(name) != self._origin.get(name)]
            raise ValueError(
                f"{path!r} has other predictions (of another {' and '.join(other or ['number of records'])}); {advice}"
            )
        return True


def join_predictions(paths: Sequence[str], output: str) -> None:
    """Writes one Parquet file with the rows of several, which have other splits and models; leaves it if it is whole.

    One of the files at a time is in memory.

    Args:
      paths: Paths or URIs of files of predictions with the same columns.
      output: Path or URI of the file.

    Raises:
      ValueError: There is another file at `output`.
      OSError: It cannot be written.
    """
    metadata = [_read_metadata(path) for path in paths]
    origins = [(entry and _origin_of(entry)) or {} for entry in metadata]
    joined = {name: [origin.get(name) for origin in origins] for name in ("model", "split")}
    schema = pq.read_schema(pa.BufferReader(files.read_bytes(paths[0])))
    lengths = [entry.num_rows if entry else 0 for entry in metadata]
    Parts(output, schema, origins[0] | joined, lengths).join(paths)


def _read_table(path: str) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(files.read_bytes(path))).read(use_threads=False)


def _origin_of(metadata: pq.FileMetaData) -> dict[str, Any] | None:
    try:
        return json_fields.mapping(json_fields.load((metadata.metadata or {})[METADATA_KEY]), "the origin")
    except (KeyError, ValueError):
        return None


def _read_metadata(path: str) -> pq.FileMetaData | None:
    """Returns the footer of a Parquet file, without reading anything else; None if it is not a Parquet file."""
    size = files.num_bytes(path)
    if size < 12:
        return None
    end = files.read_bytes(path, size - 8)
    footer_bytes = int.from_bytes(end[:4], "little") + 8
    if end[4:] != _MAGIC or footer_bytes > min(size - 4, _MAX_FOOTER_BYTES):
        return None
    content = _MAGIC + files.read_bytes(path, size - footer_bytes)
    try:
        return pq.read_metadata(pa.BufferReader(content))
    except (pa.ArrowException, OSError):
        return None
