"""Formats of shards: TFRecords, of which a dataset consists, and those in which it is exported for other libraries."""
