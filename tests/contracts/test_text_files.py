"""Every text file that a user hands in is read alike: encodings with a byte order mark, and each kind of line end."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from beam_pipelines.conversion_flags import names as label_names
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.sources.dataset_examples import labels_of
from beam_pipelines.sources.lists import read_names, rows_of_list
from estimator_app.commands import _classes
from estimator_app.config import read_recipe

ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-32")
ENDS = ("\n", "\r\n", "\r")


def list_rows(path: str) -> list[tuple[str, str]]:
    """Returns (key, label) of the lines of a list, which its ending says that it is."""
    source = Source(path)
    return [(row.key, row.label) for row in rows_of_list(source, ConvertOptions((source,), f"{path}.out"))]


def read_classes(path: str) -> int | list[str]:
    return _classes(argparse.Namespace(classes=path, record="imagenet"))


# How a command reads the file, its lines, what they mean; .csv and .jsonl are the endings of lists.
READERS: dict[str, tuple[Callable[[str], Any], list[str], Any]] = {
    "names": (read_names, ["café", "猫"], ("café", "猫")),
    "--labels": (label_names, ["café", "猫"], ("café", "猫")),
    "--classes": (read_classes, ["café", "猫"], ["café", "猫"]),
    "--input=.csv": (list_rows, ["image,label", "a.jpg,猫"], [("a.jpg", "猫")]),
    "--input=.jsonl": (list_rows, ['{"image": "a.jpg", "label": "猫"}'], [("a.jpg", "猫")]),
    "relabel": (labels_of, ["key,label", "a.jpg,猫"], {"a.jpg": "猫"}),
    "--config": (read_recipe, ["image_size: 32", "network: cnn"], {"image_size": 32, "network": "cnn"}),
}


@pytest.mark.parametrize("end", ENDS, ids=repr)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("reader", READERS)
def test_a_text_file_means_the_same_in_each_encoding(tmp_path, reader, encoding, end):
    read, lines, expected = READERS[reader]
    path = tmp_path / f"file{reader.partition('=')[2]}"
    path.write_bytes("".join(line + end for line in lines).encode(encoding))
    assert read(str(path)) == expected


@pytest.mark.parametrize("content", ["café".encode("latin-1"), "cat".encode("utf-16-le")], ids=["latin-1", "no mark"])
@pytest.mark.parametrize(
    "reader", [name for name in READERS if name != "--input=.jsonl"]
)  # of which each line is rejected by itself
def test_another_encoding_is_refused(tmp_path, reader, content):
    path = tmp_path / f"file{reader.partition('=')[2]}"
    path.write_bytes(content)
    with pytest.raises(Exception, match="is not UTF-8"):
        READERS[reader][0](str(path))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"], ids=["comma", "semicolon", "tab"])
def test_a_table_is_divided_by_what_its_first_line_has(tmp_path, delimiter):
    (tmp_path / "list.csv").write_text(f"image{delimiter}label\na.jpg{delimiter}cat\n")
    assert list_rows(f"{tmp_path}/list.csv") == [("a.jpg", "cat")]
    (tmp_path / "labels.csv").write_text(f"key{delimiter}label\na.jpg{delimiter}cat\n")
    assert labels_of(f"{tmp_path}/labels.csv") == {"a.jpg": "cat"}
