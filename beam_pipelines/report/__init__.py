"""DATASET/report.html: what a dataset holds, and what to look at before training on it."""
