"""Kinds of labels: what an example of a dataset has for a label, and how it is stored, counted and shown.

    one       an image has one class          image/class/label    int      index column label
    several   an image has any number of them image/class/labels   [int]    index column labels
    none      an image has no label           image/class/labels   []       index column labels

A kind is the same object everywhere: in the options of a conversion, in a manifest, in training. Its name in
manifest.json and on the command line is `name`. Another kind is another class here, in KINDS.

A label has three forms: class indices in a record and in its index (`label`), names (`names`), and the text of a row
of a conversion (`text`), which passes through Beam's shuffle.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from tpu_input.dataset_format.record_spec import LABEL_KEY, LABELS_KEY

Label = Any  # int, or tuple[int, ...] of a kind that is stored as a list

_SEPARATOR, _ESCAPE = "\x1f", "\x1e"  # before each name in a text with several names, and before what stands for both


class LabelKind(abc.ABC):
    """What an example has for a label.

    Attributes:
      name: Name in manifest.json and on the command line.
      phrase: What an image has, for messages, as in "the images of 'flowers' have no labels".
      key: Feature of a record that has the label.
      is_list: Whether labels are stored as a list of class indices, not as one.
      needs_classes: Whether a dataset must have classes.
    """

    name: Literal["class", "classes", "none"]
    phrase: str
    key: str
    is_list: bool
    needs_classes: bool = True

    def __repr__(self) -> str:
        return f"<labels: {self.phrase}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return label_kind, (self.name,)  # the same object in another process

    @property
    def takes_several(self) -> bool:
        """Whether the label of an input may name several classes."""
        return self.is_list and self.needs_classes

    @abc.abstractmethod
    def text(self, names: Iterable[str]) -> str:
        """Returns the text of a label with the names of its classes: equal texts for equal labels.

        Raises:
          ValueError: A label of this kind cannot have so many classes.
        """

    @abc.abstractmethod
    def names(self, text: str) -> tuple[str, ...]:
        """Returns the names in a text from text()."""

    @abc.abstractmethod
    def label(self, indices: Sequence[int]) -> Label:
        """Returns the label that a record and its index have for classes."""

    @abc.abstractmethod
    def indices(self, label: Label) -> tuple[int, ...]:
        """Returns the class indices in a label."""

    @abc.abstractmethod
    def fits(self, label: Label) -> bool:
        """Returns whether a label that was read is one of this kind."""

    @abc.abstractmethod
    def class_name(self, names: Sequence[str]) -> Any:
        """Returns what Record.class_name is for the names of the classes of an example."""

    @abc.abstractmethod
    def fault(self, num_labels: int) -> str:
        """Returns why an image with so many labels has none of this kind, and what to do; "" if it has."""

    @abc.abstractmethod
    def takes(self, other: LabelKind) -> bool:
        """Returns whether examples with labels of another kind can become examples of this one, nothing guessed."""

    @abc.abstractmethod
    def count_fault(self, class_counts: Sequence[int], num_examples: int) -> str:
        """Returns why examples by class and examples in all contradict each other; "" if they do not."""

    def are_classes(self, label: Label, num_classes: int) -> bool:
        """Returns whether a label that was read is of this kind, and of classes of the dataset."""
        return self.fits(label) and all(0 <= index < num_classes for index in self.indices(label))

    def display(self, text: str) -> str:
        """Returns the text of a label for messages."""
        return ", ".join(self.names(text)) or "none"

    def label_names(self, label: Label, classes: Sequence[str]) -> str:
        """Returns the names of the classes in a label, with commas between them, to be shown."""
        return ", ".join(classes[index] for index in self.indices(label))

    def num_labels(self, num_classes: int) -> int | None:
        """Returns the number of classes if an example may have several of them; None if it has one."""
        return num_classes if self.is_list else None


class _One(LabelKind):
    name: Literal["class", "classes", "none"] = "class"
    phrase, key, is_list = "one label each", LABEL_KEY, False

    def text(self, names: Iterable[str]) -> str:
        (name,) = names
        return name

    def names(self, text: str) -> tuple[str, ...]:
        return (text,)

    def label(self, indices: Sequence[int]) -> Label:
        (index,) = indices
        return index

    def indices(self, label: Label) -> tuple[int, ...]:
        return (label,)

    def fits(self, label: Label) -> bool:
        return isinstance(label, int)

    def class_name(self, names: Sequence[str]) -> Any:
        return names[0]

    def fault(self, num_labels: int) -> str:
        return "" if num_labels == 1 else f"it has {num_labels} labels; --label_type=classes stores several"

    def takes(self, other: LabelKind) -> bool:
        return other is self

    def count_fault(self, class_counts: Sequence[int], num_examples: int) -> str:
        total = sum(class_counts)
        return "" if total == num_examples else f"{total} examples by class, but {num_examples} by shard"


class _Several(LabelKind):
    name: Literal["class", "classes", "none"] = "classes"
    phrase, key, is_list = "several labels each", LABELS_KEY, True

    def text(self, names: Iterable[str]) -> str:
        ordered = sorted(set(names))
        return "".join(f"{_SEPARATOR}{_escaped(name)}" for name in ordered) or _SEPARATOR

    def names(self, text: str) -> tuple[str, ...]:
        return tuple(_unescaped(part) for part in text.split(_SEPARATOR) if part)

    def label(self, indices: Sequence[int]) -> Label:
        return tuple(indices)

    def indices(self, label: Label) -> tuple[int, ...]:
        return tuple(label)

    def fits(self, label: Label) -> bool:
        return isinstance(label, tuple) and all(isinstance(index, int) for index in label)

    def class_name(self, names: Sequence[str]) -> Any:
        return tuple(names)

    def fault(self, num_labels: int) -> str:
        return ""

    def takes(self, other: LabelKind) -> bool:
        return other.needs_classes

    def count_fault(self, class_counts: Sequence[int], num_examples: int) -> str:
        most = max(class_counts, default=0)
        return "" if most <= num_examples else f"{most} examples of a class, but {num_examples} in all"


class _None(_Several):
    name: Literal["class", "classes", "none"] = "none"
    phrase, needs_classes = "no labels", False

    def text(self, names: Iterable[str]) -> str:
        return super().text(())

    def names(self, text: str) -> tuple[str, ...]:
        return ()

    def fits(self, label: Label) -> bool:
        return isinstance(label, tuple) and not label

    def takes(self, other: LabelKind) -> bool:
        return True


def _escaped(name: str) -> str:
    return name.replace(_ESCAPE, f"{_ESCAPE}0").replace(_SEPARATOR, f"{_ESCAPE}1")


def _unescaped(part: str) -> str:
    return part.replace(f"{_ESCAPE}1", _SEPARATOR).replace(f"{_ESCAPE}0", _ESCAPE)


ONE, SEVERAL, NONE = _One(), _Several(), _None()
KINDS: Mapping[str, LabelKind] = MappingProxyType({kind.name: kind for kind in (ONE, SEVERAL, NONE)})


def label_kind(name: str) -> LabelKind:
    """Returns the kind of labels with a name.

    Raises:
      ValueError: There is none.
    """
    if name not in KINDS:
        raise ValueError(f"label_type must be {', '.join(KINDS)}, got {name!r}")
    return KINDS[name]


def stored_kind(label: Label) -> LabelKind:
    """Returns the kind that a label on its own shows by its form: SEVERAL for all lists, as an empty one may be."""
    return SEVERAL if isinstance(label, tuple) else ONE


def merged_kind(kinds: Iterable[LabelKind]) -> LabelKind | None:
    """Returns the kind of labels that examples of all these kinds have in one dataset; None if there is none."""
    distinct = set(kinds)
    if len(distinct) == 1:
        return next(iter(distinct))
    return SEVERAL if all(kind.needs_classes for kind in distinct) else None
