"""Predictions of a dataset: the model that makes them, and the Parquet file that they are written to."""
