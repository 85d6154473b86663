"""Beam pipelines that convert class folders or lists of JPEGs to TFRecord shards and a manifest."""
