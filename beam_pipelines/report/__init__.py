"""DATASET/report.html: contents of a dataset, and findings to check before training on it."""
