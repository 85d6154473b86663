"""Images whose labels are in a file, a line for each: --label_list."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.sources import not_images
from beam_pipelines.sources.folders import is_hidden
from beam_pipelines.sources.image_files import files_below, row_of_file
from beam_pipelines.sources.input_kinds import InputKind, Part
from beam_pipelines.sources.lists import read_names
from beam_pipelines.sources.rows import Row, label_row

_HEADERS = ("label", "labels", "class", "classes", "class_name", "category", "target")


class LabelledFiles(InputKind):
    """Images of a folder or an archive, with their labels in a file; one part, as labels follow the order of names."""

    name = "images with a list of their labels"

    def is_kind(self, source: Source) -> bool:
        return bool(source.label_list)

    def has_paths_as_keys(self, source: Source) -> bool:
        return not source.is_archive

    def rows(self, part: Part, options: ConvertOptions) -> Iterator[Row | Part]:
        """Yields the rows of the files of a source, in the order of the files' names."""
        source, images = part.source, list[Row]()
        labels = list(filter(None, read_names(source.label_list)))
        for file in sorted(files_below(Part(source), options)):
            row = row_of_file(file, options)
            if row.reason in not_images.REASONS or is_hidden(row.key):
                yield row  # what is not an image has no line among the labels
            else:
                images.append(row)
        if by_name := _labels_by_name(labels, images, source):
            labels = [by_name[row.key] for row in images]
        else:
            _check_labels(labels, images, source, options)
        yield from (label_row(row, label, options) for row, label in zip(images, labels, strict=True))


def _check_labels(labels: list[str], images: list[Row], source: Source, options: ConvertOptions) -> None:
    """Raises ValueError if lines are not the labels of the images, in the order of their names."""
    if labels and labels[0].lower() in _HEADERS and labels[0] not in {*labels[1:], *options.labels}:
        raise ValueError(
            f"{source.label_list!r} begins with {labels[0]!r}, which is the header of a column; remove the line, or if "
            "it is a class, list all classes in --labels=FILE"
        )
    if len(labels) != len(images):
        raise ValueError(
            f"{source.label_list!r} has {len(labels)} labels for the {len(images)} files of {source.path!r}; it must "
            "have one class name per line, in the order of the file names"
        )
    _check_order(labels, images, source)


def _check_order(labels: list[str], images: list[Row], source: Source) -> None:
    """Raises ValueError if labels depend on whether 10.jpg precedes 2.jpg, as text, or follows it, as a number."""
    by_number = sorted(images, key=lambda row: _texts_and_numbers(row.key))
    other_labels = {row.key: label for row, label in zip(by_number, labels, strict=True)}
    for image, other, label in zip(images, by_number, labels, strict=True):
        # Names of one length, such as hashes, are in the order of text, whatever digits are in them.
        has_other_length = len(posixpath.splitext(image.key)[0]) != len(posixpath.splitext(other.key)[0])
        if has_other_length and other_labels[image.key] != label:
            raise ValueError(
                f"the label {label!r} of {source.label_list!r} is for {image.key!r} in the order of text, and for "
                f"{other.key!r} in the order of the numbers in names; write the name before each label, as in "
                f"'{image.key} {label}'"
            )


def _texts_and_numbers(key: str) -> list[tuple[str, int, str]]:
    """Returns the parts of a key without its ending, (text, digits of the number that follows, number), to sort by."""
    parts = re.split(r"([0-9]+)", posixpath.splitext(key)[0])
    numbers = [number.lstrip("0") for number in (*parts[1::2], "")]
    return [(text, len(number), number) for text, number in zip(parts[::2], numbers, strict=True)]


def _stem(key: str) -> str:
    return posixpath.splitext(posixpath.basename(key))[0]


def _find_key(name: str, keys: dict[str, str]) -> str:
    """Returns the key of the image that a name in a list stands for, without folders if it has others; "" for none."""
    return keys.get(name) or (keys.get(posixpath.basename(name), "") if "/" in name else "")


def _labels_by_name(lines: list[str], images: list[Row], source: Source) -> dict[str, str]:
    """Returns the label of each image by its key, if the lines name the images, as "IMAGE LABEL" of Caffe's val.txt.

    Returns {} if no line names an image.

    Raises:
      ValueError: Some lines name images, but not each image has one line.
    """
    keys: dict[str, str] = {}
    for form in (_stem, posixpath.basename, str):  # those that name an image more exactly precede
        keys |= {form(row.key): row.key for row in images}
    labels: dict[str, str] = {}
    unmatched = []
    for line in lines:
        ways = [
            re.split(r"\s*[,;\t]\s*|\s+", line, maxsplit=1),
            re.split(r"\s*[,;\t]\s*|\s+(?=\S+$)", line, maxsplit=1),
        ]
        pairs = [pair for way in ways if len(way) == 2 for pair in (way, way[::-1])]
        pair = next(((key, label) for name, label in pairs if (key := _find_key(name.strip('"'), keys))), None)
        if pair is None:
            unmatched.append(line)
        elif labels.setdefault(*pair) != pair[1]:
            raise ValueError(
                f"{source.label_list!r} has two labels for {pair[0]!r}: {labels[pair[0]]!r} and {pair[1]!r}"
            )
    if labels and (len(unmatched) > 1 or len(labels) < len(images)):  # one line may be a header
        problem = f"{unmatched[-1]!r} names no file" if len(unmatched) > 1 else "not all of the files have a line"
        raise ValueError(
            f"{source.label_list!r} has lines of an image and its label, but {problem} of {source.path!r}; correct the "
            "list, or write it as a .csv with the header image,label: --input=LIST.csv"
        )
    return labels
