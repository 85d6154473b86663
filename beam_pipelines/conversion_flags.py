"""The flags of a conversion and the parsers of their values, for `convert` and for programs with their own pipeline."""

from __future__ import annotations

import argparse
import dataclasses
import posixpath
import re
from collections.abc import Callable
from typing import get_args

from beam_pipelines.options import Check, ConvertOptions, ImageOptions, Source, UrlOptions
from beam_pipelines.sources.lists import read_class_names
from tpu_input.command_line.dataclass_options import Flag, add_flags
from tpu_input.command_line.jpeg2tpu import AddFlag
from tpu_input.command_line.paths import named_path


def add_conversion_flags(group: Callable[[str], AddFlag]) -> None:
    """Adds the flags from which conversion_options() makes ConvertOptions.

    Args:
      group: Function from the title of a group of flags to the function that adds a flag to it.
    """
    flag = group("inputs")
    flag("--input", required=True, action="append", type=source, metavar="[SPLIT=]PATH", help=_HELP["input"])
    flag("--record", default="", metavar="FORMAT", help=_HELP["record"])
    flag("--ignore", default=[], action="append", metavar="GLOB", help=_HELP["ignore"])
    add_flags(
        flag, ConvertOptions, ("dedup", "max_rejected"), max_rejected=Flag(parse=percent, metavar="N%", default="1%")
    )
    flag = group("labels")
    add_flags(
        flag,
        ConvertOptions,
        ("label_type", "label_separator", "labels", "first_label"),
        label_type=Flag(default=ConvertOptions.label_type, unset=True),
        label_separator=Flag(help=_HELP["label_separator"]),
        labels=Flag(parse=names, metavar="FILE", help=_HELP["labels"], default="the classes found, sorted"),
    )
    flag("--label_list", default=[], action="append", metavar="[SPLIT=]FILE", help=_HELP["label_list"])
    flag("--label_names", default="", metavar="FILE", help=_HELP["label_names"])
    flag("--label_pattern", default="", metavar="REGEX", help=_HELP["label_pattern"])
    flag("--unlabelled", action="store_true", help=_HELP["unlabelled"])
    flag = group("lists")
    for name in _COLUMN_FLAGS:
        metavar = {"image_folder": "FOLDER", "image_suffix": "TEXT"}.get(name, "NAME")
        flag(f"--{name}", default="", metavar=metavar, help=_HELP[name])
    further = Flag("feature", features, "NAME:TYPE,…", _HELP["feature"], "none")
    add_flags(flag, ConvertOptions, ("features",), features=further)
    add_flags(
        group("lists of URLs"),
        UrlOptions,
        _URL_FLAGS,
        url_timeout=Flag(metavar="SECONDS"),
        url_image_bytes=Flag("url_image_size", num_bytes, "SIZE", default="100KB"),
        url_max_bytes=Flag("url_max_size", num_bytes, "SIZE", default="20MB"),
    )
    add_flags(group("images"), ImageOptions, _IMAGE_FLAGS, **_IMAGE_METAVARS)
    add_flags(
        group("splits"),
        ConvertOptions,
        ("splits", "stratify", "group_by", "validation", "seed"),
        splits=Flag(
            parse=splits, metavar="NAME=N%,…", help=_HELP["splits"], default="train=90%,validation=10%", unset=True
        ),
        group_by=_GROUP_BY,
        validation=Flag(parse=percent, metavar="N%", help=_HELP["validation"], default="0%"),
    )
    add_flags(
        group("dataset"),
        ConvertOptions,
        ("output", "overwrite", "extend", "prune", "shard_bytes", "num_shards"),
        output=_OUTPUT,
        prune=Flag(help=_HELP["prune"]),
        shard_bytes=Flag("shard_size", num_bytes, "SIZE", _HELP["shard_size"], "100MB"),
        num_shards=Flag(parse=counts, metavar="NAME=N,…", help=_HELP["num_shards"], default="by --shard_size"),
    )


