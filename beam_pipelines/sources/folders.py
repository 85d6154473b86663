"""Meaning of the folders of an input: classes, or splits with classes below them.

    Row ──add──▶ {(source's split, folder): Folder} ──read_folders──▶ Layout ──label_by_folder──▶ Row with label, split

Folders are classes unless all of them have names of splits; or all folders in them do, as in CLASS/train/IMAGE.jpg. If
the names are ambiguous, nothing is guessed: the input is refused with a message that lists the folders. A folder that
is hidden, or that contains no image, is not a class.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.sources import layouts, not_images
from beam_pipelines.sources.naming import LabelSurvey, Numbering, name_classes, read_labels, source_of
from beam_pipelines.sources.row_columns import Batch
from beam_pipelines.sources.rows import Row, label_row
from tpu_input.command_line.output import printable
from tpu_input.command_line.wording import enumerated
from tpu_input.dataset_format.split_names import SPLIT_FOLDERS, SPLIT_NAMES, THINGS, lowered

# Matches "train2017", "seg_train", "training_set", "testset": a split's name as a separate word, possibly followed by
# one of THINGS.
_ABOUT_A_SPLIT = re.compile(rf"(.*?)(?<![a-z])({'|'.join(SPLIT_NAMES)})({THINGS})?(?![a-z])(.*)", re.DOTALL)
_SAYS_NOTHING = re.compile(rf"(?:[^a-z]|(?<![a-z])(?:{THINGS})(?![a-z]))*", re.DOTALL)
_MAX_SPLITS = 3  # that an input usually has
_MAX_SHOWN = 6  # folders shown in a message
_ARCHIVES = frozenset([".zip", ".tar", ".tgz", ".gz", ".zst", ".bz2", ".xz", ".7z", ".rar"])
_MAX_INNER = 64  # names of folders that are noted below a class folder, besides names of splits


Place = tuple[str, str, str]  # source's split, outermost folder, next folder if one of both has the name of a split
_Key = TypeVar("_Key")


class Folder(NamedTuple):
    """Counts of the inputs in a folder.

    Attributes:
      num_files: Inputs that are not rejected.
      num_images: How many of these inputs have names that may be an image's.
      example: The first of these inputs.
      inner: Names of folders below it: of splits, and the first of the others; "" if files lie directly in it.
    """

    num_files: int
    num_images: int
    example: str
    inner: frozenset[str] = frozenset()

    def plus(self, other: Folder) -> Folder:
        """Returns the sums of both."""
        return Folder(
            self.num_files + other.num_files,
            self.num_images + other.num_images,
            min(self.example, other.example),
            self.inner if other.inner <= self.inner else _first(self.inner | other.inner),
        )


class Layout(NamedTuple):
    """Meaning of the folders.

    Attributes:
      splits: Folders that are splits.
      has_inner_splits: Whether these lie in the class folders, as in CLASS/train/IMAGE.jpg, not around them.
      without_images: Folders that would be classes, but contain no image.
      remarks: Remarks for the user, one line per remark.
      pruned_keys: Keys that the next version of a dataset that is extended leaves out.
      numbering: How labels that are numbers are read.
      num_outdated: Number of images of a dataset that is extended which stay in it though their inputs have changed.
    """

    splits: frozenset[str]
    has_inner_splits: bool
    without_images: frozenset[str]
    remarks: tuple[str, ...]
    pruned_keys: tuple[str, ...] = ()
    numbering: Numbering = Numbering()
    num_outdated: int = 0


class Survey(NamedTuple):
    """What read_folders() needs to know of all rows.

    Attributes:
      folders: Folders that may be classes.
      labels: Labels of the rows that have some.
      others: Number of files that are not images, by not_images.ending(), or by the flags --ignore that name them.
      labelled: Folders of the images of sources whose labels are in a file or in their names, with the source's split:
        the outermost one, or "", and whether those below it have the name of a split.
    """

    folders: dict[Place, Folder]
    labels: LabelSurvey
    others: Counter[str]
    labelled: set[tuple[str, str, bool]]


class FolderSurvey:
    """Combination of batches of rows to the one Survey, with the methods of Beam's CombineFn."""

    def __init__(self, options: ConvertOptions) -> None:
        self._options = options

    def create_accumulator(self) -> Survey:
        return Survey({}, LabelSurvey(), Counter(), set())

    def add_input(self, accumulator: Survey, batch: Batch) -> Survey:
        if batch.is_all("label", "") and batch.is_all("reason", "") and batch.num_rows:
            keys_by_place: dict[tuple[str, str], list[str]] = {}
            for place, key in zip(_places(batch), batch.column("key"), strict=True):
                keys_by_place.setdefault(place, []).append(key)
            for (split, _), keys in keys_by_place.items():
                self._add_folder(accumulator, split, min(keys), len(keys), is_image=True)
        else:
            self._add_rows(accumulator, batch.rows())
        return accumulator

    def _add_rows(self, survey: Survey, rows: list[Row]) -> None:
        """Adds rows that may have labels or reasons."""
        several = len(self._options.sources) > 1
        rows_by_label: dict[tuple[str, str], Row] = {}  # one row of each label and source, as all of them add the same
        files: dict[tuple[str, str, bool], tuple[int, str]] = {}
        for row in rows:
            if row.label and not row.reason:
                rows_by_label.setdefault((row.label, row.key.partition("/")[0] if several else ""), row)
                if _is_labelled(row, self._options):
                    top, *others = _folders(row, self._options) or [""]
                    survey.labelled.add((row.split, top if is_split(top) else "", any(map(is_split, others))))
            if row.reason in not_images.REASONS:
                is_ignored = row.reason == not_images.IGNORED
                survey.others.update([row.detail if is_ignored else not_images.ending(row.key)])
            if not row.label and row.reason in ("", not_images.OTHER_FILE):
                place = row.split, _folder_of(row.key), not row.reason
                count, example = files.get(place, (0, row.key))
                files[place] = count + 1, min(example, row.key)
        for row in rows_by_label.values():
            survey.labels.add(row, self._options)
        for (split, _, is_image), (count, example) in files.items():
            self._add_folder(survey, split, example, count, is_image)

    def _add_folder(self, survey: Survey, split: str, example: str, count: int, is_image: bool) -> None:
        """Adds so many files of a folder, such as `example`."""
        folders = _folders(Row(example, split=split), self._options)
        if folders and not any(map(is_hidden, folders)):
            below = folders[1] if len(folders) > 1 and any(map(is_split, folders[:2])) else ""
            inner = frozenset((folders[2:] if is_split(folders[0]) else folders[1:]) or [""])
            place = split, folders[0], below
            _add(survey.folders, place, Folder(count, count * is_image, example, inner))

    def merge_accumulators(self, accumulators: Iterable[Survey]) -> Survey:
        merged = self.create_accumulator()
        for accumulator in accumulators:
            merged.labels.merge(accumulator.labels)
            merged.others.update(accumulator.others)
            merged.labelled.update(accumulator.labelled)
            for place, folder in accumulator.folders.items():
                _add(merged.folders, place, folder)
        return merged

    def extract_output(self, accumulator: Survey) -> Survey:
        return accumulator


