"""Inputs as rows: one module per kind of input, and reading ahead of the images."""
