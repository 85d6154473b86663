"""Names of splits, of all inputs: one vocabulary for folders, files of records, archives and columns of lists."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "devel": "validation",
    "development": "validation",
    "eval": "validation",
    "evaluation": "validation",
    "test": "test",
    "testing": "test",
    "holdout": "test",
    "heldout": "test",
}
# Of folders only these, as dev/ and holdout/ may be classes, or folders of other things.
SPLIT_FOLDERS = {name: split for name, split in SPLIT_NAMES.items() if not name.startswith(("dev", "hold", "held"))}

# If several splits have copies of an image, the split with the lowest rank keeps it: test sets are often fixed, and
# train can do without. Other split names rank between test and validation.
_RANKS = {"test": 0, "validation": 2, "train": 3, "": 4}

# What a split is of, which may follow its name without a gap, as in trainset and testimages.
THINGS = r"sets?|data|datasets?|images?|imgs?|photos?|pictures?|files?|folders?|splits?"
_SPLIT_WORD = re.compile(rf"({'|'.join(SPLIT_NAMES)})(?:{THINGS})?")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")  # of camelCase
_HOLD_OUT = re.compile(r"(?<![a-z])(hold|held)[_ -]out(?![a-z])")
_HASH = re.compile(r"-[0-9a-f]{16}(?=\.)")  # in names of files of Hugging Face
# What surrounds the words of a file's name: numbers and endings.
_NO_WORD = re.compile(
    r"(?<![^\W_])(?:tfrecords?|parquet|tar|tgz|tbz2|txz|zip|gz|bz2|xz|zstd?|csv|tsv|jsonl|snappy|of)(?![^\W_])|[\W\d_]+"
)


# What programs write where there is no value.
_NO_NAME = frozenset({"nan", "none", "null", "na", "n/a", "<na>", "nat", "-"})


def split_named(name: str) -> str:
    """Returns the split that a name stands for, such as validation for VAL; other names as they are."""
    return SPLIT_NAMES.get(name.strip().lower(), name)


def similar_split(name: str) -> str:
    """Returns the split that the name of another one resembles, such as train for trian; "" for none."""
    word = name.strip().lower()
    if word in SPLIT_NAMES or not word.isalpha() or split_of_path(word):
        return ""
    similar = difflib.get_close_matches(word, SPLIT_NAMES, n=1, cutoff=0.75)
    return SPLIT_NAMES[similar[0]] if similar else ""


def keeping_rank(split: str) -> int:
    """Returns the rank of a split among those that have copies of an image: the one with the smallest keeps it."""
    return _RANKS.get(split, 1)


def is_missing(name: str) -> bool:
    """Returns whether a name is what programs write where there is no value, such as nan."""
    return name.strip().lower() in _NO_NAME


def split_column(names: Iterable[str]) -> str:
    """Returns the name of the column, or field, with the splits: "split" in any case; "" if there is none."""
    matches = [name for name in names if name.strip().lower() == "split"]
    return "split" if "split" in matches else matches[0] if matches else ""


def lowered(name: str) -> str:
    """Returns a name of a file or folder in lower case, with its words apart, such as train_a for trainA."""
    return _HOLD_OUT.sub(r"\1out", _HUMP.sub("_", name).lower())


def split_of_path(path: str) -> str:
    """Returns the split in the name of a file, or of the innermost folder with one in its name; "" if there is none.

    As in imagenet2012-train.tfrecord-00000-of-01024, seg_train2017-resized-000000.tar, partial-test/0000.parquet and
    split=train/0000.parquet. The last word of a name precedes the others.

    Raises:
      ValueError: The name has the words of two splits, and neither is its last word.
    """
    return next(filter(None, (_split_of_name(name, path) for name in reversed(path.split("/")))), "")


def _split_of_name(name: str, path: str) -> str:
    """Returns the split in the name of a file or folder of a path."""
    words = _NO_WORD.sub(" ", lowered(_HASH.sub("", name))).split()
    splits = [SPLIT_NAMES[match[1]] if (match := _SPLIT_WORD.fullmatch(word)) else "" for word in words]
    if splits and splits[-1]:
        return splits[-1]
    distinct = sorted({*splits} - {""})
    if len(distinct) > 1:
        raise ValueError(
            f"the name of {path!r} has the words of several splits, {' and '.join(distinct)}; rename it, or "
            "name each file with its split: --input=SPLIT=FILE"
        )
    return distinct[0] if distinct else ""
