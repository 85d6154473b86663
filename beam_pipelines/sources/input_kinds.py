"""What a kind of input is: sources/listing.py has the registry of all kinds.

Each kind recognizes its inputs by what they say of themselves, checks them, and yields their rows, or the parts of
which they consist, which workers list side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.sources.archives import Member
from beam_pipelines.sources.row_columns import BATCH_ROWS, LINE_ROWS, Batch
from beam_pipelines.sources.rows import Row


class Part(NamedTuple):
    """Part of a source, which one worker lists.

    Attributes:
      source: The source.
      folder: Folder within it, which ends with a slash; "" for the source, or with `archive`.
      archive: What may be an archive within it.
      shard: Name of a shard, if the source is a dataset or records of another program.
      kind: Name of the kind of the source; "" if it is not known yet.
    """

    source: Source
    folder: str = ""
    archive: Member | None = None
    shard: str = ""
    kind: str = ""


class InputKind:
    """A kind of input.

    Attributes:
      name: Its name in messages, such as "a list".
      has_splits: Whether its rows have splits of a dataset, whose names stay as they are; all other names of splits
        come from split_names.py.
    """

    name = ""
    has_splits = False

    def is_kind(self, source: Source) -> bool:
        """Returns whether a source is of this kind; all kinds before it in the registry have said no."""
        raise NotImplementedError

    def check(self, source: Source, options: ConvertOptions) -> None:
        """Checks a source in the driver, before the pipeline runs.

        Args:
          source: The source, which exists.
          options: Options of the conversion.

        Raises:
          ValueError: It cannot be read as this kind.
        """

    def rows(self, part: Part, options: ConvertOptions) -> Iterator[Row | Part]:
        """Yields a Row for every file, member, line or record of a part, or its parts if it has any.

        Raises:
          ValueError: It cannot be read as this kind.
        """
        raise NotImplementedError

    def batches(self, part: Part, options: ConvertOptions) -> Iterator[Batch | Part]:
        """Yields what rows() does, the rows in batches."""
        size, rows = LINE_ROWS if part.source.is_list else BATCH_ROWS, list[Row]()
        for item in self.rows(part, options):
            if isinstance(item, Part):
                yield item
                continue
            rows.append(item)
            if len(rows) == size:
                yield Batch.from_rows(rows)
                rows = []
        if rows:
            yield Batch.from_rows(rows)

    def places(self, source: Source) -> tuple[str, ...]:
        """Returns how the URIs of its inputs begin, but for files that a list names."""
        return (f"{source.folder}#bytes=", f"{source.folder}#deflate=") if source.is_archive else (f"{source.folder}/",)

    def has_paths_as_keys(self, source: Source) -> bool:
        """Returns whether a key is the path of a file in the source, so that a record names its input."""
        return False

    def remarks(self, source: Source, options: ConvertOptions) -> Iterator[str]:
        """Yields lines about how a source is read, and what it has that is not stored."""
        yield from ()