def conversion_options(flags: argparse.Namespace) -> ConvertOptions:
    """Returns the options of a conversion from the parsed flags of add_conversion_flags().

    Raises:
      ValueError: They contradict each other, or have no effect.
    """
    # Most flags are stored under the name of their option, and become it as they are.
    option_names = [field.name for field in dataclasses.fields(ConvertOptions) if hasattr(flags, field.name)]
    label_type = flags.label_type or ("none" if flags.unlabelled else ConvertOptions.label_type)
    if flags.unlabelled and label_type != "none":
        raise ValueError(f"--unlabelled stores no labels, but --label_type={label_type} does; leave out one of them")
    changed = {
        "sources": _sources(flags),
        "splits": flags.splits or ConvertOptions.splits,
        "splits_required": bool(flags.splits),
        "label_type": label_type,
        "images": ImageOptions(**{name: getattr(flags, name) for name in _IMAGE_FLAGS}),
        "urls": UrlOptions(**{name: getattr(flags, name) for name in _URL_FLAGS}),
    }
    return ConvertOptions(**{name: getattr(flags, name) for name in option_names} | changed)


def _sources(flags: argparse.Namespace) -> tuple[Source, ...]:
    """Returns the inputs with what flags say of all of them: formats, and names and places of labels."""
    sources = with_label_lists(_with_columns(flags), flags.label_list)
    numbered = [source.is_list or bool(source.label_list) for source in sources]
    if flags.label_names and not any(numbered):
        raise ValueError("--label_names is for numbers in lists or --label_list, but there is neither")
    if flags.label_pattern and all(numbered):
        raise ValueError("--label_pattern is for folders and archives, but every --input has a list of labels")
    return tuple(
        dataclasses.replace(
            source,
            record=flags.record or source.record,
            label_names=flags.label_names if is_numbered else "",
            label_pattern="" if is_numbered else flags.label_pattern,
        )
        for source, is_numbered in zip(sources, numbered, strict=True)
    )


def add_rewriting_flags(group: Callable[[str], AddFlag], command: str) -> None:
    """Adds the flags of a command that makes a dataset of datasets; those that are not given are None.

    Args:
      group: Function from the title of a group of flags to the function that adds a flag to it.
      command: Name of the command.
    """
    own_flags = {"split": ("splits", "stratify", "group_by", "seed"), "merge": ("dedup",)}.get(command, ())
    add_flags(
        group("changes"),
        ConvertOptions,
        own_flags,
        splits=Flag(
            parse=splits,
            metavar="NAME=N%,…",
            default="none",
            unset=True,
            help="share of each split. A hash of the key assigns examples, whatever split they were in",
        ),
        group_by=_GROUP_BY,
        seed=Flag(metavar="N", default="the dataset's", unset=True),
        dedup=Flag(default="exact", unset=True),
    )
    add_output_flags(group("dataset"), max_rejected=Flag(parse=percent, metavar="N%", default="1%"))
    group("dataset")("--check", choices=get_args(Check), default="header", help=_HELP["check"])


def add_output_flags(flag: AddFlag, **more: Flag) -> None:
    """Adds the flags about the output of a command that reads a dataset, and `more` of the options.

    Those that are not given are None.
    """
    add_flags(
        flag,
        ConvertOptions,
        ("output", "overwrite", "shard_bytes", "num_shards", *more),
        output=_OUTPUT,
        shard_bytes=Flag("shard_size", num_bytes, "SIZE", _HELP["shard_size"], "the dataset's", unset=True),
        num_shards=Flag(
            parse=counts, metavar="NAME=N,…", help=_HELP["num_shards"], default="the dataset's", unset=True
        ),
        **more,
    )


_OUTPUT = Flag(metavar="FOLDER", required=True)
_GROUP_BY = Flag(
    metavar="REGEX",
    default="no groups",
    help="regular expression that finds an image's group in its key. What it matches, or what its one group in "
    "parentheses matches, is the group's name; the images of a group share a split. Images that have a group already "
    "keep it, and images without a match have none. With near_duplicates instead, images that look alike are a group, "
    "and every image is read twice",
)


