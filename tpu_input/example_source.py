"""Decoded examples by number, for grain and PyTorch: the batches of the input_fns without TensorFlow.

    n ──order──▶ number of the record ──RecordSource──▶ decode, crop, resize, flip ──▶ {"image", "weight", "label"}

A source has a length and returns an example for a number, which is all that grain's MapDataset and PyTorch's DataLoader
ask for. Example n of a TrainSource is the one that make_train_input_fn gives at place n % batch_size of step
start_step + n // batch_size: the same record, window and flip. It is already shuffled: read it in order, in batches of
batch_size.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.config import InputConfig, check_config
from tpu_input.dataset_format.records import Manifest, Record
from tpu_input.datasets import DatasetLike, as_manifest, eval_steps
from tpu_input.pipeline.caching import Share, ShareOrder, cache_bytes, check_memory
from tpu_input.pipeline.hosts import Host, check_params, check_steps, own_share
from tpu_input.pipeline.order import Order, is_in_memory
from tpu_input.record_source import RecordSource
from tpu_input.without_tensorflow.augmentations import find_augmentation
from tpu_input.without_tensorflow.decode_window import cut_window, decode_file, decode_whole, decode_window
from tpu_input.without_tensorflow.random_numbers import seed_for
from tpu_input.without_tensorflow.windows import Draws, draw, random_window

Example = dict[str, Any]

_ENDLESS = 2**62  # examples; a length must be below sys.maxsize
_PLANNED = 256  # examples whose numbers and draws are computed together: 6 µs for each; alone it would take 0.5 ms
# Each thread that reads batches ahead, as grain's do, uses its own plan: with fewer plans in memory, each example
# would recompute one. A plan has 50 KB.
_LEAST_PLANS, _PLANS_PER_THREAD = 64, 2


class _Plan(NamedTuple):
    """Record numbers and random draws of consecutive examples, computed before the examples are read.

    Attributes:
      numbers: Of the records.
      draws: Of windows and flips.
      augment_draws: [examples, count] float32 of the augmentation, or [examples, 2] seeds of a user's; None without.
    """

    numbers: list[int]
    draws: Draws
    augment_draws: npt.NDArray[Any] | None


class _ExampleSource:
    """What both sources share: the records, and examples of them."""

    _length: int

    def __init__(self, dataset: DatasetLike, config: InputConfig, batch_size: int, split: str, host: Host) -> None:
        check_config(config)
        check_params({"batch_size": batch_size})
        self._manifest, self._config, self._host = as_manifest(dataset), config, host
        self._batch_size = batch_size
        self._dtype = _dtype(config)
        self._records = RecordSource(self._manifest, split)
        self._features = {name: self._type_of(name) for name in config.features}
        _require(config, layout="NHWC", on_corrupt="error")

    def __len__(self) -> int:
        return self._length

    def _checked(self, number: SupportsIndex) -> int:
        number = operator.index(number)
        if not -len(self) <= number < len(self):
            raise IndexError(f"example {number} is out of range: there are {len(self)} examples")
        return number % len(self)

    def _type_of(self, name: str) -> tuple[Any, int | None]:
        """Returns (dtype, or str for texts; number of values, None for a scalar) of a further feature."""
        if name not in self._manifest.features:
            names = ", ".join(map(repr, self._manifest.features)) or "none"
            raise ValueError(f"{self._manifest.path!r} has no feature {name!r}; its features are: {names}")
        feature = self._manifest.features[name]
        return {"float": np.float32, "int": np.int64, "string": str}[feature.kind], feature.length or None

    def _example(self, record: Record, image: npt.NDArray[Any]) -> Example:
        example = {"image": image, "weight": np.float32(1), "label": label_of(self._manifest, record)}
        return example | {name: self._values(record, name) for name in self._features}

    def _values(self, record: Record | None, name: str) -> Any:
        """Returns the value of a further feature; zeros or empty texts without a record, or if it has none."""
        dtype, length = self._features[name]
        values = (record.features.get(name) if record else None) or (dtype(),) * (length or 1)
        if dtype is str:
            return values[0] if length is None else list(values)
        return dtype(values[0]) if length is None else np.array(values, dtype)


class TrainSource(_ExampleSource):
    """Sequence of training's examples: len(source), source[n]; thread-safe, and picklable for other processes.

    An example is {"image": [image_size, image_size, 3] of config.dtype in [0, 255], "weight": float32, always 1,
    "label": int32 in [0, number of classes), or [classes] float32 with several labels per image}, and what
    config.features names. Batches of batch_size consecutive examples equal make_train_input_fn's, bit for bit if
    both decoders use the same libjpeg-turbo and NumPy resizes the images. If OpenCV is installed, it resizes them,
    and pixels differ by at most 1 before augmentation.

    Augmentations by name, and the functions of tpu_input.augment, are applied in NumPy, with the draws of
    make_train_input_fn and the same results for the same pixels; a function of the user's gets NumPy arrays. Options of
    InputConfig that need the whole batch or TensorFlow are refused: layouts other than NHWC, echo, service, and
    on_corrupt="skip".

    With config.cache, a source keeps each record, or its decoded image, from when it is first read: at most the host's
    share, which has to fit into memory. Each copy of the source in another process keeps its own.
    """

    @checks_arguments
    def __init__(
        self,
        dataset: DatasetLike,
        config: InputConfig,
        batch_size: int,
        split: str = "train",
        host: int = 0,
        num_hosts: int = 1,
        start_step: int = 0,
        end_step: int | None = None,
    ) -> None:
        """Reads the lengths of all records.

        Args:
          dataset: Manifest of the dataset, or its folder or URI.
          config: Size, dtype, augmentation, seed.
          batch_size: Examples of a step that this host feeds.
          split: Name of the split.
          host: Number of the host, from 0.
          num_hosts: Number of input hosts; all together take num_hosts * batch_size examples in a step.
          start_step: Step of the first example.
          end_step: Step before which the source ends; None is endless (its length is 2**62).

        Raises:
          ValueError: There is no such split, it has no examples, a number is out of range, an option of `config` is
            refused, or the cache would not fit into memory.
        """
        feeder = Host(host, num_hosts)
        super().__init__(dataset, config, batch_size, split, feeder)
        _require(config, echo=1, service=None)
        self._augmentation = find_augmentation(config.augment)
        if not self._manifest.split(split).num_examples:
            raise ValueError(f"split {split!r} of {self._manifest.path!r} has no examples to train on")
        check_steps(start_step, end_step)
        self._start_step = start_step
        self._length = _ENDLESS if end_step is None else (end_step - start_step) * batch_size
        if config.cache:
            check_memory(cache_bytes(self._manifest, split, feeder, config), config)
        # As in train.py: a small split's records are in the memory of every host in any case, in the order of training.
        is_shared = config.cache == "decoded" or (config.cache == "records" and not is_in_memory(self._manifest, split))
        num_examples = self._manifest.split(split).num_examples
        has_share = is_shared and config.sampling == "equal"
        self._share = ShareOrder(Share(num_examples, host, num_hosts), config.seed) if has_share else None
        lanes = feeder.lanes(batch_size)
        self._order = Order.of(self._manifest, split, lanes, config.seed, config.block_records, config.sampling)
        self._start_planning()

    def __getitem__(self, number: SupportsIndex) -> Example:
        """Returns one example.

        Raises:
          IndexError: There is no such example.
          ValueError: Its record is damaged or cannot be decoded; the message names it.
          OSError: The shard cannot be read.
        """
        chunk, place = divmod(self._checked(number), _PLANNED)
        plan = self._plan(chunk)
        record, pixels = self._read_once(plan.numbers[place])
        choose = functools.partial(random_window, tries=plan.draws.tries[place], config=self._config)
        flip = bool(plan.draws.flips[place])
        if pixels is None:
            with _naming(record):
                image = decode_window(record.encoded, choose, self._config, flip)
        else:
            image = cut_window(pixels, choose, self._config, flip)
        image = image.astype(self._dtype, copy=False)
        if plan.augment_draws is not None:
            image = self._augmented(image, plan.augment_draws[place])
        return self._example(record, image)

    def _read_once(self, number: int) -> tuple[Record, npt.NDArray[np.uint8] | None]:
        """Returns a record, and with cache="decoded" its image, which are read once with a cache."""
        if cached := self._cache.get(number):
            return cached
        record, pixels = self._records[number], None
        if self._config.cache == "decoded":
            with _naming(record):
                pixels = decode_whole(record.encoded)
            record = record._replace(encoded=b"")
        if self._config.cache:
            self._cache[number] = record, pixels
        return record, pixels

    def _augmented(self, image: npt.NDArray[Any], draws: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns an augmented image; for a user's function, `draws` is its seed."""
        if self._augmentation:
            return self._augmentation.apply(image, draws)
        assert callable(self._config.augment)
        augmented: npt.NDArray[Any] = np.asarray(self._config.augment(image, draws))
        if (augmented.dtype, augmented.shape) != (image.dtype, image.shape):
            raise ValueError(
                f"augment must return {image.dtype} of shape {image.shape}, as it gets, "
                f"got {augmented.dtype} of shape {augmented.shape}"
            )
        return augmented

    def _plan(self, chunk: int) -> _Plan:
        """Returns the plan of examples from chunk * _PLANNED on."""
        with self._lock:  # else all threads would compute a new one
            if chunk not in self._plans:
                while len(self._plans) >= max(_LEAST_PLANS, _PLANS_PER_THREAD * threading.active_count()):
                    self._plans.popitem(last=False)
                self._plans[chunk] = self._planned(chunk)
            self._plans.move_to_end(chunk)
            return self._plans[chunk]

    def _planned(self, chunk: int) -> _Plan:
        numbers = np.arange(chunk * _PLANNED, (chunk + 1) * _PLANNED, dtype=np.uint64)
        size = np.uint64(self._batch_size)
        steps, places = numbers // size + np.uint64(self._start_step), numbers % size
        first = np.uint64(self._host.positions(self._batch_size).start)
        if self._share:
            epochs, record_numbers = self._share.records(steps * size + places)
        else:
            epochs, record_numbers = self._order.records(steps * np.uint64(self._order.lanes) + first + places)
        examples = epochs * np.uint64(self._order.num_examples) + record_numbers  # their numbers over all epochs
        seeds = np.stack([np.full(_PLANNED, self._config.seed, np.int64), examples.astype(np.int64)], axis=1)
        augment_draws: npt.NDArray[Any] | None = seed_for(seeds, "augment") if self._config.augment else None
        if self._augmentation and augment_draws is not None:
            augment_draws = self._augmentation.draw(augment_draws)
        return _Plan(record_numbers.tolist(), draw(seeds, self._config), augment_draws)

    def _start_planning(self) -> None:
        self._plans, self._lock = OrderedDict[int, _Plan](), threading.Lock()
        self._cache: dict[int, tuple[Record, npt.NDArray[np.uint8] | None]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_plans", "_lock", "_cache")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start_planning()


class EvalSource(_ExampleSource):
    """Sequence of evaluation's examples: each of a host's share once, then padding of weight 0 to full batches.

    All hosts have the same length, eval_steps() * batch_size. Examples are as in a TrainSource; padding is black,
    of label 0.
    """

    @checks_arguments
    def __init__(
        self,
        dataset: DatasetLike,
        config: InputConfig,
        batch_size: int,
        split: str = "validation",
        host: int = 0,
        num_hosts: int = 1,
    ) -> None:
        """Reads the lengths of all records; the arguments and errors are as of TrainSource."""
        super().__init__(dataset, config, batch_size, split, Host(host, num_hosts))
        num_examples = self._manifest.split(split).num_examples
        self._share = own_share(num_examples, self._host)
        self._length = batch_size * eval_steps(self._manifest, split, batch_size * num_hosts, num_hosts)

    def __getitem__(self, number: SupportsIndex) -> Example:
        """Returns one example; raises as TrainSource."""
        number = self._checked(number)
        if number >= len(self._share):
            return self._padding()
        record = self._records[self._share[number]]
        with _naming(record):
            image = decode_file(record.encoded, self._config)
        return self._example(record, image.astype(self._dtype, copy=False))

    def _padding(self) -> Example:
        size, num_labels = self._config.image_size, self._manifest.num_labels
        label = np.int32(0) if num_labels is None else np.zeros(num_labels, np.float32)
        example = {"image": np.zeros([size, size, 3], self._dtype), "weight": np.float32(0), "label": label}
        return example | {name: self._values(None, name) for name in self._features}


def label_of(manifest: Manifest, record: Record) -> Any:
    """Returns the label of a record as an input_fn has it: int32, or [classes] float32 with several labels per image.

    Raises:
      ValueError: It is outside the classes; the message names the record.
    """
    num_labels, labels = manifest.num_labels, record.label
    valid = range(len(manifest.classes))
    if wrong := [label for label in (labels if num_labels is not None else (labels,)) if label not in valid]:
        raise ValueError(f"{record.key!r} has label {wrong[0]}; labels of {len(valid)} classes are 0 to {valid[-1]}")
    if num_labels is None:
        return np.int32(labels)
    multi_hot = np.zeros(num_labels, np.float32)
    multi_hot[list(labels)] = 1
    return multi_hot


@contextlib.contextmanager
def _naming(record: Record) -> Iterator[None]:
    """Names a record in the ValueError of its decoder."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"the image of {record.key!r} cannot be decoded: {error}") from error


def _dtype(config: InputConfig) -> npt.DTypeLike:
    if config.dtype != "bfloat16":
        return np.dtype(config.dtype)
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError("NumPy has no bfloat16; install it with: pip install ml_dtypes, or use uint8") from None
    return np.dtype(ml_dtypes.bfloat16)


def _require(config: InputConfig, **options: Any) -> None:
    for name, needed in options.items():
        if getattr(config, name) != needed:
            raise ValueError(
                f"{name} must be {needed!r} without TensorFlow, got {getattr(config, name)!r}; use make_train_input_fn "
                "or make_eval_input_fn for it"
            )
