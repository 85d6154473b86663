"""From what inputs write as labels to names of classes: one place for all kinds of inputs and of labels.

    Row ──add──▶ LabelSurvey of all rows ──read_labels──▶ Numbering ──name_classes──▶ Row with names of classes

Names get their canonical form. Whether numbers count from 0 or 1 is decided from all numbers of the input at once, as a
wrong guess would give every image its neighbor's label. With N names, 0 without N means from 0, and N without 0 means
from 1. Anything else is an error about the input, not about single images.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from beam_pipelines.options import ConvertOptions, RecordFormat, Source
from beam_pipelines.sources.lists import NUMBERED, read_numbered_names
from beam_pipelines.sources.rows import Row, written_names
from tpu_input.command_line.wording import enumerated
from tpu_input.dataset_format.class_names import canonical
from tpu_input.dataset_format.label_kinds import ONE

_NUMBER = re.compile(r"-?\d{1,18}")
_MAX_NUMBERS = 1 << 20  # different numbers that a survey keeps; a table of names has fewer
_MAX_SHOWN = 4  # names in a message


class Table(NamedTuple):
    """A table of names by which numbers become classes.

    Attributes:
      path: File of --label_names; "" for --labels.
      first_label: Number of the first class that --record declares; None if it is to be taken from the numbers.
      has_names: Whether numbers have names; false for labels that are text, with --labels.
    """

    path: str = ""
    first_label: int | None = None
    has_names: bool = True


@dataclasses.dataclass
class LabelSurvey:
    """What the labels of all rows are, for read_labels().

    Attributes:
      numbers: Different numbers by table.
      others: A label that is not a number, for each table with such labels.
      spellings: Names that are not in canonical form, by that form.
      names: Names in canonical form, at most two of them.
    """

    numbers: dict[Table, set[int]] = dataclasses.field(default_factory=dict)
    others: dict[Table, str] = dataclasses.field(default_factory=dict)
    spellings: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    names: set[str] = dataclasses.field(default_factory=set)

    def add(self, row: Row, options: ConvertOptions) -> None:
        """Adds a row with a label from label_row()."""
        names, is_numbered = written_names(row, options.label_kind)
        table = _table(source_of(row, options.sources), is_numbered, bool(options.labels))
        for name in names:
            number = _number(name) if table else None
            if table and number is not None and (table.has_names or canonical(name) not in options.known_labels):
                numbers = self.numbers.setdefault(table, set())
                if len(numbers) < _MAX_NUMBERS or not min(numbers) <= number <= max(numbers):
                    numbers.add(number)
                continue
            if table and table.has_names and canonical(name):
                self.others[table] = min(name, self.others.get(table, name))
            self.add_name(name)

    def add_name(self, name: str) -> None:
        """Adds the name of a class as an input writes it."""
        form = canonical(name)
        if form and len(self.names) < 2:
            self.names.add(form)
        if form != name and form:
            self.spellings.setdefault(form, set()).add(name)

    def merge(self, other: LabelSurvey) -> None:
        """Adds what is known of other rows."""
        for table, numbers in other.numbers.items():
            self.numbers.setdefault(table, set()).update(numbers)
        for table, name in other.others.items():
            self.others[table] = min(name, self.others.get(table, name))
        for form, names in other.spellings.items():
            self.spellings.setdefault(form, set()).update(names)
        self.names = set(sorted(self.names | other.names)[:2])


class Numbering(NamedTuple):
    """How the numbers of the inputs are read.

    Attributes:
      names: Names of the classes by number, for each table; an empty one for numbers that are names themselves.
      remarks: Lines for the user.
    """

    names: Mapping[Table, Mapping[int, str]] = {}
    remarks: tuple[str, ...] = ()


def source_of(row: Row, sources: Sequence[Source]) -> Source | None:
    """Returns the input of a row; None for the images of a pipeline."""
    if len(sources) < 2:
        return sources[0] if sources else None
    first = row.key.partition("/")[0]
    # Rows that name no image have no split in their key.
    return next((source for source in sources if (source.split or source.name) == first), sources[0])


def _table(source: Source | None, is_numbered: bool, has_names: bool) -> Table | None:
    """Returns the table for the numbers of a row; None if its label is a name."""
    if source and source.label_names:
        return Table(source.label_names)
    if is_numbered:
        return Table("", RecordFormat.parse(source.record).first_label if source and source.record else None)
    return Table(has_names=False) if has_names else None


def _number(name: str) -> int | None:
    text = canonical(name)
    return int(text) if _NUMBER.fullmatch(text) else None


def read_labels(survey: LabelSurvey, options: ConvertOptions) -> Numbering:
    """Returns how the numbers of the inputs are read.

    Raises:
      ValueError: Numbers do not fit their names, or it is not clear which number is the first one.
    """
    names: dict[Table, Mapping[int, str]] = {}
    remarks = list(_spelling_remarks(survey))
    for table in sorted(survey.numbers.keys() | survey.others.keys(), key=repr):
        numbers = survey.numbers.get(table, set())
        if not numbers:
            raise ValueError(
                f"no label is a number, but {table.path!r} has names for numbers; leave out --label_names, or correct "
                f"the labels, e.g. {survey.others[table]!r}"
            )
        if not table.has_names:
            raise ValueError(
                f"the labels are numbers, {_range(numbers)}, which are not in --labels; with a list, use "
                "--label_names=FILE for the names of the numbers, instead of --labels or with it; else write names"
            )
        names[table], remark = _names_by_number(table, numbers, options)
        remarks += [remark] if remark else []
    remarks += _single_class_remarks(survey, options)
    return Numbering(names, tuple(remarks))


def _single_class_remarks(survey: LabelSurvey, options: ConvertOptions) -> Iterator[str]:
    """Yields a line if all images have the same label, unless the dataset has more classes than its inputs."""
    labels = [*survey.names, *set().union(*survey.numbers.values())]
    is_alone = len(options.known_labels) < 2 and not options.extend  # a dataset that is extended has classes of its own
    if options.label_kind is ONE and len(labels) == 1 and is_alone:
        yield (
            f"all images have one class, {str(labels[0])!r}, so a classifier has nothing to tell apart; add images of "
            "another class before training"
        )


def _range(numbers: set[int]) -> str:
    return f"{min(numbers)} to {max(numbers)}" if len(numbers) > 1 else f"{min(numbers)}"


def _names_by_number(table: Table, numbers: set[int], options: ConvertOptions) -> tuple[Mapping[int, str], str]:
    """Returns (names of a table by number, a line for the user or "" if the names are given with their numbers)."""
    if not table.path and not options.labels:
        return {}, (
            f"labels are numbers, {_range(numbers)}, and so are the names of the classes; name them with "
            "--labels=FILE, one name per line in the order of the numbers"
        )
    where = repr(table.path) if table.path else "--labels"
    if not table.path and all(map(NUMBERED.fullmatch, options.labels)):
        raise ValueError(
            f"the labels are the numbers {_range(numbers)}, and the names in --labels begin with numbers, such as "
            f"{options.labels[0]!r}; write only the names, one per line in the order of the numbers"
        )
    class_names = read_numbered_names(table.path) if table.path else options.labels
    if isinstance(class_names, Mapping):
        if unknown := sorted(numbers - class_names.keys()):
            raise ValueError(
                f"the labels are the numbers {_range(numbers)}, but {where} has {len(class_names)} names, for "
                f"{_range(set(class_names))}, and none for {enumerated(unknown, _MAX_SHOWN)}; write its lines as "
                "NUMBER,NAME as the labels count, or correct the labels"
            )
        return class_names, ""
    first = _first_number(table, numbers, len(class_names), where)
    remark = f"labels are numbers, {_range(numbers)}: counted from {first} in the {len(class_names)} names of {where}"
    return dict(enumerate(class_names, first)), remark


def _first_number(table: Table, numbers: set[int], num_names: int, where: str) -> int:
    """Returns the number of the first of so many names."""
    summary = f"the labels are the numbers {_range(numbers)}, for {num_names} names in {where}"
    smallest, largest = min(numbers), max(numbers)
    advice = "write its lines as NUMBER,NAME" if table.path else "name the first number, --record=FORMAT,first_label=N"
    if table.first_label is not None:
        last = table.first_label + num_names - 1
        if table.first_label <= smallest and largest <= last:
            return table.first_label
        raise ValueError(
            f"{summary}, which are for {table.first_label} to {last} with first_label={table.first_label} of --record; "
            "correct first_label or the names"
        )
    if smallest < 0 or largest > num_names or (smallest == 0 and largest == num_names):
        raise ValueError(
            f"{summary}: counted from 0 the last name is number {num_names - 1}, counted from 1 it is number "
            f"{num_names}, and neither has all of them; correct the names or the labels, or {advice}"
        )
    if smallest and largest < num_names:
        raise ValueError(
            f"{summary}: there is neither number 0 nor number {num_names}, so they may be counted from 0 or from 1; "
            f"{advice}"
        )
    return 0 if smallest == 0 else 1


def _spelling_remarks(survey: LabelSurvey) -> Iterator[str]:
    if survey.spellings:
        examples = [
            f"{form!r} for {' and '.join(map(ascii, sorted(names)[:_MAX_SHOWN]))}"
            for form, names in sorted(survey.spellings.items())
        ]
        yield (
            "class names are stored in one form (Unicode NFC, no white space around them), also those that differed "
            f"only by that: {enumerated(examples, _MAX_SHOWN)}"
        )


def name_classes(row: Row, numbering: Numbering, options: ConvertOptions) -> Row:
    """Returns a row with the names of its classes instead of the input's labels, or with a reason."""
    kind = options.label_kind
    if row.reason:
        return row
    if not kind.needs_classes:
        return row._replace(label=kind.text(()))
    names, is_numbered = written_names(row, options.label_kind)
    table = _table(source_of(row, options.sources), is_numbered, bool(options.labels))
    if table and (by_number := numbering.names.get(table)):
        numbers = {name: number for name in names if (number := _number(name)) is not None}
        if unknown := [name for name in names if name not in numbers and canonical(name) and not is_numbered]:
            return row.reject("unknown_label", f"its label is {unknown[0]!r}, not a number of a class")
        names = tuple(by_number[numbers[name]] if name in numbers else name for name in names)
    names = tuple(filter(None, map(canonical, names)))
    if kind is ONE and not names:
        return row.reject("no_label", "its label is empty")
    return row._replace(label=kind.text(names))


def in_class_order(names: set[str]) -> list[str]:
    """Returns class names in label order: sorted, and by their value if all of them are numbers."""
    if names and all(name.isascii() and name.isdigit() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)
