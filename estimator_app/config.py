"""TrainConfig, the options of a training run, which determine its weights; and its JSON."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from estimator_app.model.keras_library import choose_backend, chosen_backend
from estimator_app.model.network_names import check_network, is_users, users_network
from estimator_app.model.schedule import RECIPES, Decay, Optimizer, Schedule
from estimator_app.model.tasks import TASKS, Task, task
from estimator_app.runtime.tensorflow_startup import has_estimator
from tpu_input.command_line.dataclass_options import (
    check_choice,
    check_types,
    checked,
    field_types,
    from_fields,
    suggestion,
)
from tpu_input.command_line.text_files import read_text
from tpu_input.config import InputConfig, fitting_input, image_side
from tpu_input.dataset_format import json_fields
from tpu_input.dataset_format.label_kinds import ONE
from tpu_input.dataset_format.record_spec import parse_record
from tpu_input.dataset_format.records import MANIFEST_NAME, Manifest
from tpu_input.stored_images.image_options import ImageOptions

TrainerName = Literal["tpu_estimator", "tf_distribute", "jax"]
TRAINERS: tuple[TrainerName, ...] = get_args(TrainerName)
Precision = Literal["float32", "bfloat16"]
ClassWeights = Literal["equal", "balanced"]
EvalMode = Literal["inline", "watch", "none"]
FORMAT_VERSION = 6
# Options that may change when the run in a model_dir is resumed.
_MAY_CHANGE = frozenset(
    {"dataset", "split", "eval_batch_size", "train_steps", "steps_per_eval", "iterations_per_loop", "summary_steps"}
    | {"eval", "save_steps", "save_seconds", "profile", "keep_exports", "wrong_images", "early_stop_metric"}
    | {"early_stop_patience", "service", "service_job", "deterministic"}
)
# Fields that are derived from the dataset; its fingerprint is compared in their place.
_DATASET_FIELDS = frozenset({"classes", "train_examples", "class_counts", "label_type", "images"})
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
_NOT_NEGATIVE = ("save_steps", "save_seconds", "wrong_images", "early_stop_patience", "mixup", "cutmix", "clip_norm")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """All options of a training run, except where it runs and where it writes; TrainConfig.of() makes one.

    Attributes:
      dataset: Folder or gs:// URI of the dataset, with its manifest.json.
      fingerprint: Fingerprint of the dataset, which may be moved but not changed between runs.
      classes: Class names in label order.
      train_examples: Number of training examples, one epoch.
      class_counts: Number of training examples of each class, in label order; empty if the manifest has no counts.
      input: Size, dtype, layout, normalization, augmentation and the run's seed.
      learning_rate: Peak learning rate. The optimizer's own is 0.1 per 256 images of the batch for momentum, 0.00025
        per 256 for adamw, and for lars 25 for batches of up to 16,384, 34 up to 32,768, 41 above. Default: the
        optimizer's own.
      warmup_steps: Step at which the learning rate reaches its peak. Default: 1/18 of --decay_steps; lars: more for
        batches above 16,384.
      decay_steps: Step at which the decay of the learning rate ends; the run may end before or after it. Default: the
        --train_steps of the run's first start.
      decay: Decay of the learning rate: half a cosine; a parabola (polynomial); or steps, times 0.1 at 3/9, 6/9 and
        8/9. Default: polynomial for lars, else cosine.
      weight_decay: Weight decay applied to kernels: share of a kernel that a step subtracts, times the learning rate.
        Default: 0.0001; adamw: 0.05, decoupled from the gradient.
      trainer: What trains the network. It is TPUEstimator, TensorFlow's distribution strategies, or JAX without
        TensorFlow; none reads the checkpoints of another. Default: the run's, else tpu_estimator if TensorFlow has it,
        else jax if JAX is installed, else tf_distribute.
      network: Network: cnn, resnet18, resnet34, resnet50, resnet101, vit_s16, vit_b16, one of keras.applications such
        as keras:EfficientNetV2B0, or your own as package.module:function.
      split: Split to evaluate on.
      train_batch_size: Images per step, over all TPU cores.
      eval_batch_size: Images per step of evaluation, over all TPU cores.
      train_steps: Total number of training steps. It may be changed when a run is resumed.
      steps_per_eval: Steps between evaluations.
      eval: When to evaluate. inline: between two stretches of training; watch: in a process of its own, which the
        command watch starts; none: only once, after the last step.
      iterations_per_loop: Steps that a TPU runs before control returns to the host.
      optimizer: Optimizer; lars is for batches of thousands.
      label_smoothing: Share of the target that is spread evenly over all classes.
      class_weights: Class weights in the loss; balanced gives larger weights to rare classes.
      precision: Precision of the network's arithmetic; variables, batch normalization, logits and loss are always
        float32.
      summary_steps: Steps between points of TensorBoard's curves.
      save_steps: Steps between checkpoints, in addition to --save_seconds and evaluations; 0 for none.
      save_seconds: Seconds between checkpoints, in addition to --save_steps and evaluations; 0 for none.
      profile: First and last step of a profile for TensorBoard, such as 100,110.
      keep_exports: Number of exports to keep, of the last step and of the best evaluation each.
      wrong_images: Number of wrongly classified images of the evaluated split that TensorBoard shows after the last
        step, for datasets with one label per image; 0 for none.
      early_stop_metric: Metric of the best evaluation: accuracy, loss, mean_recall or top_5_accuracy; with several
        labels per image also mean_average_precision, which is then the default, or mean_f1.
      early_stop_patience: Number of evaluations in a row without a new best after which training stops; 0 for never.
      mixup: Alpha of mixup (Zhang et al. 2017), which mixes the images and labels of a batch; 0 for none.
      cutmix: Alpha of CutMix (Yun et al. 2019), which pastes boxes of other images of the batch; 0 for none. With
        --mixup too, each step applies one of them, drawn at random.
      clip_norm: Largest norm of all gradients of a step together; larger ones are scaled to it; 0 for no limit.
      ema: Decay of the moving average of all weights, such as 0.9999, which is evaluated and exported instead of the
        weights; 0 for none.
      init_from: Trained model whose weights a new run starts from. It is a model_dir, a checkpoint, a SavedModel, or
        Keras' .keras, .h5 or .weights.h5; weights are taken where name and shape are the same. Or it is a .safetensors
        file of timm, torchvision or Hugging Face's transformers, for a ResNet or a ViT. Default: none, random
        weights.
      freeze: Regular expression; layers whose whole name it matches keep their weights and statistics, such as
        "stem.*|stage[12]_.*", or "(?!head).*" for all but the last. Default: none.
      record: Format of the records of another program's TFRecords, which are read as they are: imagenet, tfds, flowers,
        mnist, or image=FEATURE,label=FEATURE,first_label=N. The dataset is then a glob of shards, or
        train=GLOB,validation=GLOB. Default: none, a dataset with a manifest.
      hold_out: Split of the dataset that is not trained on, but evaluated; training takes all the others together.
        Default: none, training takes the split train.
      label_type: Labels of an example of the dataset: "class", or "classes", any number.
      images: What the conversion of the dataset stored of an image file, and a prediction makes of one.
    """

    dataset: str
    fingerprint: str
    classes: tuple[str, ...]
    train_examples: int
    class_counts: tuple[int, ...]
    input: InputConfig
    learning_rate: float
    warmup_steps: int
    decay_steps: int
    decay: Decay
    weight_decay: float
    trainer: TrainerName
    network: str = "cnn"
    split: str = "validation"
    train_batch_size: int = 128
    eval_batch_size: int = 128
    train_steps: int = 1000
    steps_per_eval: int = 500
    eval: EvalMode = "inline"
    iterations_per_loop: int = 100
    optimizer: Optimizer = "momentum"
    label_smoothing: float = 0.0
    class_weights: ClassWeights = "equal"
    precision: Precision = "float32"
    summary_steps: int = 10
    save_steps: int = 0
    save_seconds: int = 60
    profile: tuple[int, int] = (0, 0)
    keep_exports: int = 2
    wrong_images: int = 16
    early_stop_metric: str = "accuracy"
    early_stop_patience: int = 0
    mixup: float = 0.0
    cutmix: float = 0.0
    clip_norm: float = 0.0
    ema: float = 0.0
    init_from: str = ""
    freeze: str = ""
    record: str = ""
    hold_out: str = ""
    label_type: str = "class"
    images: ImageOptions = dataclasses.field(default_factory=ImageOptions)

    def __post_init__(self) -> None:
        check_types(self)
        choose_backend(self.trainer)
        check_network(self.network, self.input.image_size)
        check_choice("early_stop_metric", self.early_stop_metric, self.task.watchable(len(self.classes)))
        for least, names in ((1, _POSITIVE), (0, _NOT_NEGATIVE)):
            for name in names:
                if getattr(self, name) < least:
                    raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)!r}")
        for name in ("weight_decay", "label_smoothing", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)!r}")
        first, last = self.profile
        if self.profile != (0, 0) and not 1 <= first <= last:
            raise ValueError(f"profile must be the first and the last step, such as 100,110, got {self.profile!r}")
        if self.early_stop_patience and self.eval != "inline":
            raise ValueError(
                f"early_stop_patience needs eval='inline', got {self.eval!r}: training does not wait for evaluations"
            )
        if self.class_weights == "balanced" and not sum(self.class_counts):
            raise ValueError(
                f"class_weights='balanced' needs class counts, but the manifest of {self.dataset!r} has none"
            )
        try:
            re.compile(self.freeze)
        except re.error as error:
            raise ValueError(f"freeze must be a regular expression, got {self.freeze!r}: {error}") from None
        if self.record:
            parse_record(self.record)
        _ = self.schedule  # checks its fields

    @classmethod
    def of(cls, manifest: Manifest, options: Mapping[str, Any], earlier: TrainConfig | None = None) -> TrainConfig:
        """Returns the config of training on a dataset.

        Args:
          manifest: Of the dataset; the mean and std default to its training pixels'. With hold_out, the
            one of Manifest.held_out().
          options: Fields of TrainConfig and InputConfig, by name, except those that follow from the dataset; or epochs
            instead of train_steps. The value None means the default. learning_rate, weight_decay, decay and
            warmup_steps default to the optimizer's recipe, schedule.RECIPES; decay_steps to the value of `earlier`, or
            to train_steps; trainer to the one of `earlier`, else to default_trainer(); image_size, crop_area, mean and
            std to the values of `earlier`, else to values that fit the images: InputConfig.of(); dataset to the
            manifest's path.
          earlier: Config of the run that is resumed; None for a new run.

        Raises:
          ValueError: An option is invalid, or there is none of that name.
        """
        train = manifest.split("train")
        values = _checked_options(_with_steps(options, train.num_examples))
        input_options = {name: value for name, value in values.items() if name in field_types(InputConfig)}
        run_options = {name: value for name, value in values.items() if name not in input_options}
        _check_scale(input_options)
        choose_backend(_completed(run_options, earlier)["trainer"])
        network = run_options.get("network", cls.network)
        check_network(network)
        if is_users(network):
            users_network(network)  # imports its module, which is safe as the user has named it
        if manifest.label_kind not in TASKS:
            raise ValueError(
                f"the images of {manifest.path!r} have no labels; convert them without --unlabelled to train"
            )
        run_options.setdefault("early_stop_metric", TASKS[manifest.label_kind].early_stop_metric)
        if run_options.get("hold_out"):
            run_options.setdefault("split", run_options["hold_out"])
        if earlier:
            chosen_once = ("image_size", "crop_area", "mean", "std")
            input_options = {name: getattr(earlier.input, name) for name in chosen_once} | input_options
        return cls(
            **{"dataset": manifest.path} | _completed(run_options, earlier),
            fingerprint=manifest.fingerprint,
            classes=manifest.classes,
            train_examples=train.num_examples,
            class_counts=train.class_counts,
            label_type=manifest.label_type,
            images=_stored_images(manifest),
            input=InputConfig.of(manifest, **input_options),
        )

    def options(self) -> dict[str, Any]:
        """Returns all options of the run and of its input by name, without what follows from the dataset."""
        fields = dataclasses.asdict(self)
        fields |= fields.pop("input")
        return {name: value for name, value in fields.items() if name not in _DATASET_FIELDS | {"fingerprint"}}

    @property
    def task(self) -> Task:
        """What the network learns from the labels of the dataset."""
        return task(self.label_type)

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
        differences = [
            f"{_flag(name)} is {mine[name]!r}, not {others[name]!r}" for name in mine if mine[name] != others[name]
        ]
        if self.fingerprint != other.fingerprint:
            counts = f"{len(self.classes)} classes, but {other.dataset!r} has {len(other.classes)}"
            if self.classes != other.classes:
                content = f" with {counts}"
            elif self.dataset == other.dataset:
                content = ", whose content has changed since"
            else:
                content = f", and {other.dataset!r} has other content"
            differences.insert(0, f"--dataset is {self.dataset!r}{content}")
        if trained > other.train_steps:
            differences.append(
                f"--train_steps must be at least {trained}, the number of completed steps, got {other.train_steps}"
            )
        return differences

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
            fields = json_fields.load(text)
            version = fields.pop("format_version")
            if version != FORMAT_VERSION:
                raise ValueError(
                    f"format_version must be {FORMAT_VERSION}, got {version!r}; other versions have other networks, "
                    "rates or orders of training, so resume with the version that started the run, or use another "
                    "--model_dir"
                )
            if not all(isinstance(value, str) for value in fields.pop("versions").values()):
                raise TypeError("versions must be strings")
            if not isinstance(fields.pop("command", ""), str):
                raise TypeError("command must be a string")
            fields["input"] = from_fields(InputConfig, fields["input"])
            fields["images"] = from_fields(ImageOptions, fields.get("images", {}))
            config = from_fields(cls, fields)
            if not config.classes or len(config.class_counts) not in (0, len(config.classes)):
                raise ValueError(
                    f"class_counts must have one entry per class, {len(config.classes)}, got {len(config.class_counts)}"
                )
            if min(config.train_examples, *config.class_counts, 0) < 0:
                raise ValueError("a number of examples is negative")
            return config
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path!r} is not a training run's config: {error}") from error


def _stored_images(manifest: Manifest) -> ImageOptions:
    """Returns what the conversion of a dataset stored of an image file."""
    try:
        return from_fields(ImageOptions, json_fields.mapping(manifest.options.get("images", {}), "images"))
    except ValueError as error:
        raise ValueError(
            f"{manifest.path}/{MANIFEST_NAME} does not contain the options of a conversion: {error}; convert the "
            "images again"
        ) from error


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
    defaults = [flag for name, flag in flags.items() if options.get(name) is None]
    train = manifest.split("train")
    why = f" for images of {_mean_size(manifest)} pixels" if image_side(train) else ", as the image sizes are not known"
    return f"chosen: {' '.join(defaults)}{why}" if defaults else ""


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
    labels = [label for label, count in enumerate(train.class_counts) if count]
    if manifest.label_kind is ONE and len(labels) == 1:
        yield (
            f"all training images have one class, {manifest.classes[labels[0]]!r}, so there is nothing to tell apart; "
            "convert images of at least two classes"
        )
    if batch > images:
        yield (
            f"--train_batch_size={batch} is more than the {images:,} training images, so a step contains some images "
            f"more than once; use {images} or less"
        )
    if fed.sampling == "balanced" and config.class_weights == "balanced":
        yield (
            "--sampling=balanced and --class_weights=balanced both make up for rare classes, which then count more "
            "than common ones; use one of them"
        )
    if fed.resize != "crop" and fed.eval_crop != InputConfig.eval_crop:
        yield (
            f"--eval_crop={fed.eval_crop:g} has no effect with --resize={fed.resize}, which keeps all of an image; "
            "leave it out"
        )
    if side and fed.image_size > _ENLARGED * side:
        yield (
            f"--image_size={fed.image_size} enlarges images of {size} pixels, which adds work and no detail; "
            f"use {fitting['image_size']}"
        )
    crop = math.sqrt(fed.crop_area[0]) * side
    if side and crop < _SMALLEST_CROP and fed.crop_area[0] < fitting["crop_area"][0]:
        yield (
            "--crop_area={:g},{:g} ".format(*fed.crop_area)
            + f"makes crops as small as {crop:.0f} x {crop:.0f} pixels from images of {size}; "
            f"use --crop_area={fitting['crop_area'][0]:g},1"
        )


def _mean_size(manifest: Manifest) -> str:
    """Returns the mean height and width of the training images as text, such as "32 x 32"."""
    train = manifest.split("train")
    return f"{train.height[1]:.0f} x {train.width[1]:.0f}"


def config_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those options, e.g. of a command, that are fields of TrainConfig or InputConfig."""
    return {name: value for name, value in options.items() if name in _TYPES and name not in _DERIVED}


