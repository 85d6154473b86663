"""Application that trains, evaluates and exports an image classifier; see `jpeg2tpu --help`.

    finished = estimator_app.train("flowers_tfrecords", "model", image_size=224, train_steps=5000)
    classifier = estimator_app.load_classifier(finished.export)

The names below are imported on first use, so that importing the package does not import TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_input.command_line.distribution import __version__ as __version__
from tpu_input.command_line.public_names import publish

if TYPE_CHECKING:
    from estimator_app.config import TrainConfig
    from estimator_app.evaluate import Evaluation, evaluate
    from estimator_app.export import export
    from estimator_app.model.metrics import Metrics
    from estimator_app.model_dir.run_files import Finished
    from estimator_app.predict import Prediction, predict
    from estimator_app.predict_dataset import predict_dataset, predict_folds
    from estimator_app.runtime.tpu import Tpu
    from estimator_app.saved_model.classifier import Classifier, load_classifier
    from estimator_app.train import train
    from estimator_app.trainers.callbacks import Callback
    from estimator_app.watch import watch

__all__ = [
    "Callback",
    "Classifier",
    "Evaluation",
    "Finished",
    "Metrics",
    "Prediction",
    "Tpu",
    "TrainConfig",
    "evaluate",
    "export",
    "load_classifier",
    "predict",
    "predict_dataset",
    "predict_folds",
    "train",
    "watch",
]

publish(
    __name__,
    {
        "Callback": "estimator_app.trainers.callbacks",
        "Classifier": "estimator_app.saved_model.classifier",
        "Evaluation": "estimator_app.evaluate",
        "Finished": "estimator_app.model_dir.run_files",
        "Metrics": "estimator_app.model.metrics",
        "Prediction": "estimator_app.predict",
        "Tpu": "estimator_app.runtime.tpu",
        "TrainConfig": "estimator_app.config",
        "evaluate": "estimator_app.evaluate",
        "export": "estimator_app.export",
        "load_classifier": "estimator_app.saved_model.classifier",
        "predict": "estimator_app.predict",
        "predict_dataset": "estimator_app.predict_dataset",
        "predict_folds": "estimator_app.predict_dataset",
        "train": "estimator_app.train",
        "watch": "estimator_app.watch",
    },
)
