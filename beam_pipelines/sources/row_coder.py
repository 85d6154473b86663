"""How Beam passes rows from step to step."""

from __future__ import annotations

import marshal

import apache_beam as beam

from beam_pipelines.sources.rows import Row


class RowCoder(beam.coders.Coder):
    """A row as its fields alone: smaller and quicker than a pickled one, which names its class each time.

    A pipeline's workers run one version of Python, so marshal's format, which may differ between versions, will do.
    """

    def encode(self, value: Row) -> bytes:
        return marshal.dumps(tuple(value) if value.number else value[:-1])  # a folder's rows have no number

    def decode(self, encoded: bytes) -> Row:
        return Row(*marshal.loads(encoded))

    def to_type_hint(self) -> type[Row]:
        return Row
