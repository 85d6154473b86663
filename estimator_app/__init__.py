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
    from estimator_app.config import TrainConfig as TrainConfig
    from estimator_app.evaluate import Evaluation as Evaluation, evaluate as evaluate
    from estimator_app.export import export as export
    from estimator_app.model.metrics import Metrics as Metrics
    from estimator_app.model_dir.run_files import Finished as Finished
    from estimator_app.predict import Prediction as Prediction, predict as predict
    from estimator_app.predict_dataset import predict_dataset as predict_dataset, predict_folds as predict_folds
    from estimator_app.runtime.tpu import Tpu as Tpu
    from estimator_app.saved_model.classifier import Classifier as Classifier, load_classifier as load_classifier
    from estimator_app.train import train as train
    from estimator_app.trainers.callbacks import Callback as Callback
    from estimator_app.watch import watch as watch

__all__ = publish(
    __name__,
    {
        "estimator_app.config": ["TrainConfig"],
        "estimator_app.evaluate": ["Evaluation", "evaluate"],
        "estimator_app.export": ["export"],
        "estimator_app.model.metrics": ["Metrics"],
        "estimator_app.model_dir.run_files": ["Finished"],
        "estimator_app.predict": ["Prediction", "predict"],
        "estimator_app.predict_dataset": ["predict_dataset", "predict_folds"],
        "estimator_app.runtime.tpu": ["Tpu"],
        "estimator_app.saved_model.classifier": ["Classifier", "load_classifier"],
        "estimator_app.train": ["train"],
        "estimator_app.trainers.callbacks": ["Callback"],
        "estimator_app.watch": ["watch"],
    },
)