def named_datasets(texts: list[str]) -> list[tuple[str, str]]:
    """Returns (name, path) of datasets given as "DATASET" or "NAME=DATASET"; the name of a single one is "".

    Raises:
      ValueError: Two of several datasets have the same name.
    """
    pairs = [(name, path) for name, path in map(named_path, texts)]
    if len(pairs) == 1:
        return pairs
    datasets = [(name or re.sub(r"\W", "_", posixpath.basename(path), flags=re.ASCII), path) for name, path in pairs]
    if len({name for name, _ in datasets}) < len(datasets):
        raise ValueError(f"each dataset needs a name of its own, as NAME=DATASET; got {texts!r}")
    return datasets


_URL_FLAGS = [field.name for field in dataclasses.fields(UrlOptions)]
_COLUMN_FLAGS = ("image_column", "label_column", "image_folder", "image_suffix")


def _with_columns(flags: argparse.Namespace) -> list[Source]:
    """Returns the inputs; lists have the columns that flags name."""
    sources: list[Source] = flags.input or []
    columns = {name: value for name in _COLUMN_FLAGS if (value := getattr(flags, name))}
    if columns and sources and not any(source.is_list for source in sources):
        raise ValueError(
            f"--{next(iter(columns))} is for lists, but no --input is a .csv, .tsv or .jsonl: {sources[0].path!r}"
        )
    return [dataclasses.replace(source, **columns) if source.is_list else source for source in sources]


_IMAGE_FLAGS = [field.name for field in dataclasses.fields(ImageOptions)]
_PIXELS = Flag(metavar="PIXELS")
_IMAGE_METAVARS = {
    "resize_shorter": _PIXELS,
    "quality": Flag(metavar="1..100"),
    "min_side": _PIXELS,
    "max_pixels": _PIXELS,
}
_HELP = {
    "input": "folder of class folders, archive, or list of images. Folders are CLASS/IMAGE.jpg, optionally "
    "below train/, val/, test/; a .tar, .tar.gz or .zip holds the same; a .csv, .tsv or .jsonl has "
    "image,label[,split][,group], with paths relative to the list; or a .parquet. All of them are local paths or URIs "
    "such as gs://bucket/images. May be repeated, with one split each: --input=train=T --input=validation=V",
    "ignore": "files that are not inputs, such as '*.json' or 'thumbs'. The pattern matches a file's name or a "
    "folder above it, or, with a /, the whole path within the input. These files are listed as rejected, but do not "
    "count for --max_rejected. May be repeated",
    "label_list": "text file with one class name per line, for inputs without class folders. The lines are in the "
    "order of the images' names, as for ImageNet's validation set",
    "label_names": "text file with the names of classes that the input gives as numbers. The numbers are in a list or "
    "in --label_list; the file has one name per line, counted from 0 or from 1 as the numbers are, or lines of "
    "NUMBER,NAME (default: labels are names)",
    "label_pattern": "regular expression that finds the class in the path of an image. Its one group in parentheses "
    "matches the class, as in '/(cat|dog)[.]'; for folders and archives (default: the folder is the class)",
    "image_column": "column of a list with the path or name of the image. If it is given, other columns of the list, "
    "but split and group, are not stored (default: image)",
    "label_column": "column of a list with the label (default: label)",
    "label_separator": "text between the names of classes in a label of a list, for --label_type=classes",
    "image_folder": "folder to which the paths of a list are relative (default: the folder of the list)",
    "image_suffix": "ending that names of images in a list lack, such as .jpg (default: none)",
    "record": "format of inputs that are TFRecords, Parquet or WebDataset of other programs. It is imagenet, tfds, "
    "flowers, huggingface or webdataset, or image=NAME,label=NAME with the names of features, columns or endings, to "
    "which first_label=N, name=NAME and key=NAME may be added, or both, separated by a comma. The inputs are files, "
    "their folders, or patterns such as 'gs://bucket/train-*' (default: inputs are images)",
    "unlabelled": "store images without labels, for prediction. The same as --label_type=none",
    "feature": "further columns to store, with their types: float, int, string, or float[4] for 4 values. They are "
    "columns of a list or of Parquet, or fields of WebDataset's JSON",
    "splits": "share of each split. A hash of an image's group or key assigns it; only for inputs that do not name "
    "their split",
    "validation": "share of the split train to take for a split validation. Only for inputs that name their splits and "
    "have no split validation",
    "prune": "with --extend, leave out images that are no longer among the inputs. Images whose files have another "
    "size than before are stored as they are now; earlier versions of the dataset keep both",
    "labels": "text file with one class name per line, in label order",
    "check": "how much of each image to check: its header, or all by decoding it. The images were decoded when the "
    "dataset was made; with header, only those that the statistics include are decoded again (default: header)",
    "shard_size": "size of a shard, such as 500KB, 100MB or 1GB",
    "num_shards": "number of shards per split, instead of --shard_size. For example, train=1024,validation=128",
}


_UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def num_bytes(text: str) -> int:
    """Returns the number of bytes in a text such as "500KB", "100MB" or "1GB"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?B?)", text.strip().upper())
    if not match or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 500KB, 100MB or 1GB")
    return int(float(match[1]) * _UNITS[match[2]])


def positive(text: str) -> int:
    """Returns a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def percent(text: str) -> float:
    """Returns a percentage such as "1%" as a share, 0.01."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage; write 1% or 0.5%")
    return float(match[1]) / 100


def splits(text: str) -> tuple[tuple[str, float], ...]:
    """Returns (split, share) pairs from a text such as "train=90%,validation=10%"."""
    parts = [re.fullmatch(r"(\w+)=(.*%)", part.strip()) for part in text.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of splits; write train=90%,validation=10%")
    return tuple((part[1], percent(part[2])) for part in parts if part)


def counts(text: str) -> tuple[tuple[str, int], ...]:
    """Returns (split, number) pairs from a text such as "train=1024,validation=128"."""
    parts = [re.fullmatch(r"(\w+)=(\d+)", part.strip()) for part in text.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of counts; write train=1024,validation=128")
    return tuple((part[1], int(part[2])) for part in parts if part)


def features(text: str) -> tuple[tuple[str, str], ...]:
    """Returns (name, type) pairs from a text such as "age:float,box:float[4],caption:string"."""
    parts = [part.strip().partition(":") for part in text.split(",")]
    if not all(name and colon and kind for name, colon, kind in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of features; write age:float,box:float[4]")
    return tuple((name, kind) for name, _, kind in parts)


def source(text: str) -> Source:
    """Returns the input given as "PATH" or "SPLIT=PATH"."""
    split, path = named_path(text)
    return Source(path, split)


def with_label_lists(sources: list[Source], label_lists: list[str]) -> tuple[Source, ...]:
    """Returns the inputs with their label lists, which are given as "FILE" or "SPLIT=FILE".

    Raises:
      ValueError: Two label lists are for the same split, or one is for a split without an input.
    """
    lists = dict(map(named_path, label_lists))
    if len(lists) < len(label_lists):
        raise ValueError(f"each split needs a --label_list of its own, as SPLIT=FILE; got {label_lists!r}")
    if unknown := lists.keys() - {source.split for source in sources}:
        raise ValueError(f"--label_list names the split {min(unknown)!r}, but no --input does")
    return tuple(dataclasses.replace(source, label_list=lists.get(source.split, "")) for source in sources)


def names(path: str) -> tuple[str, ...]:
    """Returns the class names of a text file; without the numbers that TF-Slim writes before them, as in 0:daisy."""
    try:
        lines = read_class_names(path)
    except (OSError, ValueError) as error:
        is_said = isinstance(error, ValueError) and repr(path) in str(error)
        raise argparse.ArgumentTypeError(str(error) if is_said else f"cannot read {path!r}: {error}") from error
    after = tuple(line.removeprefix(f"{number}:") for number, line in enumerate(lines))
    are_numbered = all(name and name != line for name, line in zip(after, lines, strict=True))
    return after if are_numbered else lines