def split_survey(survey: Survey, num_parts: int) -> list[Survey]:
    """Returns the parts of an accumulator of FolderSurvey: some folders in each, and the labels in the first."""
    parts = [Survey({}, LabelSurvey(), Counter(), set()) for _ in range(num_parts)]
    parts[0] = survey._replace(folders={})
    for place, folder in survey.folders.items():
        number = zlib.crc32("/".join(place).encode(errors="replace")) % num_parts  # unlike hash(), the same everywhere
        parts[number].folders[place] = folder
    return parts


def _add(folders: dict[_Key, Folder], place: _Key, folder: Folder) -> None:
    previous = folders.get(place)
    folders[place] = previous.plus(folder) if previous else folder


def _first(names: frozenset[str]) -> frozenset[str]:
    """Returns the names of splits and the first of the others, which are the same in whatever order they are added."""
    if len(names) <= _MAX_INNER:
        return names
    splits = frozenset(filter(is_split, names))
    return splits | frozenset(sorted(names - splits)[:_MAX_INNER])


def is_split(folder: str) -> bool:
    """Returns whether a folder has the name of a split; case-insensitive."""
    return folder.lower() in SPLIT_FOLDERS


def is_hidden(folder: str) -> bool:
    """Returns whether a folder is hidden, such as .git and .ipynb_checkpoints, and thus no class folder."""
    return folder.startswith(".")


def _folders(row: Row, options: ConvertOptions) -> list[str]:
    """Returns the folders of an input within its source."""
    folders = row.key.split("/")[:-1]
    return folders[1:] if row.split and len(options.sources) > 1 else folders  # list_rows() prepends the split


