"""The page: everything that it should tell of a nasty dataset, nothing that a stranger's file name could do to it."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import io
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from beam_pipelines.__main__ import main, make_parser
from beam_pipelines.conversion.output_folder import complete_manifest
from beam_pipelines.conversion_flags import conversion_options
from beam_pipelines.convert import convert
from beam_pipelines.images.rejection_reasons import REASONS
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.report import look_alikes, page as report_page, thumbnails
from beam_pipelines.report.index_columns import read_all
from beam_pipelines.report.likely_wrong import MAX_SHOWN_LABELS
from beam_pipelines.report.look_alikes import find_look_alikes
from beam_pipelines.report.page import write_report
from beam_pipelines.report.rejections import MAX_SHOWN
from beam_pipelines.report.summary import command_of
from beam_pipelines.report.thumbnails import thumbnail
from beam_pipelines.verify import verify
from support.nasty import EVIL_CLASS, SCRIPT, encoded, write
from tpu_input import Manifest
from tpu_input.dataset_format.index import read_index, write_index
from tpu_input.dataset_format.manifest import Shard, Split


@pytest.fixture(scope="module")
def page(nasty) -> str:
    return Path(write_report(str(nasty), [str(nasty.parent / "in")])).read_text()


@pytest.fixture
def nasty_copy(nasty, tmp_path) -> Path:
    return Path(shutil.copytree(nasty, tmp_path / "copy"))


class _Elements(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.start_tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.start_tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def text_of(page: str) -> str:
    """Returns what a reader sees."""
    return re.sub(r"\s+", " ", " ".join(_Elements(page.split("</style>")[1]).text))


def test_every_input_is_accounted_for(page):
    assert "129 inputs = 121 records + 8 rejected" in text_of(page)


def test_no_name_becomes_an_element_and_nothing_points_outside(page):
    elements = _Elements(page).start_tags
    tags = {tag for tag, _ in elements}
    assert not tags & {"iframe", "object", "embed", "base", "form", "style "}
    assert sum(tag == "script" for tag, _ in elements) == 1
    assert {tag for tag, attributes in elements if any(name.startswith("on") for name in attributes)} == set()
    links = [attributes.get(name) or "" for _, attributes in elements for name in ("src", "href") if name in attributes]
    assert {link for link in links if not link.startswith(("data:image/jpeg;base64,", "#", "data:,"))} == set()
    assert all(f'id="{link[1:]}"' in page for link in links if link.startswith("#"))
    assert "url(" not in page
    assert "@import" not in page
    policy = next(attributes["content"] for tag, attributes in elements if tag == "meta" and "http-equiv" in attributes)
    assert policy
    assert policy.startswith("default-src 'none'; img-src data:;")
    # The one script is the package's own, by its hash: https://www.w3.org/TR/CSP3/#match-element-to-source-list
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert re.findall(r"script-src ([^;]*);", policy) == [f"'sha256-{digest}'"]
    assert script == Path(report_page.__file__).with_name("template").joinpath("report.js").read_text()


def test_odd_names_are_shown_as_they_are(page):
    text = text_of(page)
    assert f"china/cut {SCRIPT}" in text
    assert EVIL_CLASS in text


def test_every_reason_is_counted_explained_and_shown(page):
    text = text_of(page)
    for code, count in {
        "truncated": 2,
        "animated": 1,
        "empty": 1,
        "missing": 1,
        "no_label": 1,
        "not_an_image": 1,
        "too_small": 1,
    }.items():
        reason = REASONS[code]
        assert f"{code} {count} {reason.meaning} {reason.advice}" in text
    assert "page.jpg begins with b'&lt;!DOCTYP'".replace("&lt;", "<") in text
    section = page[page.index('id="rejected"') : page.index('id="look-alikes"')]
    assert section.count("<img") == 5  # two cut off, of one the frame, the tiny one, the one without a class


def test_look_alikes_across_splits_and_labels_come_first(nasty, page):
    manifest = complete_manifest(str(nasty))
    result = find_look_alikes(manifest, read_all(manifest))
    keys = [sorted(Path(example.key).name for example in group.examples) for group in result.groups]
    assert keys[0] == ["2.jpg", "neither.jpg"]
    assert ["0.jpg", "again.jpg"] in keys
    assert ["1.jpg", "no china.jpg"] in keys
    assert (result.all.across_splits, result.all.conflicting) == (2, 2)
    assert [(group.num_images, group.splits) for group in result.common] == [(60, ["train"])]
    assert result.num_near - result.num_compared == 60 * 59 // 2  # the blank ones, with each other
    text = text_of(page)
    assert "2 groups of look-alikes are in more than one split" in text
    assert "2 groups of look-alikes are under different labels" in text
    assert "across splits: train, validation different labels: china, flower 2 images" in text


def test_identical_files_are_told_as_such(few_digits, tmp_path):
    shutil.copy(few_digits / "0" / "0000.jpg", few_digits / "1" / "copy.jpg")
    convert(ConvertOptions((Source(str(few_digits)),), str(tmp_path / "out")))
    text = text_of(Path(write_report(str(tmp_path / "out"))).read_text())
    assert "different labels: 0, 1 2 images with the same bytes" in text
    assert "--dedup=exact keeps one of the images with the same source bytes" in text


def test_examples_are_shown_by_split(nasty, page):
    section = page[page.index('id="examples"') : page.index('id="made"')]
    manifest = complete_manifest(str(nasty))
    for part in section.split('<div data-classes="')[1:]:
        names, pictures = re.findall(r'"of-split">(\w+)<', part), part.split('class="of-split"')[1:]
        assert names
        for name, row in zip(names, pictures, strict=True):
            splits = re.findall(r'alt="[^"]* pixels, (\w+)"', row)
            assert splits == [name] * len(splits)
            assert 0 < len(splits) <= report_page.MAX_EXAMPLES // len(manifest.splits)
    assert "validation" in section


def test_formats_and_colors_are_told(nasty, page):
    text = text_of(page)
    assert "JPEG 113 93.4 % PNG 8 6.61 %" in text
    for name, split in complete_manifest(str(nasty)).splits.items():
        pairs = zip(split.channel_mean, split.channel_std, strict=True)
        assert f"{name} " + " ".join(f"{mean:.1f} ± {std:.1f}" for mean, std in pairs) in text


def test_what_was_fixed_is_counted(page):
    text = text_of(page)
    assert "16 images were re-encoded as JPEG" in text
    assert "format PNG 8 orientation 8" in text


def test_all_pictures_are_small_jpegs(page):
    sources = re.findall(r'src="data:image/jpeg;base64,([^"]*)"', page)
    assert len(sources) > 30
    for source in sources:
        image = Image.open(io.BytesIO(base64.b64decode(source)))
        assert image.format == "JPEG"
        assert max(image.size) <= thumbnails.LARGE_SIDE
    sides = [max(Image.open(io.BytesIO(base64.b64decode(source))).size) for source in sources]
    assert sum(side > thumbnails.SIDE for side in sides) == 6  # three pairs of look-alikes


def test_the_page_stays_below_eight_megabytes_whatever_the_dataset():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (500, 500, 3), np.uint8))
    pictures_of_noise = [thumbnail(encoded(noise, "PNG"), side) for side in (thumbnails.SIDE, thumbnails.LARGE_SIDE)]
    small, large = [len(picture.uri) for picture in pictures_of_noise if picture]
    num_large = look_alikes.MAX_GROUPS * look_alikes.MAX_LARGE
    num_small = (
        look_alikes.MAX_GROUPS * (look_alikes.MAX_MEMBERS - look_alikes.MAX_LARGE)
        + look_alikes.MAX_COMMON * look_alikes.MAX_SHOWN_OF_COMMON
        + len(REASONS) * MAX_SHOWN
        + report_page.MAX_EXAMPLE_CLASSES * report_page.MAX_EXAMPLES
        + MAX_SHOWN_LABELS
    )
    assert num_small * small + num_large * large < 7_500_000


def test_of_a_thousand_classes_the_extremes_are_shown(tmp_path):
    for label in range(1000):
        for number in range(1 + (label % 10 == 0)):
            write(
                tmp_path / "in" / f"n{label:04d}" / f"{number}.jpg",
                encoded(Image.new("L", (8 + label % 90, 16), label % 256)),
            )
    convert(ConvertOptions((Source(str(tmp_path / "in")),), str(tmp_path / "out"), shard_bytes=50_000))
    page = Path(write_report(str(tmp_path / "out"))).read_text()
    text = text_of(page)
    assert "The 25 largest and the 25 smallest of 1,000 classes." in text
    assert "… 950 classes not shown …" in text
    assert "The 12 largest and the 12 smallest of 1,000 classes." in text
    assert "classes have no example in validation: “n" in text
    chart, others = page.partition("<details><summary>The other 950 classes, by name")[::2]
    assert [part.count('<tr data-kind="class"') for part in (chart, others)] == [50, 950]
    assert len(page) < 1_000_000


def test_two_classes_without_a_flaw(few_digits, tmp_path):
    shutil.rmtree(few_digits / "2")
    convert(ConvertOptions((Source(str(few_digits)),), str(tmp_path / "out"), splits=(("train", 1.0),)))
    text = text_of(Path(write_report(str(tmp_path / "out"))).read_text())
    assert "24 inputs = 24 records + 0 rejected" in text
    assert "The shorter side of every image is 32 pixels." in text
    assert "No image had to be re-encoded: all images are stored byte for byte" in text
    assert "No input was rejected: every input is in a shard." in text


def test_the_same_dataset_gives_the_same_page(nasty, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    page = Path(write_report(str(nasty), [str(nasty.parent / "in")])).read_text()
    assert "Report of 2023-11-14 22:13 UTC by jpeg2tpu" in text_of(page)
    assert Path(write_report(str(nasty), [str(nasty.parent / "in")])).read_text() == page


def test_the_command_prints_the_path_and_verify_does_not_mind_the_page(nasty_copy, capsys):
    assert main(["report", str(nasty_copy)]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (f"{nasty_copy}/report.html\n", "")
    assert Path(out.strip()).exists()
    assert verify(str(nasty_copy)).problems == []


OPTIONS = [
    [],
    ["--splits=train=80%,validation=15%,test=5%", "--shard_size=300KB", "--seed=7", "--dedup=near", "--first_label=1"],
    ["--num_shards=train=3,validation=2", "--resize_shorter=30", "--quality=80", "--lossless", "--metadata=strip"],
    ["--validation=12.5%", "--stratify", "--check=header", "--color_profiles=ignore", "--min_side=8"],
    ["--group_by=^(.)/0", "--shard_size=123456"],
    ["--ignore=*.json", "--ignore=a b/x", "--label_type=classes", "--feature=age:float,box:int[4]"],
]


@pytest.mark.parametrize("flags", OPTIONS)
def test_the_command_on_the_page_makes_the_same_shards(flags, few_digits, tmp_path):
    """Options → manifest → command → options."""
    parse = lambda argv: conversion_options(make_parser().parse_known_args(argv)[0])  # noqa: E731
    opts = parse(["convert", f"--input={few_digits}", f"--output={tmp_path}/out", *flags])
    fields = json.loads(
        json.dumps({"sources": [source.fields() for source in opts.sources], "options": opts.shaping()})
    )
    split = Split((Shard("train-00000-of-00001.tfrecord", 1, 1, "0" * 64),), (1, 0), *[(1, 1, 1)] * 4)
    manifest = Manifest(str(tmp_path), ("a", "b"), 0, {"train": split}, 1, {}, fingerprint="0" * 64, **fields)
    words = shlex.split(command_of(manifest))
    assert words[:2] == ["jpeg2tpu", "convert"]
    again = parse(words[1:])
    assert (again.shaping(), again.sources) == (opts.shaping(), opts.sources)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["options"].update(seed="1\n; rm -rf x"),
        lambda manifest: manifest["options"].update(new_option=1),
        lambda manifest: manifest["options"].update(splits=[1, 2]),
        lambda manifest: manifest.update(sources=[{"path": "/a", "split": "", "label_list": "", "only_keys": "/keys"}]),
    ],
)
def test_a_strangers_or_other_commands_options_give_no_command(change, dataset_copy):
    fields = json.loads((dataset_copy / "manifest.json").read_text())
    change(fields)
    (dataset_copy / "manifest.json").write_text(json.dumps(fields))
    manifest = complete_manifest(str(dataset_copy))
    assert command_of(manifest) == ""
    assert "makes the same shards" not in Path(write_report(str(dataset_copy))).read_text()


@pytest.mark.parametrize("option", ["labels", "shard_bytes", "seed"])
def test_a_manifest_without_an_option_has_its_page(option, dataset_copy):
    fields = json.loads((dataset_copy / "manifest.json").read_text())
    del fields["options"][option]
    (dataset_copy / "manifest.json").write_text(json.dumps(fields))
    assert Path(write_report(str(dataset_copy))).exists()


def test_no_manifest_is_one_line_and_exit_code_2(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"error: '{tmp_path}' contains no manifest.json, so it is not a complete dataset" in err


def give_wrong_labels(path: Path) -> None:
    rows = [row._replace(label=10) for row in read_index(path.read_bytes())]
    with path.open("wb") as file:
        write_index(file, rows)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "is missing; run: jpeg2tpu verify --repair"),
        (lambda path: path.write_bytes(b"PAR1"), "cannot be read"),
        (lambda path: shutil.copy(path.with_name("validation-00001-of-00002.parquet"), path), "rows for"),
        (
            lambda path: pq.write_table(pq.read_table(path).drop_columns("dhash"), path),
            "has no column dhash, because an earlier",
        ),
        (give_wrong_labels, "has labels that are not classes"),
    ],
    ids=["missing", "unreadable", "of another shard", "of an earlier version", "with wrong labels"],
)
def test_a_damaged_index_is_one_line_and_leaves_no_page(dataset_copy, capsys, damage, message):
    damage(dataset_copy / "index" / "train-00002-of-00009.parquet")
    assert main(["report", str(dataset_copy)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (dataset_copy / "report.html").exists()


def test_damaged_records_and_sources_that_are_gone_only_lack_their_picture(nasty, nasty_copy):
    for shard in nasty_copy.glob("train-*.tfrecord"):
        shard.write_bytes(shard.read_bytes()[:-50_000])
    rejected = nasty_copy / "rejected.jsonl"
    rejected.write_text(rejected.read_text().replace("/in/", "/was/"))
    page = Path(write_report(str(nasty_copy), [str(nasty.parent)])).read_text()
    assert "cannot be read" in page
    assert "half.jpg" in text_of(page)
    section = page[page.index('id="rejected"') : page.index('id="look-alikes"')]
    assert "<img" not in section
