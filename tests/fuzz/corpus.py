"""Good files of every kind that the commands read, made by the commands themselves; and which command reads which.

work/src/CLASS/IMAGE          a class folder's images, of which one is cut off
work/src.tar, src.csv, …      the same as archives and lists
work/dataset, work/single     converted from src: two splits, one
work/half                     a conversion that has written all shards, and stopped at its budget
work/model, work/tpu_estimator    a run of each trainer, with its exports
precious, work/precious       what is nobody's business
home, tmp
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from beam_pipelines.shard_formats.all_formats import EXPORTS
from estimator_app.runtime.tensorflow_startup import has_estimator
from fuzz import damage
from support import published
from tpu_input.dataset_format.manifest import ENDINGS
from tpu_input.dataset_format.orientation import FORMATS
from tpu_input.dataset_format.tfrecord import frame, serialize


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line.

    Attributes:
      package: Whose __main__ runs it.
      argv: Its words; paths are relative to the case's work folder.
      writes: Paths, relative to the work folder, that it may change.
      slack: CPU seconds that it takes on good files, at most.
      reads: Whether it may read what the user has not named.
    """

    package: str
    argv: tuple[str, ...]
    writes: tuple[str, ...] = ()
    slack: float = 2
    reads: bool = False


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of file that a stranger may have damaged.

    Attributes:
      files: Patterns of it, relative to the work folder.
      needs: Top folders and files of the work folder that its commands need.
      damages: A strategy of lists of damages.
      commands: That read it.
      weight: How many batches it gets beside the others.
    """

    files: tuple[str, ...]
    needs: tuple[str, ...]
    damages: Any
    commands: tuple[Command, ...]
    weight: int = 1


def _convert(source: str, output: str, *more: str, reads: bool = False, splits: str = "train=100%") -> Command:
    argv = ("convert", f"--input={source}", f"--output={output}", f"--splits={splits}", *more)
    return Command("beam_pipelines", argv, (output,), 4, reads)


_BOTH = "train=70%,validation=30%"
_MOST = "--max_rejected=90%"
_PHOTO = "src/a/0.jpg"


def _beam(*argv: str, writes: tuple[str, ...] = (), reads: bool = False) -> Command:
    return Command("beam_pipelines", argv, writes, 3, reads)


def _app(*argv: str, writes: tuple[str, ...] = (), slack: float = 5) -> Command:
    return Command("estimator_app", argv, writes, slack)


_WEIGHTS = ("weights.keras", "weights.weights.h5")
_PUBLISHED = "published/weights.safetensors"  # of timm, with its config.json


def _train(loop: str, model: str, steps: int = 2, more: tuple[str, ...] = ()) -> Command:
    return _app(
        "train",
        "--dataset=dataset",
        f"--model_dir={model}",
        f"--trainer={loop}",
        "--image_size=8",
        "--train_batch_size=4",
        "--eval_batch_size=4",
        f"--train_steps={steps}",
        "--steps_per_eval=2",
        *more,
        writes=(model,),
        slack=20,
    )


def _dataset_commands(name: str, splits: str) -> tuple[Command, ...]:
    """Returns the commands that read a converted dataset; those that take little time more often."""
    return (
        *[_beam("verify", name)] * 6,
        *[_beam("report", name, writes=(f"{name}/report.html",))] * 3,
        _beam("verify", "--quick", name),
        _beam("verify", "--repair", name, writes=(name,), reads=True),
        _convert("src", name, _MOST, splits=splits),
        _convert("src", name, _MOST, "--seed=1", splits=splits),
        _convert("src", name, _MOST, "--seed=1", "--overwrite"),
        _beam("reshard", name, "--shard_size=20KB", "--output=out", _MOST, writes=("out",)),
        _beam("diff", name, name),
        Command("tpu_input", ("idx", name), (f"{name}/index",)),
        _app("train", f"--dataset={name}", "--model_dir=nowhere/model", "--split=nowhere", writes=("nowhere",)),
        _app("evaluate", "--model_dir=model", f"--dataset={name}", "--split=train"),
    )


def _export_kind(name: str) -> Kind:
    """Returns the kind of the files of an export of the dataset `single`."""
    damages = {"webdataset": damage.archive_damages, "parquet": damage.column_damages}.get(name, damage.byte_damages)
    commands = (
        *[_beam("convert", f"--input={name}", "--output=out", _MOST, writes=("out",))] * 2,
        _beam("diff", "single", name),
    )
    files = (f"{name}/*.{ENDINGS[name]}", f"{name}/*/*.{ENDINGS[name]}")
    return Kind(files, ("single", name), damage.several(*[damages] * 2, damage.byte_damages), commands)


_HALF = (
    _convert("src", "half", _MOST),
    _convert("src", "half", _MOST),
    _convert("src", "half", _MOST, "--seed=1"),
    _convert("src", "half", _MOST, "--seed=1", "--overwrite"),
    _beam("verify", "half"),
)


def _run_kinds(model: str, loop: str) -> dict[str, Kind]:
    """Returns the kinds of files of a run; commands that take little time come more often."""
    train, train_longer = _train(loop, model), _train(loop, model, steps=3)
    evaluate, export = (
        _app("evaluate", f"--model_dir={model}"),
        _app("export", f"--model_dir={model}", writes=(model,)),
    )
    predict, evaluate_export = (
        _app("predict", f"--export_dir={model}", _PHOTO),
        _app("evaluate", f"--export_dir={model}"),
    )
    kinds = {
        "config": (("config.json",), _JSON, (*[train] * 6, evaluate, export, predict)),
        "exports": (("exports.json",), _JSON, (*[train] * 8, predict)),
        "history": (("history.csv",), _TEXT, (*[train] * 8, train_longer)),
        "metrics": (("metrics.json",), _JSON, (train,)),
        "checkpoint": (("checkpoint",), _TEXT, (*[train] * 8, evaluate, export, train_longer)),
        "checkpoint's data": (("*.index", "*.data-*"), _BYTES, (*[train] * 8, evaluate, export, train_longer)),
        "export's extras": (("export/**/assets*/*",), _JSON, (predict, evaluate_export)),
    }
    needs = ("src", "dataset", model)
    return {
        f"{loop}'s {name}": Kind(tuple(f"{model}/{file}" for file in files), needs, damages, commands)
        for name, (files, damages, commands) in kinds.items()
    }


_JSON = damage.several(*[damage.json_damages] * 6, damage.text_damages, damage.byte_damages)
_TEXT = damage.several(*[damage.text_damages] * 3, damage.byte_damages)
_BYTES = damage.several(damage.byte_damages)
_SINGLE, _DATASET = ("src", "single"), ("src", "dataset", "model")


def _kinds() -> dict[str, Kind]:
    dataset, single = _dataset_commands("dataset", _BOTH), _dataset_commands("single", "train=100%")
    archives = (_convert("odd.tar", "out", _MOST), _convert("odd", "out", _MOST, "--max_rejected=100%"))
    kinds = {
        "manifest": Kind(("dataset/manifest.json",), _DATASET, _JSON, dataset, 30),
        "manifest of one split": Kind(("single/manifest.json",), (*_SINGLE, "model"), _JSON, single, 25),
        "rejected": Kind(("single/rejected.jsonl",), _SINGLE, _JSON, single[:-3], 15),
        "index": Kind(
            ("single/index/*.parquet",),
            _SINGLE,
            damage.several(*[damage.column_damages] * 3, damage.byte_damages),
            single[:-2],
            10,
        ),
        "records": Kind(
            ("single/*.tfrecord",),
            (*_SINGLE, "model"),
            damage.several(*[damage.record_damages] * 3, damage.byte_damages),
            single,
            5,
        ),
        "dataset's folders": Kind(
            ("single", "single/index", "single/*"), _SINGLE, damage.several(damage.entry_damages), single[:-2], 10
        ),
        "plan": Kind(("half/.jpeg2tpu/*/plan.json", "half/.jpeg2tpu/**/*.json"), ("src", "half"), _JSON, _HALF, 2),
        "rows": Kind(("half/.jpeg2tpu/**/*.rows",), ("src", "half"), _JSON, _HALF),
        "receipt": Kind(("half/.jpeg2tpu/**/*.receipt",), ("src", "half"), _JSON, _HALF, 2),
        "working files": Kind(
            ("half/.jpeg2tpu/**/*", "half/.jpeg2tpu"),
            ("src", "half"),
            damage.several(damage.byte_damages, damage.text_damages),
            _HALF,
        ),
        "replaced": Kind(("half/.jpeg2tpu/replaced.json",), ("src", "half"), _JSON, _HALF),
        "tar": Kind(
            ("odd.tar",),
            ("odd.tar",),
            damage.several(*[damage.archive_damages] * 3, damage.byte_damages),
            archives[:1],
            2,
        ),
        "tar in a folder": Kind(("odd/b/odd.tar",), ("odd",), damage.several(damage.archive_damages), archives[1:]),
        "zip": Kind(
            ("odd.zip",),
            ("odd.zip", "model"),
            damage.several(damage.archive_damages, damage.byte_damages),
            (*[_convert("odd.zip", "out", _MOST)] * 3, _app("predict", "--export_dir=model", "odd.zip")),
        ),
        "compressed tar": Kind(("odd.tgz",), ("odd.tgz",), _BYTES, (_convert("odd.tgz", "out", _MOST),)),
        "WebDataset": Kind(
            ("web.tar",),
            ("web.tar",),
            damage.several(*[damage.archive_damages] * 2, damage.byte_damages),
            (_convert("web.tar", "out", _MOST, "--record=webdataset"),),
            2,
        ),
        "Parquet": Kind(
            ("hub.parquet",),
            ("hub.parquet", "labels.txt"),
            damage.several(*[damage.column_damages] * 2, damage.byte_damages),
            (
                _convert("hub.parquet", "out", _MOST, "--labels=labels.txt"),
                _convert("hub.parquet", "out", _MOST, "--label_type=classes"),
                _convert("hub.parquet", "out", "--max_rejected=100%", "--unlabelled"),
            ),
            2,
        ),
        "pairs": Kind(
            ("pairs.parquet",),
            ("src", "single", "pairs.parquet"),
            damage.several(*[damage.column_damages] * 3, damage.byte_damages),
            (_beam("filter", "single", "--near_duplicates=pairs.parquet", "--output=out", _MOST, writes=("out",)),),
        ),
        "TFRecords of others": Kind(
            ("others/*",),
            ("others", "labels.txt"),
            damage.several(*[damage.record_damages] * 3, damage.byte_damages),
            (
                _beam(
                    "convert",
                    "--input=others",
                    "--output=out",
                    "--record=tfds",
                    "--labels=labels.txt",
                    _MOST,
                    writes=("out",),
                ),
            ),
            2,
        ),
        "list": Kind(
            ("src.csv", "src.jsonl"),
            ("src", "src.csv", "src.jsonl"),
            damage.several(damage.text_damages, damage.json_damages, damage.byte_damages),
            (_convert("src.csv", "out", _MOST, reads=True), _convert("src.jsonl", "out", _MOST, reads=True)),
            2,
        ),
        "names": Kind(
            ("labels.txt", "label_list.txt"),
            ("src", "flat", "labels.txt", "label_list.txt"),
            _TEXT,
            (
                _convert("src", "out", _MOST, "--labels=labels.txt"),
                _convert("validation=flat", "out", _MOST, "--label_list=validation=label_list.txt"),
            ),
        ),
        "image": Kind(
            ("odd/a/*",),
            ("odd", "model"),
            damage.several(damage.byte_damages, damage.picture_damages),
            (
                _convert("odd", "out", _MOST),
                _convert("odd", "out", "--max_rejected=100%", "--reencode=all", "--resize_shorter=20"),
                _app("predict", "--export_dir=model", "odd/a"),
            ),
            2,
        ),
    }
    weight_needs = ("src", "dataset", "weights.keras", "weights.weights.h5", "recipe.yaml")
    starts = [_train("tf_distribute", "out", more=(f"--init_from={name}",)) for name in _WEIGHTS]
    kinds |= {
        "weights": Kind(_WEIGHTS, weight_needs, _BYTES, tuple(starts), 2),
        "published weights": Kind(
            (_PUBLISHED, "published/config.json"),
            ("src", "dataset", "published"),
            damage.several(*[damage.text_damages] * 2, damage.byte_damages),
            (_train("tf_distribute", "out", more=(f"--init_from={_PUBLISHED}",)),),
        ),
        "recipe": Kind(
            ("recipe.yaml",),
            weight_needs,
            _TEXT,
            (
                _app(
                    "train", "--dataset=dataset", "--model_dir=nowhere/model", "--split=nowhere", "--config=recipe.yaml"
                ),
            ),
        ),
        "predictions": Kind(
            ("predictions.parquet",),
            ("src", "single", "predictions.parquet"),
            damage.several(*[damage.column_damages] * 3, damage.byte_damages),
            (_beam("report", "single", "--predictions=predictions.parquet", writes=("single",)),),
        ),
        "table of labels": Kind(
            ("relabel.csv",),
            ("src", "single", "relabel.csv"),
            _TEXT,
            (
                _beam(
                    "relabel", "single", "--labels=relabel.csv", "--add_classes", "--output=out", _MOST, writes=("out",)
                ),
            ),
        ),
    }
    kinds |= {f"export as {name.replace('_', '')}": _export_kind(name) for name in EXPORTS}
    kinds |= _run_kinds("model", "tf_distribute")
    if has_estimator():
        kinds |= _run_kinds("tpu_estimator", "tpu_estimator")
    return kinds


KINDS = _kinds()


def make(work: Path, run: Callable[[Command], None]) -> None:
    """Writes all good files into a new work folder and beside it; `run` runs a command there and takes no failure."""
    write_images(work)
    run(_convert("src", "dataset", _MOST, splits=_BOTH))
    run(_convert("src", "single", _MOST))
    run(_convert("src", "half", "--max_rejected=0%"))  # ends at its budget, after all shards are written
    shutil.copy(work / "single" / "manifest.json", work / "half" / ".jpeg2tpu" / "replaced.json")
    for name in EXPORTS:
        run(_beam("export-dataset", "single", f"--format={name}", f"--output={name}"))
    run(_train("tf_distribute", "model"))
    _write_weights(work)
    if has_estimator():
        run(_train("tpu_estimator", "tpu_estimator"))


def _write_weights(work: Path) -> None:
    """Writes the weights of the network of the runs as Keras does; the files that are read beside a dataset, too."""
    code = (
        "from estimator_app.model.networks import find_network, make_model\n"
        "model = make_model(find_network('cnn'), 8, 2)\n"
        f"model.save({str(work / _WEIGHTS[0])!r}); model.save_weights({str(work / _WEIGHTS[1])!r})\n"
    )
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (work / "published").mkdir()
    published.write(work / _PUBLISHED, {"conv1.weight": np.zeros((2, 3, 7, 7), "f4"), "fc.bias": np.zeros(2, "f2")})
    normalization = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    (work / "published" / "config.json").write_text(json.dumps({"pretrained_cfg": normalization}, indent=1))
    keys = [f"{label}/{number}.jpg" for label in "ab" for number in range(4)]
    table = {"key": keys, "probabilities": [[0.1, 0.9] if key < "a/2" else [0.8, 0.2] for key in keys]}
    pq.write_table(pa.table(table), work / "predictions.parquet")
    (work / "relabel.csv").write_text('key,label\na/0.jpg,b\nb/1.jpg,a\n"b/2.jpg",\'=a\n')
    (work / "recipe.yaml").write_text("learning_rate: 0.1\noptimizer: adamw\naugment: rand_augment:2,9\nmixup: 0.2\n")


def write_images(work: Path) -> None:
    """Writes what takes no command to make."""
    generator = random.Random(0)
    for parent in (work, work.parent):
        (parent / "precious" / "1700000000").mkdir(parents=True)
        _picture(generator).save(parent / "precious" / "photo.jpg")
        for name in ("saved_model.pb", "train-00000-of-00001.tfrecord", "manifest.json"):
            (parent / "precious" / name).write_text("somebody's")
        (parent / "precious" / "1700000000" / "saved_model.pb").write_text("somebody's")
        (parent / "precious" / "train-00000-of-00001.parquet").write_text("somebody's")
    (work / "evil.py").write_text(
        "import os, pathlib\n"
        "pathlib.Path(os.environ['HOME'], 'evil was here').write_text('')\n"
        "def network(*args): raise ValueError\n"
    )
    for label in "ab":
        (work / "src" / label).mkdir(parents=True)
        for number in range(5):
            _picture(generator).save(work / "src" / label / f"{number}.jpg")
    cut = work / "src" / "b" / "4.jpg"
    cut.write_bytes(cut.read_bytes()[:200])
    images = sorted(path.relative_to(work) for path in work.glob("src/*/*"))
    lines = [
        f"{path},{path.parent.name},{'train' if number % 3 else 'validation'}" for number, path in enumerate(images)
    ]
    (work / "src.csv").write_text("\n".join(["image,label,split", *lines]) + "\n")
    as_json = ['{{"image": "{}", "label": "{}", "group": "{}"}}\n'.format(*line.split(",")) for line in lines]
    (work / "src.jsonl").write_text("".join(as_json))
    shutil.copytree(work / "src" / "a", work / "flat")
    (work / "labels.txt").write_text("a\nb\n")
    (work / "label_list.txt").write_text("cat\ndog\n" * 2 + "cat\n")
    shutil.copytree(work / "src", work / "odd")
    (work / "others").mkdir()
    with open(work / "others" / "d-train.tfrecord-00000-of-00001", "wb") as file:
        for number in range(12):
            image = (work / "src" / "a" / f"{number % 5}.jpg").read_bytes()
            file.write(frame(serialize({"image": image, "label": number % 2})))
    photos = [(work / "src" / "a" / f"{number % 5}.jpg").read_bytes() for number in range(12)]
    cells = [{"bytes": photo, "path": f"x/{number}.jpg"} for number, photo in enumerate(photos)]
    names = {"label": {"_type": "ClassLabel", "names": ["a", "b"]}}
    table = pa.table({"image": cells, "label": [number % 2 for number in range(12)]})
    declared = {"huggingface": json.dumps({"info": {"features": names}})}
    pq.write_table(table.replace_schema_metadata(declared), work / "hub.parquet")
    pair = {"key_a": ["a/0.jpg"], "key_b": ["a/1.jpg"], "kept": ["a/0.jpg"]}
    pq.write_table(pa.table(pair), work / "pairs.parquet")
    with tarfile.open(work / "web.tar", "w") as archive:
        for number, photo in enumerate(photos):
            for ending, content in (("jpg", photo), ("cls", b"ab"[number % 2 : number % 2 + 1])):
                member = tarfile.TarInfo(f"{number:04d}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    for kind in FORMATS:
        if kind != "JPEG":
            _picture(generator).save(work / "odd" / "a" / f"odd.{kind.lower()}", kind)
    with tarfile.open(work / "odd.tar", "w") as archive:
        archive.add(work / "src", "src")
    shutil.copy(work / "odd.tar", work / "odd" / "b" / "odd.tar")
    (work / "odd.tgz").write_bytes(gzip.compress((work / "odd.tar").read_bytes()))
    shutil.make_archive(str(work / "odd"), "zip", work, "src")


def _picture(generator: random.Random) -> Image.Image:
    return Image.frombytes("RGB", (16, 12), generator.randbytes(16 * 12 * 3)).resize((32, 24))
