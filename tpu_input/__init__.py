"""Input pipelines for TPUs, which read shards and return batches of fixed shape.

The names below are imported on first use, so that `import tpu_input.dataset_format.records` does not import TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_input.command_line.distribution import __version__ as __version__
from tpu_input.command_line.public_names import publish

if TYPE_CHECKING:
    from tpu_input.config import InputConfig as InputConfig
    from tpu_input.dataset_format.records import Manifest as Manifest
    from tpu_input.dataset_format.records import RecordSpec as RecordSpec
    from tpu_input.datasets import eval_steps as eval_steps
    from tpu_input.datasets import find_undecodable as find_undecodable
    from tpu_input.datasets import read_manifest as read_manifest
    from tpu_input.evaluate import make_eval_input_fn as make_eval_input_fn
    from tpu_input.example_source import EvalSource as EvalSource
    from tpu_input.example_source import TrainSource as TrainSource
    from tpu_input.interop import as_numpy as as_numpy
    from tpu_input.interop import load as load
    from tpu_input.interop import params_from_context as params_from_context
    from tpu_input.pipeline.device import from_infeed as from_infeed
    from tpu_input.pipeline.order import Order as Order
    from tpu_input.predict import make_predict_input_fn as make_predict_input_fn
    from tpu_input.predict import make_serving_input_receiver_fn as make_serving_input_receiver_fn
    from tpu_input.record_source import RecordSource as RecordSource
    from tpu_input.record_source import training_order as training_order
    from tpu_input.storage.foreign_shards import manifest_from_shards as manifest_from_shards
    from tpu_input.train import make_train_input_fn as make_train_input_fn

__all__ = publish(
    __name__,
    {
        "EvalSource": "tpu_input.example_source",
        "InputConfig": "tpu_input.config",
        "Manifest": "tpu_input.dataset_format.records",
        "Order": "tpu_input.pipeline.order",
        "RecordSource": "tpu_input.record_source",
        "RecordSpec": "tpu_input.dataset_format.records",
        "TrainSource": "tpu_input.example_source",
        "as_numpy": "tpu_input.interop",
        "eval_steps": "tpu_input.datasets",
        "find_undecodable": "tpu_input.datasets",
        "from_infeed": "tpu_input.pipeline.device",
        "load": "tpu_input.interop",
        "make_eval_input_fn": "tpu_input.evaluate",
        "make_predict_input_fn": "tpu_input.predict",
        "make_serving_input_receiver_fn": "tpu_input.predict",
        "make_train_input_fn": "tpu_input.train",
        "manifest_from_shards": "tpu_input.storage.foreign_shards",
        "params_from_context": "tpu_input.interop",
        "read_manifest": "tpu_input.datasets",
        "training_order": "tpu_input.record_source",
    },
)
