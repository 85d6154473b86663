"""TrainConfig, the options of a training run, which determine its weights; and its JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from estimator_app.model.metrics import watchable
from estimator_app.model.networks import check_network, find_network
from estimator_app.model.optimizers import DECAYS, OPTIMIZERS, Schedule
from estimator_app.runtime.choices import check_choice
from estimator_app.runtime.files import parse_json
from estimator_app.runtime.tensorflow_startup import has_estimator
from tpu_input.config import InputConfig, fitting_input, image_side
from tpu_input.dataset_format.records import Manifest

LOOPS = ("estimator", "strategy")
FORMAT_VERSION = 3
PRECISIONS = ("float32", "bfloat16")
CLASS_WEIGHTS = ("equal", "balanced")
# Options that may change when the run in a model_dir is resumed.
_MAY_CHANGE = frozenset(
    {"dataset", "split", "eval_batch_size", "train_steps", "steps_per_eval", "iterations_per_loop", "summary_steps"}
    | {"save_steps", "keep_exports", "early_stop_metric", "early_stop_patience"}
    | {"service", "service_job", "deterministic"}
)
# Fields that are derived from the dataset; its fingerprint is compared in their place.
_OF_DATASET = frozenset({"classes", "train_examples", "class_counts", "mean", "std"})
_CHOICES = {
    "loop": LOOPS,
    "decay": DECAYS,
    "optimizer": OPTIMIZERS,
    "class_weights": CLASS_WEIGHTS,
    "precision": PRECISIONS,
}
_POSITIVE = (
    "train_batch_size",
    "eval_batch_size",
    "train_steps",
    "steps_per_eval",
    "iterations_per_loop",
    "decay_steps",
    "summary_steps",
    "keep_exports",
)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """All options of a training run, except where it runs and where it writes.

    Attributes:
      dataset: Folder or URI of the shards.
      fingerprint: Fingerprint of the dataset, which may be moved but not changed between runs.
      classes: Class names in label order.
      train_examples: Number of training examples, one epoch.
      class_counts: Number of training examples of each class, in label order; empty if the manifest has no counts.
      network: A name in networks.NETWORKS, or "package.module:function".
      input: Size, dtype, layout, normalisation, augmentation and the run's seed.
      split: Split that is evaluated.
      train_batch_size: Examples per step, over all replicas.
      eval_batch_size: Examples per evaluation step, over all replicas.
      train_steps: Steps of the whole run.
      steps_per_eval: Steps between evaluations.
      iterations_per_loop: Steps that a TPU runs before control returns to the host.
      learning_rate: Peak learning rate.
      warmup_steps: Steps until the peak of the learning rate.
      decay_steps: Step at which the decay of the learning rate ends; train_steps may be more or less.
      decay: One of optimizers.DECAYS.
      optimizer: One of optimizers.OPTIMIZERS.
      weight_decay: Coefficient of weight decay, applied to kernels; a step subtracts this share of a kernel, times the
        learning rate.
      label_smoothing: Share of the target that is spread evenly over all classes.
      class_weights: One of CLASS_WEIGHTS: how the loss of an example is weighted by its class.
      precision: Precision of the network's arithmetic, one of PRECISIONS; variables, batch normalisation, logits and
        loss are always float32.
      summary_steps: Steps between two points of TensorBoard's curves.
      save_steps: Steps between checkpoints, in addition to one per minute; 0 for only one per minute.
      keep_exports: Number of exports to keep, of the last step and of the best evaluation each.
      early_stop_metric: Metric that decides which evaluation is the best: one of metrics.watchable().
      early_stop_patience: Number of evaluations in a row without a new best after which training stops; 0 for never.
      loop: One of LOOPS: the training loop. It writes the checkpoints, which the other loop cannot read.
    """

    dataset: str
    fingerprint: str
    classes: tuple[str, ...]
    train_examples: int
    class_counts: tuple[int, ...]
    network: str
    input: InputConfig
    split: str
    train_batch_size: int
    eval_batch_size: int
    train_steps: int
    steps_per_eval: int
    iterations_per_loop: int
    learning_rate: float
    warmup_steps: int
    decay_steps: int
    decay: str = "cosine"
    optimizer: str = "momentum"
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    class_weights: str = "equal"
    precision: str = "float32"
    summary_steps: int = 100
    save_steps: int = 0
    keep_exports: int = 2
    early_stop_metric: str = "accuracy"
    early_stop_patience: int = 0
    loop: str = "estimator"

    def __post_init__(self) -> None:
        check_network(self.network)
        for name, known in _CHOICES.items():
            check_choice(name, getattr(self, name), known)
        check_choice("early_stop_metric", self.early_stop_metric, watchable(len(self.classes)))
        for least, names in ((1, _POSITIVE), (0, ("save_steps", "early_stop_patience"))):
            for name in names:
                if getattr(self, name) < least:
                    raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)!r}")
        for name in ("weight_decay", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)!r}")
        if self.class_weights == "balanced" and not sum(self.class_counts):
            raise ValueError(
                f"class_weights='balanced' needs the manifest's counts, and that of {self.dataset!r} has none"
            )
        _ = self.schedule  # checks its fields

    @classmethod
    def of(cls, manifest: Manifest, options: Mapping[str, Any], earlier: TrainConfig | None = None) -> TrainConfig:
        """Returns the config of training on a dataset.

        Args:
          manifest: Of the dataset; the mean and std of its training pixels are used.
          options: Fields of TrainConfig and InputConfig, by name; other names are ignored. The value None means the
            default. Defaults of learning_rate, weight_decay, decay and warmup_steps: those of the optimizer's recipe,
            optimizers.Kind; of decay_steps: that of `earlier`, else train_steps; of loop: that of `earlier`, else
            default_loop(); of image_size and crop_area: those of `earlier`, else those that fit the images:
            tpu_input.config.fitting_input().
          earlier: Config of the run that is resumed; None for a new run.

        Raises:
          ValueError: An option is invalid.
        """
        train = manifest.split("train")
        of_input, of_run = _fields(InputConfig, options), _fields(cls, options)
        find_network(of_run["network"])  # imports its module, which is safe as the user has named it
        fitting = fitting_input(train)
        for name in fitting:
            if of_input.get(name) is None:
                of_input[name] = getattr(earlier.input, name) if earlier else fitting[name]
        return cls(
            **_completed(of_run, earlier),
            fingerprint=manifest.fingerprint,
            classes=manifest.classes,
            train_examples=train.num_examples,
            class_counts=train.class_counts,
            input=InputConfig(**of_input, mean=train.channel_mean, std=train.channel_std),
        )

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.learning_rate, self.warmup_steps, self.decay_steps, self.decay)

    def differences(self, other: TrainConfig, trained: int = 0) -> list[str]:
        """Returns one phrase, with the flag's name, per option of `other` with which this run cannot be resumed.

        Args:
          other: Config with which the run would be resumed.
          trained: Number of steps done so far.
        """
        mine, others = _flat(self), _flat(other)
        found = [
            f"{_flag(name)} is {mine[name]!r}, not {others[name]!r}" for name in mine if mine[name] != others[name]
        ]
        if self.fingerprint != other.fingerprint:
            counts = f"{len(self.classes)} classes, and {other.dataset!r} has {len(other.classes)}"
            content = counts if self.classes != other.classes else f"other content than {other.dataset!r}"
            found.insert(0, f"--dataset is {self.dataset!r} with {content}")
        if trained > other.train_steps:
            found.append(f"--train_steps cannot be {other.train_steps}, for step {trained} is done")
        return found

    def to_json(self, versions: dict[str, str], command: str = "") -> str:
        """Returns config.json's text.

        Args:
          versions: Versions of the software, needed to reproduce the run.
          command: Command line of the run.
        """
        fields = {"format_version": FORMAT_VERSION, "versions": versions, "command": command} | dataclasses.asdict(self)
        return json.dumps(fields, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str) -> TrainConfig:
        """Returns the config in `text`, the content of the file `path`, which may come from an untrusted source.

        No module that it names is imported.

        Raises:
          ValueError: The file is not a config, has another format version, or a field has a wrong type or range.
        """
        try:
            fields = parse_json(text)
            version = fields.pop("format_version")
            if version != FORMAT_VERSION:
                raise ValueError(
                    f"format_version is {version!r}, this package reads {FORMAT_VERSION}; other builds have "
                    "other networks and rates, so go on with the one that began it, or train in another --model_dir"
                )
            if not all(isinstance(value, str) for value in fields.pop("versions").values()):
                raise TypeError("versions must be texts")
            if not isinstance(fields.pop("command", ""), str):
                raise TypeError("command must be a text")
            fields["input"] = _typed(InputConfig, _tupled(fields["input"]))
            config: TrainConfig = _typed(cls, _tupled(fields))
            if not config.classes or len(config.class_counts) not in (0, len(config.classes)):
                raise ValueError(f"{len(config.class_counts)} class_counts of {len(config.classes)} classes")
            if min(config.train_examples, *config.class_counts, 0) < 0:
                raise ValueError("a number of examples is negative")
            return config
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path!r} is not a training run's config: {error}") from error


def chosen_input(config: TrainConfig, options: Mapping[str, Any], manifest: Manifest) -> str:
    """Returns the input flags that TrainConfig.of() chose for a new run, and the reason; "" if all were given.

    Args:
      config: The config that it returned.
      options: The options that it was given.
      manifest: Of the dataset.
    """
    flags = {
        "image_size": f"--image_size={config.input.image_size}",
        "crop_area": "--crop_area={:g},{:g}".format(*config.input.crop_area),
    }
    chosen = [flag for name, flag in flags.items() if options.get(name) is None]
    train = manifest.split("train")
    why = f"for images of {_mean_size(manifest)} pixels" if image_side(train) else "as the images' sizes are not known"
    return f"input: {' '.join(chosen)}, {why}" if chosen else ""


_ENLARGED = 1.5  # times the side of the images
_SMALLEST_CROP = 16  # pixels


def surprises(config: TrainConfig, manifest: Manifest) -> Iterator[str]:
    """Yields one sentence per option that is valid but probably a mistake for these images, with a better value.

    Args:
      config: Config of training on the dataset.
      manifest: Of the dataset.
    """
    fed, train = config.input, manifest.split("train")
    fitting, side, size = fitting_input(train), image_side(train), _mean_size(manifest)
    batch, images = config.train_batch_size, train.num_examples
    if batch > images:
        yield (
            f"--train_batch_size={batch} is more than the {images:,} training images, so that a step holds some more "
            f"than once; give {images} or less"
        )
    if side and fed.image_size > _ENLARGED * side:
        yield (
            f"--image_size={fed.image_size} enlarges images of {size} pixels, which adds work and no detail; "
            f"{fitting['image_size']} would fit them"
        )
    crop = math.sqrt(fed.crop_area[0]) * side
    if side and crop < _SMALLEST_CROP and fed.crop_area[0] < fitting["crop_area"][0]:
        yield (
            "--crop_area={:g},{:g} ".format(*fed.crop_area)
            + f"cuts crops of down to {crop:.0f} x {crop:.0f} pixels from "
            f"images of {size}; {fitting['crop_area'][0]:g},1 would fit them"
        )


def _mean_size(manifest: Manifest) -> str:
    """Returns the mean height and width of the training images as text, such as "32 x 32"."""
    train = manifest.split("train")
    return f"{train.height[1]:.0f} x {train.width[1]:.0f}"


def _fields(kind: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of `options` that are fields of the dataclass `kind`."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in options.items() if name in names}


def _completed(options: Mapping[str, Any], earlier: TrainConfig | None) -> dict[str, Any]:
    """Returns the options of a run with the defaults filled in for those that are None."""
    given = {name: value for name, value in options.items() if value is not None}
    optimizer = given.get("optimizer", "momentum")
    check_choice("optimizer", optimizer, OPTIMIZERS)
    start = OPTIMIZERS[optimizer]
    decay_steps = given.get("decay_steps", earlier.decay_steps if earlier else given["train_steps"])
    return {
        "learning_rate": start.rate(given["train_batch_size"]),
        "weight_decay": start.weight_decay,
        "decay_steps": decay_steps,
        "decay": start.decay,
        "warmup_steps": int(decay_steps * start.warmup_share(given["train_batch_size"])),
        "loop": earlier.loop if earlier else default_loop(),
    } | given


def _tupled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields with lists converted to tuples, which JSON does not have."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _typed(kind: type[Any], fields: Mapping[str, Any]) -> Any:
    """Returns an instance of the dataclass `kind` made of fields from a file.

    Raises:
      TypeError: A field is missing or unknown, or does not have its declared type.
    """
    for name, declared in get_type_hints(kind).items():
        if name in fields and not _is(fields[name], declared):
            raise TypeError(f"{name} must be {getattr(declared, '__name__', declared)}, got {fields[name]!r}")
    return kind(**fields)


def _is(value: object, declared: Any) -> bool:
    """Returns whether a value has the declared type; covers the types that TrainConfig and InputConfig use."""
    origin, of = get_origin(declared), get_args(declared)
    if origin is tuple:
        types = of[:1] * len(value) if of[-1] is ... and isinstance(value, tuple) else of
        return isinstance(value, tuple) and len(value) == len(types) and all(map(_is, value, types))
    if origin in (Union, UnionType):
        return any(_is(value, one) for one in of)
    if origin is not None:  # a function, which a file cannot contain
        return False
    if declared is float:
        return type(value) in (int, float)
    return type(value) is declared


def _flag(name: str) -> str:
    """Returns the command-line flag of a field."""
    return "--no_flip's opposite, flip," if name == "flip" else f"--{name}"


def _flat(config: TrainConfig) -> dict[str, Any]:
    """Returns the options that must not change when a run is resumed, by name."""
    fields = dataclasses.asdict(config)
    fields |= fields.pop("input")
    return {name: fields[name] for name in fields if name not in _MAY_CHANGE | _OF_DATASET | {"fingerprint"}}


def default_loop() -> str:
    """Returns the default loop of a new run: "estimator" if TensorFlow has TPUEstimator, else "strategy"."""
    return "estimator" if has_estimator() else "strategy"
