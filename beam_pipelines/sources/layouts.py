"""What an input looks like when it has no classes that can be read: for messages, with the closest known layouts."""

from __future__ import annotations

import itertools
import posixpath
import re
import shlex
from collections import Counter

from beam_pipelines import storage
from beam_pipelines.options import RECORDS, TAR, Source
from beam_pipelines.sources.records.webdataset import may_be_labels
from beam_pipelines.sources.rows import IMAGE_ENDINGS
from tpu_input.command_line.output import printable
from tpu_input.dataset_format.records import MANIFEST_NAME

_MOST_LISTED = 2_000  # files of the input that are looked at
_MOST_SHOWN = 3  # kinds of files in a message
_LISTS = (".csv", ".tsv", ".jsonl")
_VOC_FILE = re.compile(r"(.+/)?Annotations/[^/]+\.xml")
_COCO_FILE = re.compile(r"(.+/)?annotations/(instances|captions|person)\w*\.json")
_COCO_FOLDER = re.compile(r"(annotations|train|val|test|unlabeled|images?)\w*", re.IGNORECASE)
_NAME_WITH_CLASS = re.compile(r"([A-Za-z]+)[._-]?\d+\.\w+")  # cat.0.jpg, dog_12.png


def unknown(source: Source) -> str:
    """Returns the end of a message about an input without classes: the two closest layouts, and its files."""
    paths = _paths(source)
    kinds = Counter(map(_kind_of_file, paths))
    message = f"the closest layouts are {' and '.join(_closest(source, paths, list(kinds)))}"
    largest = kinds.most_common(_MOST_SHOWN)
    files = [f"{printable(name)} ({count:,} file{'s' * (count > 1)})" for name, count in largest]
    files += ["…"] * (len(kinds) > len(largest))
    return message + (f"; it has {', '.join(files)}" if files else "")


def _closest(source: Source, paths: list[str], kinds: list[str]) -> list[str]:
    """Returns what the two closest layouts are and how each is named on the command line."""
    images = [name for name in kinds if posixpath.splitext(name)[1].lower() in IMAGE_ENDINGS]
    lists = [name for name in kinds if name.endswith(_LISTS)]
    suggestions = []
    if lists:
        suggestions.append(f"a list of image,label: {Source(f'{source.path}/{lists[0]}').flag}")
    if MANIFEST_NAME in paths and any(path.startswith("index/") for path in paths):
        suggestions.append(f"a dataset with another manifest.json: jpeg2tpu verify {shlex.quote(source.path)} says why")
    if source.is_archive and TAR.fullmatch(source.path):
        labels = [f"{ending}.FIELD" if ending == "json" else ending for ending in may_be_labels(source.path)]
        suggestions += [f"WebDataset: --record=webdataset,label={label}" for label in labels[:1]]
    if any(RECORDS.fullmatch(path) for path in paths):
        suggestions.append(
            "TFRecords or Parquet of another program: --record=imagenet, tfds, flowers, huggingface or names"
        )
    elif paths and all(TAR.fullmatch(path) for path in paths):
        suggestions.append("WebDataset: --record=webdataset")
    elif paths and all(path.endswith(".zip") for path in paths):
        suggestions.append(f"a .zip of class folders: {Source(f'{source.path}/{paths[0]}').flag}")
        suggestions.append("a folder with a .tar for each class: INPUT/CLASS.tar")
    names = [path.rpartition("/")[2] for path in paths]
    prefixes = {match[1] for name in names if (match := _NAME_WITH_CLASS.fullmatch(name))}
    if len(images) == 1 and 1 < len(prefixes) <= len(names) // 2:
        pattern = "|".join(sorted(prefixes)[:3])
        suggestions.append(f"images whose names begin with the class: --label_pattern='({pattern})'")
    if images and not lists:
        suggestions.append("images with their classes in a file, in the order of the names: --label_list=FILE")
    suggestions.append("folders of classes: INPUT/CLASS/IMAGE.jpg")
    suggestions.append("a list of image,label: --input=LIST.csv")
    return suggestions[:2]


def refused(source: Source, examples: dict[str, str]) -> str:
    """Returns a message if an input is in the layout of Pascal VOC or COCO, at any depth; "" for others.

    Args:
      source: A folder or an archive.
      examples: For each outermost folder, the first file below it in sorted order, as a path within the source.
    """
    names = set(examples)
    voc_matches = [match for example in examples.values() if (match := _VOC_FILE.fullmatch(example))]
    # Folders of classes may have .xml files next to their images, but not next to a folder of this name.
    is_voc = any(
        source.is_archive or storage.exists(f"{source.path}/{voc_match[1] or ''}JPEGImages")
        for voc_match in voc_matches
    )
    if is_voc or {"JPEGImages", "Annotations"} <= names:
        return _boxes_message(source, "Pascal VOC")
    annotated = {top for top, example in examples.items() if _COCO_FILE.fullmatch(example)}
    if annotated and all(map(_COCO_FOLDER.fullmatch, names - annotated)):
        return _boxes_message(source, "COCO")
    return ""


def _boxes_message(source: Source, layout: str) -> str:
    return (
        f"input {source.path!r} is in the layout of {layout}, where an image has objects with boxes; make a list with "
        "one class for each image: docs/conversion.md, “COCO and Pascal VOC”; or, if its folders are classes, list "
        "them in --labels=FILE"
    )


def _paths(source: Source) -> list[str]:
    if source.is_list or source.is_archive or source.record:
        return []
    return sorted(path for path, _ in itertools.islice(storage.list_files(source.path), _MOST_LISTED))


def _kind_of_file(path: str) -> str:
    """Returns the folder and ending of a file, FOLDER/*.jpg; the path of a list, and of a file without an ending."""
    folder, name = posixpath.split(path)
    ending = posixpath.splitext(name)[1]
    return path if not ending or ending in _LISTS else posixpath.join(folder, f"*{ending}")