# Fields that are not options: they follow from the dataset, or hold the options of the input.
_DERIVED = _DATASET_FIELDS | {"fingerprint", "input"}
_TYPES = field_types(InputConfig) | field_types(TrainConfig)
# What config.json has in addition to the options of a recipe.
_NO_RECIPE = _DERIVED | {"format_version", "versions", "command", "dataset"}


def _with_steps(options: Mapping[str, Any], num_examples: int) -> dict[str, Any]:
    """Returns the options with train_steps instead of epochs.

    Raises:
      ValueError: Both are given, or epochs is not positive.
    """
    result = dict(options)
    epochs = result.pop("epochs", None)
    if epochs is None:
        return result
    if result.get("train_steps") is not None:
        raise ValueError(f"epochs and train_steps both say how long to train, got {epochs} and {result['train_steps']}")
    if not checked(epochs, float, "epochs") > 0:
        raise ValueError(f"epochs must be above 0, got {epochs!r}")
    batch_size = result.get("train_batch_size")
    batch_size = TrainConfig.train_batch_size if batch_size is None else checked(batch_size, int, "train_batch_size")
    return result | {"train_steps": math.ceil(epochs * num_examples / max(1, batch_size))}


RECIPES_FOLDER = os.path.join(os.path.dirname(__file__), "recipes")


