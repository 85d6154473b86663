"""What an input looks like when it has no classes that can be read: for messages, with the closest known layouts."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections import Counter

from beam_pipelines import storage
from beam_pipelines.options import RECORDS, TAR, Source
from beam_pipelines.sources.rows import IMAGE_ENDINGS

_MOST_LISTED = 2_000  # files of the input that are looked at
_MOST_SHOWN = 3  # lines of the tree
_LISTS = (".csv", ".tsv", ".jsonl")
_OF_VOC = re.compile(r"[^/]+/Annotations/[^/]+\.xml")
_OF_COCO = re.compile(r"(.*/)?annotations/(instances|captions|person)\w*\.json")
_NAME_WITH_CLASS = re.compile(r"([A-Za-z]+)[._-]?\d+\.\w+")  # cat.0.jpg, dog_12.png


def seen(source: Source) -> str:
    """Returns what lies in a folder, as up to three lines of a tree with numbers of files; "" for other inputs."""
    return ", ".join(
        f"{name} ({count:,} file{'s' * (count > 1)})" for name, count in _tree(source).most_common(_MOST_SHOWN)
    )


def closest(source: Source) -> list[str]:
    """Returns what the two closest layouts are and how each is named on the command line."""
    tree = _tree(source)
    images = [name for name in tree if posixpath.splitext(name)[1].lower() in IMAGE_ENDINGS]
    lists = [name for name in tree if name.endswith(_LISTS)]
    found = []
    if lists:
        found.append(f"a list of image,label: --input={source.path}/{lists[0]}")
    paths = _paths(source)
    if any(RECORDS.fullmatch(path) for path in paths):
        found.append("TFRecords or Parquet of another program: --record=imagenet, tfds, flowers, huggingface or names")
    elif paths and all(TAR.fullmatch(path) for path in paths):
        found.append("WebDataset: --record=webdataset")
    names = [path.rpartition("/")[2] for path in paths]
    prefixes = {match[1] for name in names if (match := _NAME_WITH_CLASS.fullmatch(name))}
    if len(images) == 1 and 1 < len(prefixes) <= len(names) // 2:
        pattern = "|".join(sorted(prefixes)[:3])
        found.append(f"images whose names begin with the class: --label_pattern='({pattern})'")
    if images and not lists:
        found.append("images with their classes in a file, in the order of the names: --label_list=FILE")
    found.append("folders of classes: INPUT/CLASS/IMAGE.jpg")
    found.append("a list of image,label: --input=LIST.csv")
    return found[:2]


def unknown(source: Source) -> str:
    """Returns the end of a message about an input without classes: what was seen, and the two closest layouts."""
    tree = seen(source)
    return (f"it has {tree}; " if tree else "") + f"the closest layouts are {' and '.join(closest(source))}"


def refused(source: Source, tops: set[str]) -> str:
    """Returns a message if the outermost folders are those of a dataset of boxes, or of VOCdevkit; "" for others."""
    recipe = "make a list with one class for each image: docs/conversion.md, “COCO and Pascal VOC”"
    may_be = len(tops) == 1 or any(top.lower().startswith(("annotations", "voc")) for top in tops)
    paths = _paths(source) if may_be else []
    if {"JPEGImages", "Annotations"} <= tops or any(map(_OF_VOC.fullmatch, paths)):
        return f"input {source.path!r} is in the layout of Pascal VOC, where an image has objects with boxes; {recipe}"
    if any(map(_OF_COCO.fullmatch, paths)):
        return f"input {source.path!r} is in the layout of COCO, where an image has objects with boxes; {recipe}"
    return ""


def _paths(source: Source) -> list[str]:
    if source.is_list or source.is_archive or source.record:
        return []
    return sorted(path for path, _ in itertools.islice(storage.list_files(source.path), _MOST_LISTED))


def _tree(source: Source) -> Counter[str]:
    """Returns the number of files by folder and ending: FOLDER/*.jpg."""
    found = Counter[str]()
    for path in _paths(source):
        folder, name = posixpath.split(path)
        ending = posixpath.splitext(name)[1]
        found[path if not ending or ending in _LISTS else posixpath.join(folder, f"*{ending}")] += 1
    return found
