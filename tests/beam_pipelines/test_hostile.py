"""A corpus in which something is wrong with almost every file; each reason code has one that triggers it."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from beam_pipelines.convert import convert
from beam_pipelines.images.rejection_reasons import REASONS
from beam_pipelines.options import ConvertOptions, ImageOptions, Source
from beam_pipelines.verify import verify
from tpu_input import InputConfig, eval_steps, make_eval_input_fn


def picture(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def slow_jpeg() -> bytes:
    """A progressive JPEG of 4 megapixels in 5,000 scans."""
    data = encoded(Image.new("L", (2000, 2000)), progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * 4995 + b"\xff\xd9"


def damaged_png() -> bytes:
    data = bytearray(encoded(picture(1), "PNG"))
    data[len(data) // 2] ^= 0xFF
    return bytes(data)


HOSTILE = {  # file: (bytes, reason)
    "empty.jpg": (b"", "empty"),
    "page.jpg": (b"<html>404</html>", "not_an_image"),
    "zip.jpg": (b"PK\x03\x04" + b"\0" * 100, "not_an_image"),
    "picture.jxl": (b"\xff\x0a" + bytes(100), "unsupported_format"),
    "header.jpg": (b"\xff\xd8\xff\xe0", "corrupt"),
    "slow.jpg": (slow_jpeg(), "too_slow"),
    "half.jpg": (encoded(picture(2, (400, 300)))[:5000], "truncated"),
    "damaged.png": (damaged_png(), "corrupt"),
    "bomb.png": (encoded(Image.new("1", (2000, 2001)), "PNG"), "too_large"),
    "pixel.gif": (encoded(Image.new("P", (1, 1)), "GIF"), "too_small"),
    "dance.gif": (encoded(picture(3), "GIF", save_all=True, append_images=[picture(4)]), "animated"),
    "floats.tiff": (encoded(picture(14).convert("F"), "TIFF"), "unknown_range"),
    "Ünï çödé \U0001f600.jpg": (encoded(picture(5)), ""),
    "quote'\"<b>.jpg": (encoded(picture(6)), ""),
    "new\nline.jpg": (encoded(picture(7)), ""),
    "no_ending": (encoded(picture(8)), ""),
    "really_a_png.jpg": (encoded(picture(9), "PNG"), ""),
    "really_a_jpeg.png": (encoded(picture(10)), ""),
    "trailing.jpg": (encoded(picture(11)) + b"trailing rubbish", ""),
    "sixteen_bits.png": (encoded(Image.fromarray(np.full((30, 40), 40_000, np.uint16)), "PNG"), ""),
    "cmyk.jpg": (encoded(picture(12).convert("CMYK")), ""),
    "photo.tiff": (encoded(picture(13), "TIFF"), ""),
}


BAD_LINES = {  # of a list with --labels a, b: reason
    "a/good3.jpg,a,": "duplicate_key",
    "a/gone.jpg,a,": "missing",
    "a,a,": "unreadable",  # a folder
    ",a,": "bad_line",
    "a/really_a_png.jpg,,": "no_label",
    "a/no_ending,dog,": "unknown_label",
    "a/cmyk.jpg,a,no/split": "bad_split",
    "a/trailing.jpg,a,train,one": "conflicting_split",
    "a/photo.tiff,a,validation,one": "conflicting_split",
}
FOLDER = {
    "system_file",
    "missing",
    "no_label",
    "unreadable",
    "bad_name",
    "bad_member",
    "hidden",
    "no_class",
    "other_file",
    "conflicting_label",
    "duplicate",
}  # see the fixture


@pytest.fixture
def hostile(tmp_path) -> Path:
    folder = tmp_path / "hostile"
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
        for number in range(20):
            (folder / label / f"good{number}.jpg").write_bytes(encoded(picture(100 + number + 50 * (label == "b"))))
    for name, (data, _) in HOSTILE.items():
        (folder / "a" / name).write_bytes(data)
    os.symlink("/nowhere.jpg", folder / "a" / "dead_link.jpg")
    os.mkfifo(folder / "a" / "pipe.jpg")
    (Path(os.fsdecode(bytes(folder))) / "a" / os.fsdecode(b"latin1-\xe9.jpg")).write_bytes(encoded(picture(15)))
    with tarfile.open(folder / "a" / "in.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("../out.jpg"))
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_bytes(b"ref")
    (folder / "notes").mkdir()
    (folder / "notes" / "1.txt").write_bytes(b"a note")
    (folder / "a" / "good1.jpg.json").write_bytes(b"{}")
    (folder / ".DS_Store").write_bytes(b"Bud1")
    (folder / "a" / "Thumbs.db").write_bytes(b"\xd0\xcf")
    (folder / "stray.jpg").write_bytes(encoded(picture(14)))
    (folder / "a" / "twice.jpg").write_bytes(encoded(picture(100)))  # as good0.jpg
    (folder / "b" / "also_in_a.jpg").write_bytes(encoded(picture(101)))  # as a/good1.jpg
    return folder


def reasons(output: Path) -> dict[str, str]:
    lines = (output / "rejected.jsonl").read_text().splitlines()
    return {line["key"]: line["reason"] for line in map(json.loads, lines)}


URL_REASONS = {
    *("bad_url", "private_address", "unreachable", "timeout", "http_NNN", "too_many_redirects", "bad_response"),
    "robots",
}


def convert_all(path: Path, output: Path, **changes):
    options = ConvertOptions((Source(str(path)),), str(output), splits=(("train", 0.5), ("validation", 0.5)), **changes)
    return convert(options)[0]


def test_every_hostile_file_of_a_folder_is_kept_or_rejected_for_its_reason(hostile, tmp_path):
    images_ = ImageOptions(min_side=8, max_pixels=4_000_000)
    manifest = convert_all(hostile, tmp_path / "out", dedup="exact", max_rejected=1.0, images=images_)
    expected = {f"a/{name}": reason for name, (_, reason) in HOSTILE.items() if reason}
    expected |= {"a/dead_link.jpg": "missing", "stray.jpg": "no_label"}
    expected |= {".DS_Store": "system_file", "a/Thumbs.db": "system_file"}
    expected |= {"a/pipe.jpg": "unreadable", "a/latin1-\\xe9.jpg": "bad_name"}
    expected |= {"a/in/../out.jpg": "bad_member", ".git/HEAD": "hidden", "notes/1.txt": "no_class"}
    expected |= {"a/good1.jpg.json": "other_file"}
    expected |= {"a/good1.jpg": "conflicting_label", "b/also_in_a.jpg": "conflicting_label"}
    actual = reasons(tmp_path / "out")
    one_of_two = {key for key in ("a/twice.jpg", "a/good0.jpg") if key in actual}
    assert len(one_of_two) == 1
    assert actual == expected | dict.fromkeys(one_of_two, "duplicate")
    assert verify(manifest.path).problems == []
    assert sum(manifest.num_fixed.values()) == 4


def test_there_is_an_input_for_every_reason():
    other_reasons = {
        "left_out",
        "bad_record",
        "bad_feature",
        "ignored",
    }  # test_rewrite.py, test_tfrecord_files.py, test_features.py
    other_reasons |= URL_REASONS  # test_urls.py
    tested_reasons = (
        {reason for _, reason in HOSTILE.values() if reason} | FOLDER | set(BAD_LINES.values()) | other_reasons
    )
    assert tested_reasons == REASONS.keys()


def test_every_bad_line_of_a_list_is_rejected_for_its_reason(hostile, tmp_path):
    lines = [f"a/good{n}.jpg,a," for n in range(20)] + [f"b/good{n}.jpg,b," for n in range(20)]
    (hostile / "list.csv").write_text("\n".join(["image,label,split,group", *lines, *BAD_LINES]))
    manifest = convert_all(hostile / "list.csv", tmp_path / "out", labels=("a", "b"), max_rejected=1.0)
    assert sorted(reasons(tmp_path / "out").values()) == sorted(BAD_LINES.values())
    assert manifest.num_inputs == len(lines) + len(BAD_LINES)
    assert verify(manifest.path).problems == []


def test_what_is_kept_of_a_hostile_corpus_can_all_be_read_by_tensorflow(hostile, tmp_path):
    manifest = convert_all(hostile, tmp_path / "out", max_rejected=1.0)
    for split in manifest.splits:
        dataset = make_eval_input_fn(manifest, InputConfig(16), split)({"batch_size": 8})
        weights = [features["weight"] for features, _ in dataset.take(eval_steps(manifest, split, 8))]
        assert float(tf.reduce_sum(weights)) == manifest.split(split).num_examples