def _yaml(text: str) -> Any:
    """Returns the value in a text of YAML, or JSON.

    Raises:
      ValueError: A key is there twice; YAML would take the last.
      yaml.YAMLError, RecursionError: It is not YAML, or nested too deeply.
    """
    import yaml

    checked_nodes: set[int] = set()  # an alias is the same node again, and may stand for billions of values

    def check_keys(node: Any) -> None:
        if id(node) in checked_nodes or not isinstance(node, yaml.CollectionNode):
            return
        checked_nodes.add(id(node))
        names: set[str] = set()
        for child in node.value:
            if isinstance(child, tuple) and isinstance(name := child[0].value, str):
                if name in names:
                    raise ValueError(f"{name!r} is there twice; keep one of them")
                names.add(name)
            for inner in child if isinstance(child, tuple) else (child,):
                check_keys(inner)

    check_keys(yaml.compose(text, yaml.SafeLoader))
    return yaml.safe_load(text)


def read_recipe(path: str) -> dict[str, Any]:
    """Returns the options in a recipe, by name, as train() takes them.

    Args:
      path: YAML or JSON file of options by name, such as a run's config.json, without what follows from the dataset or
        only tells about the run; or the name of a recipe that comes with this package, such as "digits".

    Raises:
      ValueError: There is no such file, it cannot be parsed, or it has an option that does not exist.
    """
    import yaml

    shipped = sorted(name.removesuffix(".yaml") for name in os.listdir(RECIPES_FOLDER) if name.endswith(".yaml"))
    try:
        fields = _yaml(read_text(f"{RECIPES_FOLDER}/{path}.yaml" if path in shipped else path))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(
            f"recipe {path!r} cannot be read: {' '.join(str(error).split())}; give a YAML or JSON file, or one of "
            f"{', '.join(shipped)}"
        ) from error
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise ValueError(f"recipe {path!r} must be a mapping from options to values, such as image_size: 224")
    nested = fields.pop("input", {})
    if not isinstance(nested, dict):
        raise ValueError(f"recipe {path!r}: input must be a mapping from options to values, got {nested!r}")
    # Of a run, the normalization follows from its dataset, or from its --init_from.
    fields |= {name: value for name, value in nested.items() if name not in ("mean", "std")}
    names = _TYPES.keys() - _DERIVED | {"epochs"}
    recipe = {}
    for name, value in fields.items():
        if name in _NO_RECIPE:
            continue
        if name not in names:
            advice = suggestion(name, names) or "; remove it, or name one of jpeg2tpu train --help"
            raise ValueError(f"recipe {path!r}: there is no option {name!r}{advice}")
        hint = float if name == "epochs" else _TYPES[name]
        # YAML 1.1 reads 1e-4 as text.
        is_number = isinstance(value, str) and float in (hint, *get_args(hint)) and str not in get_args(hint)
        try:
            recipe[name] = checked(float(value) if is_number else value, hint, name) if value is not None else None
        except ValueError as error:
            raise ValueError(f"recipe {path!r}: {error}") from error
    return recipe


