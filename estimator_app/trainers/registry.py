"""Registry of the training loops: TPUEstimator, and tf.distribute, the only one in TensorFlow 2.16 and newer.

    "estimator" | "strategy" ──find_loop()──▶ make, train, evaluate, save

train.py decides what to do next; a loop does it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from estimator_app.runtime.tensorflow_startup import require_estimator

if TYPE_CHECKING:
    from estimator_app.model.metrics import Metrics


@dataclasses.dataclass(frozen=True)
class Loop:
    """The functions of a training loop, as called by train.py and the commands.

    Attributes:
      make: (config, model_dir, cluster) -> the trainer, the first argument of train and evaluate.
      train: (trainer, manifest, config, step, last, stop, left) -> columns of history.csv; trains from the checkpoint
        of `step` to that of `last`.
      evaluate: (trainer, manifest, config, stop, checkpoint) -> metrics over every example of config.split.
      save: (config, checkpoint, export_dir, classes_file, extra, export_to_tpu) -> path of a new SavedModel.
    """

    make: Callable[..., Any]
    train: Callable[..., dict[str, float]]
    evaluate: Callable[..., Metrics]
    save: Callable[..., str]


def find_loop(name: str) -> Loop:
    """Returns the loop of that name, one of LOOPS.

    Raises:
      ImportError: This TensorFlow has no TPUEstimator.
    """
    if name == "strategy":
        from estimator_app.trainers.tf_distribute.export import save as save_of_strategy
        from estimator_app.trainers.tf_distribute.train import evaluate as evaluate_strategy
        from estimator_app.trainers.tf_distribute.train import train as train_strategy
        from estimator_app.trainers.tf_distribute.trainer import make_trainer

        return Loop(make_trainer, train_strategy, evaluate_strategy, save_of_strategy)
    require_estimator()
    from estimator_app.trainers.tpu_estimator.export import save
    from estimator_app.trainers.tpu_estimator.model_fn import make_estimator
    from estimator_app.trainers.tpu_estimator.train import evaluate, train

    return Loop(make_estimator, train, evaluate, save)