def read_folders(survey: Survey, options: ConvertOptions) -> Layout:
    """Returns the meaning of the folders of all sources, and of labels that are numbers.

    Raises:
      ValueError: It is ambiguous which folders are splits and which are classes, or what numbers mean.
    """
    folders = survey.folders
    splits: frozenset[str] = frozenset()
    with_images = [place for place, folder in folders.items() if folder.num_images]
    has_inner_splits = bool(with_images) and all(
        not split and is_split(below) and not is_split(top) for split, top, below in with_images
    )
    for source in {place[0] for place in folders}:
        tops: dict[str, Folder] = {}
        nested: dict[str, bool] = {}  # whether a folder with the name of a split contains only folders
        for (split, top, below), folder in sorted(folders.items()):
            if split == source:
                _add(tops, top, folder)
                nested[top] = nested.get(top, True) and bool(below)
        source_read = next(candidate for candidate in options.sources if candidate.split == source)
        if source and len(options.sources) > 1:  # list_rows() prepends the split
            tops = {top: folder._replace(example=folder.example[len(source) + 1 :]) for top, folder in tops.items()}
        examples = {top: folder.example for top, folder in tops.items()}
        if not options.labels and options.label_kind.needs_classes and (why := layouts.refused(source_read, examples)):
            raise ValueError(why)
        # A folder of other files, such as docs/, may be next to the folders of splits.
        if not source and all(map(is_split, {top for top, folder in tops.items() if folder.num_images} or tops)):
            splits = frozenset(filter(is_split, tops))
        elif unclear := _unclear(tops, nested, options.labels):
            raise ValueError(_question(tops, unclear, source_read))
    files: dict[str, Folder] = {}
    for (split, top, below), folder in sorted(folders.items()):
        _add(files, below if not split and top in splits else top, folder)
    if splits and all(map(is_split, files)):
        example = min(folder.example for folder in files.values())
        raise ValueError(
            f"folders of splits lie in folders of splits, such as {example!r}; name the folder above the class folders "
            "of each split: --input=SPLIT=FOLDER"
        )
    if not has_inner_splits:
        _check_splits_inside(files)
    for name in sorted(files):
        if options.label_kind.needs_classes and not set(files) <= set(options.labels):
            _check_classes_inside(name, files[name], files.keys() - {name})
    splits |= _splits_of_labelled(survey)
    without_images = frozenset(name for name, folder in files.items() if name and not folder.num_images)
    for name in files.keys() - without_images if options.label_kind.needs_classes else ():
        survey.labels.add_name(name)
    numbering = read_labels(survey.labels, options)
    if has_inner_splits:
        splits = frozenset(below for _, _, below in with_images)
    prefix = "CLASS/" if has_inner_splits else ""
    remarks = _remarks(
        [f"{prefix}{name}/ as {SPLIT_FOLDERS[name.lower()]}" for name in sorted(splits)],
        {name: files[name] for name in without_images},
        survey,
        options,
    )
    if options.label_kind.needs_classes and not options.labels:
        classes = {name: folder for name, folder in files.items() if name and name not in without_images}
        remarks = (*remarks, *_remarks_on_alike(classes))
    return Layout(splits, has_inner_splits, without_images, (*remarks, *numbering.remarks), numbering=numbering)


def _is_labelled(row: Row, options: ConvertOptions) -> bool:
    """Returns whether a row is an image of a folder or an archive whose label is not the name of its folder."""
    source = source_of(row, options.sources)
    return bool(source and (source.label_list or source.label_pattern))


def _splits_of_labelled(survey: Survey) -> frozenset[str]:
    """Returns the outermost folders that are splits, of images whose labels are in a file or in their names.

    Raises:
      ValueError: They have names of several splits, but there are other images, or they lie in other folders.
    """
    split_folders = sorted({top for _, top, _ in survey.labelled} - {""})
    if split_folders and all(not split and top and not inner for split, top, inner in survey.labelled):
        return frozenset(split_folders)
    has_inner_splits = any(inner for _, _, inner in survey.labelled)
    if len({SPLIT_FOLDERS[top.lower()] for top in split_folders}) < 2 and not has_inner_splits:
        return frozenset()
    locations = f"some images are in {_enumerated([f'{top}/' for top in split_folders])}, " if split_folders else ""
    raise ValueError(
        f"it is not clear which split an image belongs to: {locations}some are in other folders or are given a split, "
        "and folders named like splits would be mixed; move all images to SPLIT/, or name the folder of each split: "
        "--input=SPLIT=FOLDER"
    )


