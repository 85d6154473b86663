"""Contracts over the registry of label kinds: each is stored and read back, every command takes it or refuses it."""

from __future__ import annotations

import argparse
import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from beam_pipelines.__main__ import main, make_parser
from beam_pipelines.conversion.shard_checking import _check_record
from beam_pipelines.options import ConvertOptions, LabelType
from support.pipelines_commands import run
from tpu_input.dataset_format.label_kinds import KINDS, LabelKind, label_kind, merged_kind
from tpu_input.dataset_format.manifest import Manifest
from tpu_input.dataset_format.records import Record, decode, encode, read_frames

PAIRS = list(itertools.permutations(KINDS, 2))
NAMES = ("cat", "a b", "\x1f", "a\x1fb", "\x1e", "\x1e0", "\x1e1", "\x1d7", "é", "7", ";")
LABELS = {"class": ["cat", "dog"], "classes": ["cat;dog", ""], "none": ["", ""]}  # of a list, for each kind


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset of four images for each kind of labels, all of them with the same images; not to be changed."""
    folder = tmp_path_factory.mktemp("kinds")
    for number in range(4):
        pixels = np.full((8, 8, 3), 60 * number, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=95)
        (folder / "folders" / ("cat", "dog")[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels + 1).save(folder / "folders" / ("cat", "dog")[number % 2] / f"{number}.jpg", quality=95)
    for kind in KINDS:
        lines = [f"{number}.jpg,{LABELS[kind][number % 2]},train" for number in range(4)]
        (folder / f"{kind}.csv").write_text("\n".join(["image,label,split", *lines]) + "\n")
        assert not main(
            ["convert", f"--input={folder}/{kind}.csv", f"--output={folder}/{kind}", f"--label_type={kind}"]
        )
    return {kind: folder / kind for kind in KINDS}


def examples(dataset: Path) -> dict[str, tuple[str, ...]]:
    """Returns the names in the records of a dataset by the name of the image, read by the record format alone."""
    manifest = Manifest.from_json((dataset / "manifest.json").read_bytes(), str(dataset))
    names: dict[str, tuple[str, ...]] = {}
    for shard in (shard for split in manifest.splits.values() for shard in split.shards):
        with open(dataset / shard.name, "rb") as file:
            for record in (decode(payload, manifest.first_label) for _, payload in read_frames(file)):
                assert manifest.label_kind.are_classes(record.label, len(manifest.classes))
                indices = manifest.label_kind.indices(record.label)
                names[record.key] = tuple(manifest.classes[index] for index in indices)
                assert record.class_name == manifest.label_kind.class_name(names[record.key])
    return names


def outcome(capsys: pytest.CaptureFixture[str], *args: object) -> bool:
    """Returns whether a command takes its input; if not, it has refused it in one line."""
    code, out, err = run(capsys, *args)
    assert "Traceback" not in out + err
    if code:
        assert (code, out) == (2, ""), err
        assert err.startswith("error: "), err
        assert err.count("\n") == 1, err
        assert "label" in err or "class" in err, err
    return not code


def test_the_options_name_the_kinds() -> None:
    assert set(LabelType.__args__) == set(KINDS) == set(LABELS)  # type: ignore[attr-defined]
    assert ConvertOptions((), "/out").label_kind is label_kind("class")


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_label_survives_text_record_and_index(kind: LabelKind) -> None:
    for names in itertools.chain([()], itertools.combinations(NAMES, 1), itertools.combinations(NAMES, 2)):
        if kind.fault(len(names)):
            continue
        text = kind.text(names)
        assert set(kind.names(text)) == (set(names) if kind.needs_classes else set())
        assert kind.text(reversed(names)) == text
        indices = sorted(NAMES.index(name) for name in kind.names(text))
        label = kind.label(indices)
        assert kind.fits(label)
        assert kind.are_classes(label, len(NAMES))
        assert kind.indices(label) == tuple(indices)
        class_name = kind.class_name([NAMES[index] for index in indices])
        record = Record("k", b"x", 1, 1, 3, label, class_name, "0" * 64)
        for first_label in (0, 1):
            read = decode(encode(record, first_label), first_label)
            assert (read.label, read.class_name) == (label, class_name)


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_labels_of_other_kinds_do_not_fit(kind: LabelKind) -> None:
    labels = {"class": 1, "classes": (0, 1), "none": ()}
    wrong = {"class": ["classes", "none"], "classes": ["class"], "none": ["class", "classes"]}  # no label is a set, too
    assert kind.fits(labels[kind.name])
    assert not any(kind.fits(labels[other]) for other in wrong[kind.name])
    assert not kind.fits(None)


def test_what_kinds_become_together() -> None:
    for one, other in itertools.product(KINDS.values(), repeat=2):
        together = merged_kind([one, other])
        assert together is merged_kind([other, one])
        assert (together is None) == (one.needs_classes != other.needs_classes)
        if together:
            assert together.takes(one)
            assert together.takes(other)


# For each command that reads datasets, its arguments: {a} is a dataset, {out} an output, {folder} a folder with files.
COMMANDS = {
    "convert": ["--input={a}", "--output={out}", "--label_type={kind}"],
    "verify": ["{a}"],
    "repair": ["{a}"],
    "relabel": ["{a}", "--labels={folder}/new.csv", "--output={out}"],
    "merge": ["{a}", "again={a}", "--output={out}", "--dedup=none"],
    "filter": ["{a}", "--without_keys={folder}/keys.txt", "--output={out}"],
    "split": ["{a}", "--splits=train=50%,validation=50%", "--output={out}"],
    "reshard": ["{a}", "--num_shards=train=2", "--output={out}"],
    "export-dataset": ["{a}", "--format=parquet", "--output={out}"],
    "diff": ["{a}", "{a}"],
    "report": ["{a}"],
}


def test_every_command_is_here() -> None:
    (actions,) = [action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert set(COMMANDS) == set(actions.choices) - {"sample"}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_command_takes_a_kind_or_refuses_it_in_one_line(capsys, datasets, tmp_path, command, kind) -> None:
    before = examples(datasets[kind])
    (tmp_path / "new.csv").write_text("key,label\n0.jpg,dog\n")
    (tmp_path / "keys.txt").write_text("3.jpg\n")
    values = {"a": datasets[kind], "out": tmp_path / "out", "folder": tmp_path, "kind": kind}
    is_taken = outcome(capsys, command, *(arg.format(**values) for arg in COMMANDS[command]))
    assert is_taken or (command, kind) == ("relabel", "none")
    if is_taken and command == "export-dataset":
        same = "4 examples are the same in"
        assert run(capsys, "diff", datasets[kind], tmp_path / "out")[1].startswith(same)
    elif is_taken and "--output={out}" in COMMANDS[command]:
        after = examples(tmp_path / "out")
        expected = {"0.jpg": ("dog",)} if command == "relabel" else {}
        assert after == {key: (before | expected)[key.rpartition("/")[2]] for key in after}
        assert len(after) == {"filter": 3, "merge": 8}.get(command, 4)


@pytest.mark.parametrize(("kind", "other"), PAIRS)
def test_kinds_meet_in_a_conversion_or_are_refused_in_one_line(capsys, datasets, tmp_path, kind, other) -> None:
    """merge, convert of one kind as another, of both at once, and --extend: no label is lost, none is made up."""
    one, two = datasets[kind], datasets[other]
    names = {**{f"a/{key}": value for key, value in examples(one).items()}}
    names |= {f"b/{key}": value for key, value in examples(two).items()}
    is_taken = outcome(capsys, "merge", f"a={one}", f"b={two}", f"--output={tmp_path}/merged", "--dedup=none")
    assert is_taken == (KINDS[kind].needs_classes == KINDS[other].needs_classes)
    if is_taken:
        assert examples(tmp_path / "merged") == names
    as_other = outcome(capsys, "convert", f"--input={one}", f"--output={tmp_path}/as", f"--label_type={other}")
    assert as_other == KINDS[other].takes(KINDS[kind])
    if as_other:
        expected = examples(one) if KINDS[other].needs_classes else dict.fromkeys(examples(one), ())
        assert examples(tmp_path / "as") == expected
    inputs = f"--input=train={one}", f"--input=validation={one.parent}/folders"
    both = outcome(capsys, "convert", *inputs, f"--output={tmp_path}/both", f"--label_type={other}")
    assert both == KINDS[other].takes(KINDS[kind])
    extended = ["convert", f"--input={one.parent}/{kind}.csv", f"--output={one}", f"--label_type={other}", "--extend"]
    assert not outcome(capsys, *extended)


@pytest.mark.parametrize(("kind", "other"), PAIRS)
def test_verify_finds_records_of_another_kind(capsys, datasets, tmp_path, kind, other) -> None:
    manifest = Manifest.from_json((datasets[kind] / "manifest.json").read_bytes(), str(datasets[kind]))
    label = {"class": 0, "classes": (0, 1), "none": ()}[other]
    if (kind, other) == ("classes", "none"):
        pytest.skip("no label is one of any number of labels, too")
    names = [name for name, _ in zip(("cat", "dog"), KINDS[other].indices(label), strict=False)]
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    record = Record("k", buffer.getvalue(), 8, 8, 3, label, KINDS[other].class_name(names), "0" * 64)
    _, problem = _check_record(manifest, 0, encode(record), decode_image=False)
    assert f"but the manifest says {KINDS[kind].phrase}" in problem
