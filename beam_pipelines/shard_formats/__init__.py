"""Formats of shards: the TFRecords of a dataset, and the formats that other libraries read."""