def _check_splits_inside(files: dict[str, Folder]) -> None:
    """Raises ValueError if class folders have folders of splits in them, whose images would be mixed.

    A single folder with such a name, in one class folder, may be a part of the class.
    """
    inner_splits = {
        name: {inner: SPLIT_NAMES[inner.lower()] for inner in sorted(folder.inner) if inner.lower() in SPLIT_NAMES}
        | _unclear(sorted(folder.inner), {}, ())
        for name, folder in sorted(files.items())
    }
    affected = {name: splits for name, splits in inner_splits.items() if splits}
    if len(affected) > 1 or any(len(set(splits.values())) > 1 for splits in affected.values()):
        name, splits = max(affected.items(), key=lambda item: len(item[1]))
        raise ValueError(
            f"class folder {name!r} has {_enumerated(list(splits))} in it, which would be mixed, as other files are "
            f"next to the folders of splits ({_count(files[name])}); move them to SPLIT/CLASS/ or CLASS/SPLIT/, or "
            "make a list: --input=LIST.csv with the columns image,label,split"
        )


def _check_classes_inside(name: str, folder: Folder, others: Collection[str]) -> None:
    """Raises ValueError if what looks like a class folder contains the other class folders again."""
    class_names = {other.casefold() for other in others if other}
    repeated = sorted(inner for inner in folder.inner if inner.casefold() in class_names)
    # One such folder may be a part of the class, unless there is nothing else in it.
    if len(repeated) > 1 or (repeated and len(repeated) == len(folder.inner)):
        raise ValueError(
            f"{name!r} would be a class, but has folders of other classes in it, {_enumerated(repeated)} "
            f"({_count(folder)}); move it out of the input if it is a copy, such as the archive from which the classes "
            "were unpacked; or, if it is a class, list all classes in --labels=FILE"
        )


def _enumerated(names: list[str]) -> str:
    more = len(names) - _MAX_SHOWN
    return " and ".join([*map(repr, names[:_MAX_SHOWN]), *([f"{more:,} more"] if more > 0 else [])])


def _unclear(tops: Collection[str], nested: Mapping[str, bool], classes: Collection[str]) -> dict[str, str]:
    """Returns {folder: split that it seems to be} of the ambiguous folders; {} if there are none.

    A single folder with the name of a split may be a class ("train" among classes of vehicles), unless it contains only
    folders.
    """
    if classes and set(tops) <= set(classes):
        return {}
    candidates: dict[str, tuple[str, str]] = {}
    by_rest = defaultdict(set)
    for top in tops:
        if match := _ABOUT_A_SPLIT.fullmatch(lowered(top)):
            split, rest = SPLIT_NAMES[match[2]], f"{match[1]}*{match[4]}"
            candidates[top] = split, rest
            by_rest[rest].add(split)
    splits = {
        top: split
        for top, (split, rest) in candidates.items()
        if _SAYS_NOTHING.fullmatch(rest) or len(by_rest[rest]) > 1
    }
    several = len(set(splits.values())) > 1 and ("train" in splits.values() or not all(map(is_split, splits)))
    holds_folders = any(is_split(top) and nested.get(top) for top in splits)
    return splits if several or holds_folders else {}


def _question(tops: dict[str, Folder], unclear: dict[str, str], source: Source) -> str:
    """Returns the error message that asks which folders are splits and which are classes."""
    ordered = sorted(tops, key=lambda top: (top not in unclear, top))
    summary = enumerated([f"{top}/ with {_count(tops[top])}" for top in ordered], _MAX_SHOWN, "more folders")
    by_split = {split: _innermost(top, tops[top]) for top, split in sorted(unclear.items(), reverse=True)}
    flags = " ".join(Source(f"{source.path}/{top}", split).flag for split, top in by_split.items())
    advice = f"pack an archive for each split, or unpack it and use {flags}" if source.is_archive else flags
    return (
        f"it is not clear which folders of {source.path!r} are splits and which are classes: {summary}; specify the "
        f"folder above the class folders of each split, for example: {advice}; or, if all are classes, list them in "
        "--labels=FILE"
    )


def _innermost(top: str, folder: Folder) -> str:
    """Returns TOP, or TOP/TOP where an unpacked archive has put a folder into one of the same name."""
    return f"{top}/{top}" if folder.example.startswith(f"{top}/{top}/") else top


def _count(folder: Folder) -> str:
    return f"{folder.num_files:,} file{'s' * (folder.num_files > 1)} such as {folder.example!r}"


