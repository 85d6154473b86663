"""What a network learns from the labels of a dataset: one task for each kind of labels that has classes.

    one label an image      the class that it is         softmax, cross-entropy of the label
    several, any number     whether it has each class    sigmoid, mean over the classes of the cross-entropy of each

A kind of labels without a task here cannot be trained. Nothing here needs TensorFlow.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from tpu_input.dataset_format.label_kinds import ONE, SEVERAL, LabelKind, label_kind

TOP = 5


class Task(abc.ABC):
    """What a network learns.

    Attributes:
      activation: Function from logits [N, K] to probabilities, by its name in tf.nn and jax.nn.
      has_one_answer: Whether the classes exclude each other: the largest logit is the prediction, labels are mixed as
        shares, and there is a confusion matrix.
      early_stop_metric: What early stopping watches unless --early_stop_metric says otherwise.
    """

    activation: ClassVar[str]
    has_one_answer: ClassVar[bool]
    early_stop_metric: ClassVar[str]

    @abc.abstractmethod
    def watchable(self, num_classes: int) -> tuple[str, ...]:
        """Returns the names in Metrics.scalars(), without needing an evaluation."""

    @abc.abstractmethod
    def balanced(self, class_counts: tuple[int, ...], num_examples: int) -> tuple[float, ...]:
        """Returns for each class the weight in the loss by which rare classes count as much as common ones.

        Args:
          class_counts: Number of examples that have each class.
          num_examples: Number of all examples.
        """


class _OneOfMany(Task):
    activation, has_one_answer, early_stop_metric = "softmax", True, "accuracy"

    def watchable(self, num_classes: int) -> tuple[str, ...]:
        return "accuracy", "loss", "mean_recall", *([f"top_{TOP}_accuracy"] if num_classes > TOP else [])

    def balanced(self, class_counts: tuple[int, ...], num_examples: int) -> tuple[float, ...]:
        # Every class has the same total weight; the mean over all examples is 1; a class without examples has 0.
        present = sum(count > 0 for count in class_counts)
        return tuple(num_examples / (present * count) if count else 0.0 for count in class_counts)


class _AnyOfMany(Task):
    activation, has_one_answer, early_stop_metric = "sigmoid", False, "mean_average_precision"

    def watchable(self, num_classes: int) -> tuple[str, ...]:
        return "accuracy", "loss", "mean_recall", "mean_average_precision", "mean_f1"

    def balanced(self, class_counts: tuple[int, ...], num_examples: int) -> tuple[float, ...]:
        # The ones of each class have the same total weight as its zeros; a class without examples has 1.
        return tuple((num_examples - count) / count if 0 < count < num_examples else 1.0 for count in class_counts)


TASKS: Mapping[LabelKind, Task] = MappingProxyType({ONE: _OneOfMany(), SEVERAL: _AnyOfMany()})


def task(label_type: str) -> Task:
    """Returns the task for the labels of a dataset.

    Args:
      label_type: Name of a kind of labels: TrainConfig.label_type.
    """
    return TASKS[label_kind(label_type)]
