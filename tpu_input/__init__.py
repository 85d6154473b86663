"""Input pipelines for TPUs, which read shards and return batches of fixed shape.

The names below are imported on first use, so that `import tpu_input.dataset_format.records` does not import TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_input.command_line.distribution import __version__ as __version__
from tpu_input.command_line.public_names import publish

if TYPE_CHECKING:
    from tpu_input.config import InputConfig as InputConfig
    from tpu_input.dataset_format.records import Manifest as Manifest, RecordSpec as RecordSpec
    from tpu_input.datasets import (
        eval_steps as eval_steps,
        find_undecodable as find_undecodable,
        read_manifest as read_manifest,
    )
    from tpu_input.evaluate import make_eval_input_fn as make_eval_input_fn
    from tpu_input.example_source import EvalSource as EvalSource, TrainSource as TrainSource
    from tpu_input.interop import as_numpy as as_numpy, load as load, params_from_context as params_from_context
    from tpu_input.pipeline.device import from_infeed as from_infeed
    from tpu_input.pipeline.order import Order as Order
    from tpu_input.predict import (
        make_predict_input_fn as make_predict_input_fn,
        make_serving_input_receiver_fn as make_serving_input_receiver_fn,
    )
    from tpu_input.record_source import RecordSource as RecordSource, training_order as training_order
    from tpu_input.storage.foreign_shards import manifest_from_shards as manifest_from_shards
    from tpu_input.train import make_train_input_fn as make_train_input_fn

__all__ = publish(
    __name__,
    {
        "tpu_input.config": ["InputConfig"],
        "tpu_input.dataset_format.records": ["Manifest", "RecordSpec"],
        "tpu_input.datasets": ["eval_steps", "find_undecodable", "read_manifest"],
        "tpu_input.evaluate": ["make_eval_input_fn"],
        "tpu_input.example_source": ["EvalSource", "TrainSource"],
        "tpu_input.interop": ["as_numpy", "load", "params_from_context"],
        "tpu_input.pipeline.device": ["from_infeed"],
        "tpu_input.pipeline.order": ["Order"],
        "tpu_input.predict": ["make_predict_input_fn", "make_serving_input_receiver_fn"],
        "tpu_input.record_source": ["RecordSource", "training_order"],
        "tpu_input.storage.foreign_shards": ["manifest_from_shards"],
        "tpu_input.train": ["make_train_input_fn"],
    },
)
