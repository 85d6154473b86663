"""Transforms in pipelines of one's own: what is written, what is rejected, and what a second run does."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.coders import RowCoder
from apache_beam.coders.typecoders import registry
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.pvalue import Row
from apache_beam.transforms.display import DisplayData
from apache_beam.typehints.schemas import typing_to_runner_api
from PIL import Image

import beam_pipelines as bp
import tpu_input
from beam_pipelines.__main__ import main
from beam_pipelines.conversion.shard_writing import write_planned
from beam_pipelines.convert import convert
from beam_pipelines.options import ConvertOptions
from beam_pipelines.verify import verify
from support.conversion import local, options
from support.folders import files

DOCS = Path(__file__).parents[2] / "docs"


def stored_images(dataset: Path) -> dict[str, bytes]:
    """Every image of a dataset by its key, of all splits."""
    manifest = tpu_input.read_manifest(str(dataset))
    sources = [tpu_input.RecordSource(manifest, split) for split in manifest.splits]
    return {source[number].key: source[number].encoded for source in sources for number in range(len(source))}


def guide() -> str:
    """The pipeline in the guide."""
    match = re.search(r"```python\n(.*?)```", (DOCS / "pipelines.md").read_text(), re.DOTALL)
    assert match
    return match[1]


def make_boxes(folder: Path) -> dict[str, tuple[int, int, int, int]]:
    """Writes boxes.csv for the digits in a folder; every tenth box is too narrow."""
    boxes = {}
    for number, path in enumerate(sorted((folder / "digits").rglob("*.jpg"))):
        boxes[str(path.relative_to(folder / "digits"))] = (1, 0, 7 if number % 10 else 3, 8)
    with (folder / "boxes.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["key", "left", "top", "right", "bottom"])
        rows.writerows([key, *box] for key, box in boxes.items())
    return boxes


def check_cropped(folder: Path, boxes: dict[str, tuple[int, int, int, int]]) -> None:
    """Checks what the guide's pipeline has written against Pillow's crops."""
    assert verify(str(folder / "cropped")).problems == []
    images = stored_images(folder / "cropped")
    assert images.keys() == {key for key, box in boxes.items() if box[2] == 7}
    for key, encoded in images.items():
        Image.open(folder / "digits" / key).crop(boxes[key]).save(expected := io.BytesIO(), "JPEG", quality=95)
        assert encoded == expected.getvalue()
    rejected = [json.loads(line) for line in (folder / "cropped" / "rejected.jsonl").read_text().splitlines()]
    assert [(line["key"], line["reason"]) for line in rejected] == [("0/page.jpg", "not_an_image")]


def guided(few_digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    """Runs the guide's pipeline with the flags of a runner."""
    few_digits.rename(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    boxes = make_boxes(tmp_path)
    (tmp_path / "digits" / "0" / "page.jpg").write_text("<html>")
    code = guide().replace("shard_bytes=50_000", "shard_bytes=10_000, max_rejected=0.1")
    assert "beam.Pipeline()" in code
    exec(code.replace("beam.Pipeline()", f"beam.Pipeline(argv={[*flags]!r})"), {"__name__": "__main__"})
    check_cropped(tmp_path, boxes)


def test_the_pipeline_of_the_guide_writes_what_it_says(few_digits, tmp_path, monkeypatch, capsys):
    # Without --runner, Beam looks for Prism, which it would download, and then takes this runner.
    guided(few_digits, tmp_path, monkeypatch, "--runner=FnApiRunner")
    assert "WrittenDataset(path=" in capsys.readouterr().out


def test_the_program_with_flags_of_the_guide_writes_what_was_chosen(few_digits, tmp_path, monkeypatch):
    few_digits.rename(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(  import sys\n.*?)```", (DOCS / "pipelines.md").read_text(), re.DOTALL)
    flags = ["--input=digits", "--output=chosen", "--shard_size=50KB", "--runner=FnApiRunner"]
    monkeypatch.setattr("sys.argv", ["program.py", *flags])
    exec(textwrap.dedent(code), {"__name__": "__main__"})
    assert set(tpu_input.read_manifest("chosen").classes) <= set("01234")
    assert stored_images(tmp_path / "chosen").keys() == {
        str(path.relative_to("digits")) for path in Path("digits").rglob("[0-4]/*.jpg")
    }


@pytest.mark.engines
def test_the_pipeline_of_the_guide_runs_on_prism(few_digits, tmp_path, monkeypatch):
    if "PRISM" not in os.environ:
        pytest.skip("PRISM does not name Prism's program")
    guided(few_digits, tmp_path, monkeypatch, "--runner=PrismRunner", f"--prism_location={os.environ['PRISM']}")


def run(source: Path, output: Path, **changes: Any) -> list[bp.WrittenDataset]:
    """Lists, reads and writes as the command line does; returns what WriteDataset gives."""
    path = output.parent / "done.jsonl"
    with beam.Pipeline(options=local()) as pipeline:
        inputs, others = pipeline | bp.ListInputs(bp.Source(str(source)))
        images, unreadable = inputs | bp.ReadImages()
        arguments = {"shard_bytes": 10_000, "max_rejected": 1.0, **changes}
        (
            (images, others, unreadable)
            | bp.WriteDataset(str(output), **arguments)
            | beam.Map(lambda dataset: json.dumps(dataset._asdict()))
            | beam.io.WriteToText(str(path), shard_name_template="")
        )
    return [bp.WrittenDataset(**json.loads(line)) for line in path.read_text().splitlines()]


def test_images_that_pass_unchanged_give_the_shards_of_the_command(few_digits, tmp_path):
    (few_digits / "0" / ".DS_Store").write_bytes(b"Bud1")
    (few_digits / "1" / "page.jpg").write_text("<html>")
    Image.open(next(few_digits.rglob("2/*.jpg"))).save(few_digits / "2" / "other.png")
    (dataset,) = run(few_digits, tmp_path / "out")
    manifest, *_ = convert(options(few_digits, tmp_path / "whole"))
    assert dataset == bp.WrittenDataset(str(tmp_path / "out"), dataset.fingerprint, 37, 39, is_new=True)
    assert manifest.num_rejected == verify(str(tmp_path / "out")).manifest.num_rejected
    assert stored_images(tmp_path / "out") == stored_images(tmp_path / "whole")
    assert verify(str(tmp_path / "out")).problems == []
    (again,) = run(few_digits, tmp_path / "out")
    assert again == dataset._replace(is_new=False)


def test_shards_are_those_of_the_command_byte_for_byte_where_all_are_jpegs(few_digits, tmp_path):
    run(few_digits, tmp_path / "out")
    convert(options(few_digits, tmp_path / "whole"))
    shards = {name: digest for name, digest in files(tmp_path / "whole").items() if name.endswith(".tfrecord")}
    assert len(shards) > 3
    assert {name: digest for name, digest in files(tmp_path / "out").items() if name.endswith(".tfrecord")} == shards


def test_files_that_are_not_read_in_the_pipeline_give_the_dataset_of_the_command(few_digits, tmp_path):
    with beam.Pipeline(options=local()) as pipeline:
        inputs, _ = pipeline | bp.ListInputs(bp.Source(str(few_digits)))
        inputs | bp.WriteDataset(str(tmp_path / "out"), shard_bytes=10_000)
    convert(options(few_digits, tmp_path / "whole"))
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("out", "whole")]
    assert [len(manifest.pop("sources")) for manifest in manifests] == [0, 1]
    assert manifests[0] == manifests[1]
    output, expected = (files(tmp_path / name) for name in ("out", "whole"))
    assert {name for name in expected if output[name] != expected[name]} == {"manifest.json"}


def test_rows_of_files_are_looked_up_read_and_checked(few_digits, tmp_path):
    Image.new("RGB", (20, 10)).save(tmp_path / "one.png")
    (tmp_path / "page.jpg").write_text("<html>")
    paths = list(few_digits.rglob("*.jpg"))
    rows = [Row(key=path.name, uri=str(path), label="ab"[n % 2]) for n, path in enumerate(paths)]
    names = ("one.png", "page.jpg", "none.jpg")
    write_rows(tmp_path / "out", [*rows, *(Row(key=name, uri=str(tmp_path / name), label="a") for name in names)])
    findings = verify(str(tmp_path / "out"))
    assert findings.problems == []
    assert findings.manifest.num_fixed == {"format PNG": 1}
    assert findings.manifest.num_rejected == {"missing": 1, "not_an_image": 1}
    assert stored_images(tmp_path / "out").keys() == {path.name for path in paths} | {"one.png"}


def test_flags_of_a_program_are_those_of_the_command(few_digits, tmp_path):
    flags = [
        f"--input=train={few_digits}",
        "--shard_size=10KB",
        "--num_shards=train=3",
        "--seed=7",
        "--resize_shorter=8",
    ]
    flags += [
        "--resize_shorter=8",
        "--max_rejected=5%",
        "--splits=train=80%,test=20%",
        "--overwrite",
        "--first_label=1",
        "--dedup=exact",
    ]
    (tmp_path / "names.txt").write_text("".join(f"{digit}\n" for digit in range(10)))
    beam_options = PipelineOptions([*flags, f"--class_names={tmp_path}/names.txt", f"--output={tmp_path}/out"])
    assert beam_options.view_as(bp.ConvertPipelineOptions).convert_options() == ConvertOptions(
        (bp.Source(str(few_digits), "train"),),
        str(tmp_path / "out"),
        splits=(("train", 0.8), ("test", 0.2)),
        splits_required=True,
        shard_bytes=10_000,
        num_shards=(("train", 3),),
        labels=tuple("0123456789"),
        first_label=1,
        seed=7,
        dedup="exact",
        max_rejected=0.05,
        overwrite=True,
        images=bp.ImageOptions(resize_shorter=8),
    )
    # Beam sends the options to an engine as JSON, and with those of every other runner.
    sent = json.loads(json.dumps(beam_options.get_all_options(drop_default=True)))
    assert sent["conversion_num_shards"] == "train=3"
    assert beam_options.view_as(GoogleCloudOptions).labels is None
    few = PipelineOptions([f"--output={tmp_path}/out"]).view_as(bp.ConvertPipelineOptions)
    assert few.convert_options() == ConvertOptions((), str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "the following arguments are required: --output"),
        (["--output=out", "--shard_size=big"], "argument --shard_size: 'big' is not a size; write 500KB, 100MB or 1GB"),
        (["--output=out", "--quality=101"], "quality must be 1 to 100, got 101"),
    ],
)
def test_a_flag_of_a_program_that_is_wrong_is_a_value_error(flags, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        PipelineOptions(flags).view_as(bp.ConvertPipelineOptions).convert_options()


def test_a_program_with_the_flags_of_the_command_writes_its_dataset(few_digits, tmp_path):
    first = next(few_digits.rglob("*.jpg"))
    (first.parent / "again.jpg").write_bytes(first.read_bytes())
    flags = [f"--input={few_digits}", "--shard_size=10KB", "--dedup=exact"]
    beam_options = PipelineOptions([*flags, f"--output={tmp_path}/out", "--runner=FnApiRunner"])
    options = beam_options.view_as(bp.ConvertPipelineOptions).convert_options()
    with beam.Pipeline(options=beam_options) as pipeline:
        inputs, others = pipeline | bp.ListInputs(*options.sources)
        (inputs, others) | bp.WriteDataset(options)
    assert main(["convert", *flags, f"--output={tmp_path}/whole"]) == 0
    output, expected = (files(tmp_path / name) for name in ("out", "whole"))
    assert {name for name in expected if output[name] != expected[name]} == {"manifest.json"}  # which names the inputs
    assert verify(str(tmp_path / "out")).manifest.num_rejected == {"duplicate": 1}


def noise(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, [16, 16, 3], np.uint8)
    Image.fromarray(pixels).save(file := io.BytesIO(), "JPEG")
    return file.getvalue()


def write_rows(output: Path, rows: Sequence[object], **changes: Any) -> None:
    with beam.Pipeline(options=local()) as pipeline:
        elements = pipeline | beam.Create(rows)
        elements | bp.WriteDataset(str(output), **{"shard_bytes": 10_000, "max_rejected": 1.0, **changes})


def test_rows_of_a_schema_from_elsewhere_are_written(tmp_path):
    images = {f"{number}": noise(number) for number in range(40)}
    write_rows(tmp_path / "out", [Row(key=key, image=image, label="ab"[int(key) % 2]) for key, image in images.items()])
    assert stored_images(tmp_path / "out") == images
    index = verify(str(tmp_path / "out"))
    assert index.problems == []
    assert index.manifest.sources == []


def test_rows_of_a_parquet_file_are_written(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    splits = ["train", "test"]
    rows = [bp.LabelledImage(f"{n}", noise(n), "ab"[n % 2], splits[n % 3 == 0])._asdict() for n in range(40)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    with beam.Pipeline(options=local()) as pipeline:
        read = pipeline | beam.io.ReadFromParquet(str(tmp_path / "rows.parquet"))
        read | beam.Map(lambda row: bp.LabelledImage(**row)) | bp.WriteDataset(str(tmp_path / "out"))
    manifest = tpu_input.read_manifest(str(tmp_path / "out"))
    assert {split: manifest.split(split).num_examples for split in manifest.splits} == {"test": 14, "train": 26}
    assert stored_images(tmp_path / "out") == {row["key"]: row["image"] for row in rows}


def test_of_two_images_with_one_key_the_same_one_is_written_in_whatever_order_they_come(tmp_path):
    rows = [bp.LabelledImage(f"{number // 2}", noise(number), "ab"[number % 4 // 2]) for number in range(40)]
    write_rows(tmp_path / "out", rows)
    write_rows(tmp_path / "other", rows[::-1])
    assert len(stored_images(tmp_path / "out")) == 20
    assert files(tmp_path / "out") == files(tmp_path / "other")
    assert verify(str(tmp_path / "out")).manifest.num_rejected == {"duplicate_key": 20}


def test_what_is_no_image_is_rejected_without_the_name_of_a_working_file(tmp_path):
    rows = [bp.LabelledImage(f"{number}", noise(number), "ab"[number % 2]) for number in range(20)]
    write_rows(tmp_path / "out", [*rows, bp.LabelledImage("page", b"<html>", "a"), bp.LabelledImage("none", b"", "b")])
    lines = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert [(line["key"], line["uri"], line["reason"]) for line in lines] == [
        ("none", "", "empty"),
        ("page", "", "not_an_image"),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(key="x", image=noise(3), label=5), "LabelledImage, label as str; got int in the element of key 'x'"),
        (Row(key="x", image="text", label="a"), "LabelledImage, image as bytes; got str in the element of key 'x'"),
        (Row(key=7, image=noise(3), label="a"), "LabelledImage, key as str; got int in the element of key 7"),
        (Row(key="x", image=noise(3)), "LabelledImage, label as str; got none in the element of key 'x'"),
        (Row(key="x", uri="x.jpg"), "InputFile, label as str; got none in the element of key 'x'"),
    ],
)
def test_an_element_that_is_no_labelled_image_is_named(tmp_path, row, message):
    with pytest.raises(ValueError, match=f"an element must have the fields of {message}"):
        write_rows(tmp_path / "out", [row])


def test_an_image_without_a_label_or_of_a_wrong_split_is_rejected(tmp_path):
    rows = [bp.LabelledImage(f"{number}", noise(number), "ab"[number % 2]) for number in range(20)]
    others = [bp.LabelledImage("q", noise(30), ""), bp.LabelledImage("r", noise(31), "a", "../etc")]
    write_rows(tmp_path / "out", [*rows, *others])
    assert verify(str(tmp_path / "out")).manifest.num_rejected == {"bad_split": 1, "no_label": 1}


def test_a_run_that_failed_leaves_nothing_that_globs_match_and_another_completes_it(tmp_path, monkeypatch):
    rows = [bp.LabelledImage(f"{number}", noise(number), "ab"[number % 2]) for number in range(60)]
    shards = list[str]()
    failure_number = 4

    def write(shard: str, *args: Any) -> None:
        shards.append(shard)
        if len(shards) == failure_number:
            raise ValueError("the machine is lost")
        write_planned(shard, *args)

    monkeypatch.setattr("beam_pipelines.transforms.write_planned", write)
    with pytest.raises(Exception, match="the machine is lost"):
        write_rows(tmp_path / "out", rows)
    assert os.listdir(tmp_path / "out") == [".jpeg2tpu"]
    failure_number = 0
    first, shards[:] = shards[:3], []
    write_rows(tmp_path / "out", rows)
    assert first
    assert not set(first) & set(shards)
    write_rows(tmp_path / "whole", rows)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_another_dataset_is_refused_and_with_overwrite_replaced(few_digits, tmp_path):
    convert(options(few_digits, tmp_path / "out"))
    before = files(tmp_path / "out")
    rows = [bp.LabelledImage(f"{number}", noise(number), "ab"[number % 2]) for number in range(40)]
    with pytest.raises(Exception, match="holds another dataset"):
        write_rows(tmp_path / "out", rows)
    assert before.items() <= files(tmp_path / "out").items()
    write_rows(tmp_path / "out", rows, overwrite=True)
    assert stored_images(tmp_path / "out") == {row.key: row.image for row in rows}
    assert verify(str(tmp_path / "out")).problems == []
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"contains other files and no dataset: 'notes\.txt'"):
        bp.WriteDataset(str(tmp_path / "out"))


def test_options_that_make_no_sense_are_refused_when_the_pipeline_is_built(tmp_path):
    for option in ("splits_required", "sources", "shard_size"):
        with pytest.raises(ValueError, match=f"has no option '{option}'; its options are splits, shard_bytes"):
            bp.WriteDataset(str(tmp_path), **{option: "exact"})
    with pytest.raises(ValueError, match="ListInputs needs at least one Source"):
        bp.ListInputs()
    with pytest.raises(ValueError, match="shard_size must be at least"):
        bp.WriteDataset(str(tmp_path), shard_bytes=1)
    with pytest.raises(ValueError, match=r"input '/no/images' does not exist"):
        bp.ListInputs(bp.Source("/no/images"))


def test_a_shard_of_such_a_dataset_cannot_be_repaired_and_this_is_said(tmp_path):
    rows = [bp.LabelledImage(f"{number}", noise(number), "ab"[number % 2]) for number in range(40)]
    write_rows(tmp_path / "out", rows)
    next((tmp_path / "out").glob("train-*")).write_bytes(b"noise")
    with pytest.raises(ValueError, match="was written by a pipeline with WriteDataset, which alone can make"):
        bp.repair(verify(str(tmp_path / "out")))


def test_elements_have_schemas_and_transforms_have_display_data(tmp_path):
    for element in (bp.InputFile, bp.LabelledImage, bp.RejectedInput, bp.WrittenDataset):
        assert isinstance(registry.get_coder(element), RowCoder)
        fields = typing_to_runner_api(element).row_type.schema.fields
        assert [field.name for field in fields if field.type.WhichOneof("type_info") != "atomic_type"] == []
    items = DisplayData.create_from(bp.WriteDataset(str(tmp_path / "out"), seed=7)).items
    assert {"output", "seed", "shard_bytes"} <= {item.key for item in items}
    items = DisplayData.create_from(bp.ReadImages(bp.ImageOptions(resize_shorter=64))).items
    assert {item.key: item.value for item in items}["resize_shorter"] == 64


def test_counters_say_what_was_read_and_why_not(few_digits):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    inputs, _ = pipeline | bp.ListInputs(bp.Source(str(few_digits)))
    inputs | bp.ReadImages()
    result = pipeline.run()
    result.wait_until_finish()
    metrics = result.metrics().query(MetricsFilter().with_namespace("jpeg2tpu"))
    counts = {counter.key.metric.name: counter.committed for counter in metrics["counters"]}
    assert counts == {"listing": 37, "rejected_not_an_image": 1}
    pixels = {distribution.key.metric.name: distribution.committed for distribution in metrics["distributions"]}
    assert (pixels["image_pixels"].count, pixels["image_pixels"].sum) == (36, 36 * 32 * 32)
    assert pixels["image_milliseconds"].count == 36
    images = [path.stat().st_size for path in few_digits.rglob("[0-9]*.jpg")]
    assert (pixels["image_bytes"].sum, pixels["image_bytes"].max) == (sum(images), max(images))