def _checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that are not None, after a check of names and types."""
    for name in options:
        if name not in _TYPES or name in _DERIVED:
            raise ValueError(f"there is no option {name!r}{suggestion(name, _TYPES.keys() - _DERIVED)}")
    return {name: checked(value, _TYPES[name], name) for name, value in options.items() if value is not None}


def _check_scale(input_options: Mapping[str, Any]) -> None:
    """Raises ValueError if a mean or a std that a user has given is a share of the largest pixel, as PyTorch has it."""
    for name in ("mean", "std"):
        values = input_options.get(name, ())
        if 0 < max(values, default=0) < 1:
            pixels = ",".join(f"{255 * value:g}" for value in values)
            raise ValueError(f"{name} must be of pixels from 0 to 255, got {values!r}; use {pixels}")


def _completed(options: Mapping[str, Any], earlier: TrainConfig | None) -> dict[str, Any]:
    """Returns the options of a run with the defaults filled in that depend on other options."""
    optimizer = options.get("optimizer", TrainConfig.optimizer)
    batch_size = options.get("train_batch_size", TrainConfig.train_batch_size)
    check_choice("optimizer", optimizer, RECIPES)
    recipe = RECIPES[optimizer]
    train_steps = options.get("train_steps", TrainConfig.train_steps)
    decay_steps = options.get("decay_steps", earlier.decay_steps if earlier else train_steps)
    return {
        "learning_rate": recipe.rate(batch_size),
        "weight_decay": recipe.weight_decay,
        "decay_steps": decay_steps,
        "decay": recipe.decay,
        "warmup_steps": int(decay_steps * recipe.warmup_share(batch_size)),
        "trainer": earlier.trainer if earlier else default_trainer(),
    } | dict(options)


def _flag(name: str) -> str:
    """Returns the command-line flag of a field."""
    return f"{name} (disabled by --no_{name})" if name in ("flip", "scaled_decode") else f"--{name}"


def _flat(config: TrainConfig) -> dict[str, Any]:
    """Returns the options that must not change when a run is resumed, by name."""
    return {name: value for name, value in config.options().items() if name not in _MAY_CHANGE}


def default_trainer() -> TrainerName:
    """Returns the default trainer of a new run.

    It is the one of the Keras that this process has imported, or of KERAS_BACKEND, jax or tensorflow. Without either,
    it is TPUEstimator if TensorFlow has it, else JAX if it is installed.
    """
    has_tensorflow, backend = _is_installed("tensorflow"), chosen_backend()
    tensorflow_trainer: TrainerName = "tpu_estimator" if has_estimator() else "tf_distribute"
    if backend == "jax":
        return "jax"
    if has_tensorflow and (backend == "tensorflow" or tensorflow_trainer == "tpu_estimator"):
        return tensorflow_trainer
    return "jax" if all(map(_is_installed, ("jax", "optax", "keras"))) else tensorflow_trainer


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
