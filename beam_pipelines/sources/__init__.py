"""Inputs as rows: one file for each kind of input, and reading ahead."""
