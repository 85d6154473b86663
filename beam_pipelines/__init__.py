"""Beam pipelines: class folders or lists of JPEGs in, TFRecord shards and a manifest out."""
