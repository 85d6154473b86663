"""Bytes of a dataset, in a folder or a bucket: where each record lies, and how a range of bytes is read."""
