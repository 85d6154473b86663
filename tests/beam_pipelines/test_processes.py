"""Shards that processes of this machine write in the stead of a Beam runner; test_kill.py kills them."""

from __future__ import annotations

from beam_pipelines.convert import convert
from support.conversion import local, options
from support.folders import files


def test_processes_give_the_same_bytes_as_beam(few_digits, tmp_path):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    convert(options(few_digits, tmp_path / "a"), local())
    convert(options(few_digits, tmp_path / "b"), local(), num_processes=3)
    assert files(tmp_path / "a") == files(tmp_path / "b")