def _remarks_on_alike(classes: Mapping[str, Folder]) -> Iterable[str]:
    """Yields a line if the classes may be splits of unusual names, as all have the same folders in them."""
    inner = {folder.inner for folder in classes.values()}
    if not 1 < len(classes) <= _MAX_SPLITS or len(inner) > 1 or len(names := sorted(*inner)) < 2 or "" in names:
        return
    yield (
        f"the classes are {_enumerated(sorted(classes))}, though each has {_enumerated(names)} in it; if these are the "
        "classes, name the folder of each split: --input=SPLIT=FOLDER"
    )


def _remarks(
    splits: list[str], without_images: dict[str, Folder], survey: Survey, options: ConvertOptions
) -> Iterable[str]:
    if splits:
        yield f"read as splits: {', '.join(splits)}"
    if without_images:
        entries = [f"{name}/ with {_count(folder)}" for name, folder in sorted(without_images.items())]
        listed = enumerated(entries, _MAX_SHOWN, "more folders")
        yield f"folders without images, which are not classes: {listed}"
    if survey.others:
        kinds = "not images, or ignored" if options.ignore else "not images"
        yield f"{kinds}, so only listed in rejected.jsonl: {_most_common(survey.others)}"
    if archives := sorted(name for name in survey.others if name in _ARCHIVES):
        yield (
            f"archives in the folders are not read ({', '.join(archives)}): unpack them, or convert each as an input "
            "of its own, and put the datasets together with: jpeg2tpu merge"
        )
    flags = {flag for flags in survey.others for flag in flags.split(" --ignore=")}
    unused = [pattern for pattern in options.ignore if not {pattern, f"--ignore={pattern}"} & flags]
    if unused:
        yield f"no file is ignored because of {', '.join(f'--ignore={pattern}' for pattern in unused)}"


def _most_common(counts: Counter[str]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    more = len(ordered) - _MAX_SHOWN
    text = ", ".join(f"{count:,} {printable(name)}" for name, count in ordered[:_MAX_SHOWN])
    return text + (f", {sum(count for _, count in ordered[_MAX_SHOWN:]):,} others" if more > 0 else "")


def label_by_folder(row: Row, layout: Layout, options: ConvertOptions) -> Row:
    """Returns the row with the label from its folders, and with the split if its outermost folder is one."""
    if row.reason not in ("", not_images.OTHER_FILE):
        return row
    unlabelled, folders = not options.label_kind.needs_classes, _folders(row, options)
    if row.label and not _is_labelled(row, options):
        return name_classes(row, layout.numbering, options)
    if layout.has_inner_splits and len(folders) > 1 and is_split(folders[1]) and not row.label:
        row = row._replace(split=SPLIT_FOLDERS[folders[1].lower()])
    elif not row.split and folders and folders[0] in layout.splits:
        row = row._replace(split=SPLIT_FOLDERS[folders.pop(0).lower()])
    if row.label:
        return name_classes(row, layout.numbering, options)
    if hidden := next(filter(is_hidden, folders), ""):
        return row.reject("hidden", f"is in the hidden folder {hidden!r}, which is not a class")
    if folders and folders[0] in layout.without_images and not unlabelled:
        return row.reject("no_class", f"is in {folders[0]!r}, which contains no image and is therefore not a class")
    if row.reason:
        return row
    if not folders:
        return label_row(row, "", options) if unlabelled else row.reject("no_label", "is not in a class folder")
    return name_classes(label_row(row, folders[0], options, are_names=True), layout.numbering, options)


def label_rows(batch: Batch, layout: Layout, options: ConvertOptions) -> Batch:
    """Returns rows with labels and splits as label_by_folder() does, which is called once for the files of a folder."""
    if not (batch.is_all("label", "") and batch.is_all("reason", "")):
        return batch.map_rows(lambda rows: [label_by_folder(row, layout, options) for row in rows])
    places = _places(batch)
    models = {
        place: label_by_folder(Row(key, split=place[0]), layout, options)
        for place, key in dict(zip(places, batch.column("key"), strict=True)).items()
    }
    columns = {}
    for name in ("label", "split", "reason", "detail"):
        values = {place: getattr(model, name) for place, model in models.items()}
        columns[name] = [values[place] for place in places]
    return batch.replace(**columns)


def _places(batch: Batch) -> list[tuple[str, str]]:
    """Returns the split that its input names, and the folder, of each row."""
    return list(zip(batch.column("split"), map(_folder_of, batch.column("key")), strict=True))


def _folder_of(key: str) -> str:
    return key[: key.rfind("/") + 1]
