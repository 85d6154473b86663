"""Look-alikes, held against a comparison of all records with all others in NumPy, of a set with planted copies."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from PIL import Image, ImageOps
from sklearn.datasets import load_digits, load_sample_images

from beam_pipelines.conversion.output_folder import complete_manifest
from beam_pipelines.convert import convert
from beam_pipelines.images import near_duplicates
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.report import examples, look_alikes, thumbnails
from beam_pipelines.report.index_columns import read_all
from beam_pipelines.report.look_alikes import find_look_alikes
from beam_pipelines.report.page import write_report
from support.nasty import crops, encoded, write


def ramp(start: int, end: int) -> Image.Image:
    """A plain picture: it gets lighter from left to right, and all bits of its hash are the same."""
    return Image.fromarray(np.tile(np.linspace(start, end, 120), (90, 1)).astype(np.uint8)).convert("RGB")


def write_planted(folder: Path) -> list[set[str]]:
    """Writes digits and photographs, and copies of some; returns the groups that are planted."""
    train, validation = folder / "train", folder / "validation"
    china, flower = map(Image.fromarray, load_sample_images().images)
    digits = load_digits()
    small = [Image.fromarray((pixels * 15).astype(np.uint8)).resize((28, 28)) for pixels in digits.images[:200]]
    for number, image in enumerate(small):  # as small and grey as those of Fashion-MNIST
        write(train / f"digit{digits.target[number] % 2}" / f"{number}.png", encoded(image, "PNG"))
    for number, image in enumerate([*crops(china, 15, 0), *crops(flower, 15, 1)]):
        write(train / "photo" / f"{number}.jpg", encoded(image, quality=90))
    groups = []
    for number in range(60):  # the same pixels in another lossless format, in another split or under another label
        place = (validation / "digit0", train / "other")[number % 2]
        kind, ending = [("WEBP", "webp"), ("BMP", "bmp"), ("TIFF", "tif")][number % 3]
        rgb = small[number].convert("RGB")
        options = {"lossless": True} if kind == "WEBP" else {}
        write(train / f"digit{digits.target[number] % 2}" / f"{number}.png", encoded(rgb, "PNG"))
        write(place / f"copy {number}.{ending}", encoded(rgb, kind, **options))
        groups.append({f"{number}.png", f"copy {number}.{ending}"})
    photos = sorted((train / "photo").glob("*.jpg"), key=lambda path: int(path.stem))
    for number in range(3):  # the same bytes
        write(validation / "photo" / f"same {number}.jpg", photos[number].read_bytes())
        groups.append({f"{number}.jpg", f"same {number}.jpg"})
    for number in range(3, 8):  # encoded anew, at another quality or size
        image = Image.open(photos[number])
        image = image if number % 2 else image.resize((image.width * 3 // 4, image.height * 3 // 4))
        write(validation / "photo" / f"near {number}.jpg", encoded(image, quality=60))
        groups.append({f"{number}.jpg", f"near {number}.jpg"})
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    turned = Image.open(photos[8]).rotate(90, expand=True)
    write(validation / "photo" / "turned.jpg", encoded(turned, quality=90, exif=exif))
    groups.append({"8.jpg", "turned.jpg"})
    write(train / "photo" / "ramp.jpg", encoded(ramp(40, 200), quality=90))
    write(validation / "photo" / "ramp copy.webp", encoded(ramp(40, 200), "WEBP", quality=80))
    groups.append({"ramp.jpg", "ramp copy.webp"})
    write(train / "photo" / "other ramp.jpg", encoded(ramp(90, 250), quality=90))  # correlates, and is another
    write(train / "photo" / "grey.png", encoded(Image.new("RGB", (100, 80), (90, 90, 90)), "PNG"))
    write(validation / "photo" / "grey.jpg", encoded(Image.new("RGB", (90, 80), (91, 91, 91))))
    groups.append({"grey.png", "grey.jpg"})
    write(train / "photo" / "white.png", encoded(Image.new("RGB", (100, 80), "white"), "PNG"))
    return groups


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> tuple[Path, list[set[str]]]:
    folder = tmp_path_factory.mktemp("planted")
    groups = write_planted(folder / "in")
    sources = tuple(Source(str(folder / "in" / split), split) for split in ("train", "validation"))
    convert(ConvertOptions(sources, str(folder / "out"), shard_bytes=200_000))
    return folder / "out", groups


class Reference:
    """All records, as TensorFlow reads them, each compared with each."""

    def __init__(self, dataset: Path) -> None:
        names = sorted(map(str, dataset.glob("*.tfrecord")))
        hashes: dict[str, int] = {}
        for path in (dataset / "index").glob("*.parquet"):
            table = pq.read_table(path).to_pydict()
            hashes |= dict(zip(table["key"], table["dhash"], strict=True))
        self.keys, self.splits, self.labels, self.digests, samples = [], [], [], [], []
        for name in names:
            for data in tf.data.TFRecordDataset(name).as_numpy_iterator():
                feature = tf.train.Example.FromString(data).features.feature
                image = feature["image/encoded"].bytes_list.value[0]
                self.keys.append(feature["image/key"].bytes_list.value[0].decode())
                self.splits.append(Path(name).name.split("-")[0])
                self.labels.append(feature["image/class/text"].bytes_list.value[0])
                self.digests.append(hashlib.sha256(image).hexdigest())
                grey = ImageOps.exif_transpose(Image.open(io.BytesIO(image))).convert("L")
                samples.append(np.asarray(grey.resize((32, 32), Image.Resampling.BOX), float).ravel())
        bits = np.array([[int(bit) for bit in f"{hashes[key] % 2**64:064b}"] for key in self.keys])
        first, second = np.triu_indices(len(self.keys), 1)
        self.identical = [(a, b) for a, b in zip(first, second, strict=True) if self.digests[a] == self.digests[b]]
        distance = bits @ (1 - bits).T + (1 - bits) @ bits.T
        near = (distance[first, second] <= near_duplicates.DISTANCE) & np.array(
            [self.digests[a] != self.digests[b] for a, b in zip(first, second, strict=True)]
        )
        first, second = first[near], second[near]
        contents = {frozenset((self.digests[a], self.digests[b])) for a, b in zip(first, second, strict=True)}
        self.num_near = len(contents)  # identical images are one content
        pixels = np.array(samples)
        centred = pixels - pixels.mean(axis=1, keepdims=True)
        norms = np.linalg.norm(centred, axis=1)
        correlation = (centred[first] * centred[second]).sum(axis=1) / np.maximum(norms[first] * norms[second], 1e-9)
        ones = bits.sum(axis=1)
        has_plain_hash = np.minimum(ones, 64 - ones) < 8
        difference = np.abs(pixels[first] - pixels[second]).mean(axis=1)
        flat = (centred.std(axis=1) < 2)[first] & (centred.std(axis=1) < 2)[second]
        is_plain = has_plain_hash[first] | has_plain_hash[second]
        alike = np.where(is_plain, ((correlation >= 0.98) | flat) & (difference <= 3), correlation >= 0.98)
        assert not (np.abs(correlation - 0.98) < 1e-5).any()  # which 32-bit numbers may round to either side
        self.alike = list(zip(first[alike], second[alike], strict=True))

    def groups(self, pairs) -> list[set[int]]:
        """Returns what pairs connect."""
        groups = [{number} for number in range(len(self.keys))]
        for a, b in pairs:
            if groups[a] is not groups[b]:
                groups[a] |= groups[b]
                for member in groups[b]:
                    groups[member] = groups[a]
        return [group for group in {id(group): group for group in groups}.values() if len(group) > 1]

    def counts(self, groups) -> tuple[int, int, int, int]:
        return (
            len(groups),
            sum(map(len, groups)),
            sum(len({self.splits[member] for member in group}) > 1 for group in groups),
            sum(len({self.labels[member] for member in group}) > 1 for group in groups),
        )


@pytest.fixture(scope="module")
def reference(planted) -> Reference:
    return Reference(planted[0])


def look_alikes_of(dataset: Path) -> look_alikes.LookAlikes:
    manifest = complete_manifest(str(dataset))
    return find_look_alikes(manifest, read_all(manifest))


def names(group) -> set[str]:
    return {Path(example.key).name for example in group.examples}


def test_all_groups_are_those_that_comparing_all_with_all_finds(planted, reference, monkeypatch):
    monkeypatch.setattr(look_alikes, "MAX_GROUPS", 1000)
    result = look_alikes_of(planted[0])
    expected = reference.groups([*reference.identical, *reference.alike])
    assert result.all == reference.counts(expected)
    assert result.identical == reference.counts(reference.groups(reference.identical))
    assert (result.num_near, result.num_compared, result.num_crowded) == (reference.num_near, reference.num_near, 0)
    keys = {frozenset(example.key for example in group.examples) for group in result.groups}
    assert keys == {frozenset(reference.keys[member] for member in group) for group in expected}


def test_pictures_are_made_only_of_the_images_that_are_shown(planted, monkeypatch):
    monkeypatch.setattr(look_alikes, "MAX_GROUPS", 2)
    sides = []

    def thumbnail(data: bytes, side: int):
        sides.append(side)
        return thumbnails.thumbnail(data, side)

    monkeypatch.setattr(examples, "thumbnail", thumbnail)
    result = look_alikes_of(planted[0])
    assert result.num_compared > 5
    assert len(sides) == sum(len(group.examples) for group in [*result.groups, *result.common])
    assert sides.count(thumbnails.LARGE_SIDE) == sum(len(group.examples[:2]) for group in result.groups)


def test_every_planted_copy_is_in_a_group_and_what_only_resembles_it_is_not(planted, monkeypatch):
    monkeypatch.setattr(look_alikes, "MAX_GROUPS", 1000)
    name_sets = [names(group) for group in look_alikes_of(planted[0]).groups]
    for group in planted[1]:
        assert any(group <= name_set for name_set in name_sets), group
    assert not any("other ramp.jpg" in name_set or "white.png" in name_set for name_set in name_sets)


def test_identical_images_come_first_and_all_of_them_are_named(planted, reference):
    result = look_alikes_of(planted[0])
    identical = reference.groups(reference.identical)
    assert len(identical) >= 63 > look_alikes.MAX_GROUPS
    assert all(group.num_identical for group in result.groups)
    danger = [(len(group.splits) > 1) + (len(group.class_names) > 1) for group in result.groups]
    assert danger == sorted(danger, reverse=True)
    keys = {example.key for group in [*result.groups, *result.listed] for example in group.examples}
    assert {reference.keys[member] for group in identical for member in group} <= keys
    text = re.sub(r"<[^>]*>|\s+", " ", Path(write_report(str(planted[0]))).read_text())
    assert all(f"copy {number}." in text for number in range(60))
    images = sum(map(len, identical))
    assert f"{images} images are in {len(identical)} groups with the same bytes:" in re.sub(" +", " ", text)


def test_what_is_not_read_is_counted_and_the_page_claims_no_more(planted, reference, monkeypatch):
    monkeypatch.setattr(look_alikes, "MAX_READ", 6)
    result = look_alikes_of(planted[0])
    assert result.identical == reference.counts(reference.groups(reference.identical))
    assert result.num_near == reference.num_near
    assert 3 <= result.num_compared < reference.num_near
    text = re.sub(r"(<[^>]*>|\s)+", " ", Path(write_report(str(planted[0]))).read_text())
    num_skipped = result.num_near - result.num_compared
    assert (
        f"{num_skipped:,} of {result.num_near:,} pairs of images that may look alike were not compared by their pixels"
        in text
    )
    assert f"{result.num_compared:,} of these pairs were compared by their pixels, {num_skipped:,} were not." in text


def test_copies_within_a_split_and_a_class_are_no_reason_to_say_that_nothing_stands_out(few_digits, tmp_path):
    write(few_digits / "0" / "copy.jpg", (few_digits / "0" / "0000.jpg").read_bytes())
    options = ConvertOptions((Source(str(few_digits)),), str(tmp_path / "out"), splits=(("train", 1.0),))
    convert(options)
    page = Path(write_report(str(tmp_path / "out"))).read_text()
    assert "No problems found" not in page
    assert "1 group of look-alikes is within one split and one class" in page


def test_a_record_that_cannot_be_read_is_not_called_compared(planted, tmp_path, reference):
    copy = Path(shutil.copytree(planted[0], tmp_path / "copy"))
    for path in copy.glob("*.tfrecord"):
        path.write_bytes(bytes(path.stat().st_size))
    result = look_alikes_of(copy)
    assert (result.num_near, result.num_compared) == (reference.num_near, 0)
    assert result.identical == reference.counts(reference.groups(reference.identical))


def test_hashes_that_stand_for_several_images_are_counted_as_so_many_pairs():
    hashes, images = np.array([0, 1, 3, 1 << 40], np.uint64), np.array([100, 1, 1, 70])
    result = near_duplicates.near_pairs(hashes, images=images)
    assert result.counts == (0, 100 + 1 + 70 * 100, 100 + 70, 70, 0, 0)
    assert result.pairs.tolist() == [[1, 2]]


def test_a_digest_that_is_none_is_said(planted, tmp_path):
    copy = Path(shutil.copytree(planted[0], tmp_path / "copy"))
    path = next((copy / "index").glob("train-*.parquet"))
    table = pq.read_table(path)
    digests = ["x" * 64, *table["sha256"].to_pylist()[1:]]
    pq.write_table(table.set_column(table.schema.get_field_index("sha256"), "sha256", [digests]), path)
    with pytest.raises(ValueError, match=r"run: jpeg2tpu verify --repair"):
        look_alikes_of(copy)
