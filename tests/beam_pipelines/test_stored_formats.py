"""Images of lossless formats stored as PNG, metadata taken away, and datasets without labels."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from beam_pipelines.options import ImageOptions
from support.folders import files
from support.pipelines_commands import refused, run
from tpu_input.dataset_format.jpeg_markers import without_metadata
from tpu_input.dataset_format.records import Manifest, Record, decode, read_frames
from tpu_input.stored_images.check import check_image

LOSSLESS = ImageOptions(lossless=True)


def noise(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    channels = len(mode) if mode != "L" else 1
    values = np.random.default_rng(1).integers(0, 256, (size[1], size[0], channels), np.uint8)
    return Image.fromarray(values.squeeze(), mode)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def records(path: Path) -> dict[str, Record]:
    contents = dict[str, Record]()
    for shard in path.glob("*.tfrecord"):
        with open(shard, "rb") as file:
            contents |= {record.key: record for record in (decode(payload) for _, payload in read_frames(file))}
    return contents


@pytest.mark.parametrize(
    ("data", "is_png"),
    [
        (saved(noise(), "BMP"), True),
        (saved(noise(), "TIFF", compression="tiff_lzw"), True),
        (saved(noise(), "PPM"), True),
        (saved(noise("L"), "PNG"), True),
        (saved(noise(), "WEBP", lossless=True), True),
        (saved(noise(), "WEBP", quality=90), False),
        (saved(noise(), "JPEG"), False),
    ],
    ids=["bmp", "tiff", "ppm", "grey png", "lossless webp", "webp", "jpeg"],
)
def test_the_pixels_of_lossless_formats_are_stored_exactly(data, is_png):
    stored = check_image(data, LOSSLESS)
    opened = Image.open(io.BytesIO(stored.encoded))
    assert opened.format == ("PNG" if is_png else "JPEG")
    if is_png:
        original = Image.open(io.BytesIO(data))
        assert opened.mode == original.mode
        assert opened.tobytes() == original.tobytes()
    assert Image.open(io.BytesIO(check_image(data, ImageOptions()).encoded)).format == "JPEG"


def test_a_plain_png_is_stored_as_it_is_and_others_become_one():
    png = saved(noise(), "PNG")
    assert check_image(png, LOSSLESS)[:1] == (png,)
    assert check_image(png, LOSSLESS).fixed == ""
    for image, why in (
        (noise("RGBA"), "mode RGBA of PNG"),
        (noise().quantize(16), "mode P of PNG"),
        (Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40)), "mode I;16 of PNG"),
    ):
        stored = check_image(saved(image, "PNG"), LOSSLESS)
        assert stored.fixed == why
        assert Image.open(io.BytesIO(stored.encoded)).mode in ("L", "RGB")
        assert check_image(stored.encoded, LOSSLESS).fixed == ""
    assert check_image(png + b"more", LOSSLESS).fixed == "PNG with bytes behind its end"
    turned = Image.Exif()
    turned[0x0112] = 6
    stored = check_image(saved(noise(), "PNG", exif=turned), LOSSLESS)
    assert (stored.fixed, stored.width, stored.height) == ("orientation", 30, 40)
    smaller = check_image(png, ImageOptions(lossless=True, resize_shorter=15))
    assert Image.open(io.BytesIO(smaller.encoded)).size == (20, 15)
    assert smaller.encoded.startswith(b"\x89PNG")


@pytest.mark.long
def test_a_dataset_of_pngs_is_verified_repaired_rewritten_and_trained_on(capsys, tmp_path):
    rng = np.random.default_rng(0)
    for label in "ab":
        (tmp_path / "in" / label).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 256, (24, 24, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"in/{label}/{number}.{'png' if number % 2 else 'bmp'}")
    args = (f"--input={tmp_path}/in", "--lossless", "--shard_size=20KB")
    assert run(capsys, "convert", *args, f"--output={tmp_path}/out")[0] == 0
    for key, record in records(tmp_path / "out").items():
        assert record.encoded.startswith(b"\x89PNG")
        assert Image.open(io.BytesIO(record.encoded)).tobytes() == Image.open(tmp_path / "in" / key).tobytes()
    code, out, _ = run(capsys, "verify", tmp_path / "out")
    assert (code, "no problems found" in out) == (0, True)
    shard, expected = next((tmp_path / "out").glob("train-*")), files(tmp_path / "out")
    shard.write_bytes(b"")
    assert run(capsys, "repair", tmp_path / "out")[0] == 0
    assert files(tmp_path / "out") == expected
    for check in ("header", "decode"):
        command = ("split", tmp_path / "out", "--splits=train=50%,test=50%", f"--check={check}")
        assert run(capsys, *command, f"--output={tmp_path}/{check}")[0] == 0
        before = {key: record.encoded for key, record in records(tmp_path / "out").items()}
        assert {key: record.encoded for key, record in records(tmp_path / check).items()} == before
    assert run(capsys, "report", tmp_path / "out")[0] == 0
    tf = pytest.importorskip("tensorflow")
    import tpu_input

    config = tpu_input.InputConfig(image_size=24, eval_crop=1.0)
    images = tpu_input.make_eval_input_fn(str(tmp_path / "out"), config, "train")({"batch_size": 8})
    features, _ = next(iter(images))
    decoded = {tf.io.decode_png(record.encoded, 3).numpy().tobytes() for record in records(tmp_path / "out").values()}
    assert all(image.tobytes() in decoded for image in features["image"].numpy()[:8])


def with_metadata() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 1
    exif.get_ifd(0x8825)[2] = (1.0, 2.0, 3.0)
    exif[0x010F] = "Maker"
    return saved(noise(), "JPEG", exif=exif, comment=b"secret", xmp=b"<x:xmpmeta>secret</x:xmpmeta>") + b"preview"


def test_metadata_is_taken_away_and_the_pixels_stay_the_same():
    data = with_metadata()
    stored = check_image(data, ImageOptions(metadata="strip"))
    assert stored.noted == ("metadata stripped",)
    assert not any(marker in stored.encoded for marker in (b"secret", b"Exif", b"Maker", b"preview"))
    opened = Image.open(io.BytesIO(stored.encoded))
    assert opened.tobytes() == Image.open(io.BytesIO(data)).tobytes()
    assert not opened.getexif()
    assert check_image(data, ImageOptions()).encoded == data
    again = check_image(stored.encoded, ImageOptions(metadata="strip"))
    assert (again.encoded, again.noted) == (stored.encoded, ())
    text = saved(noise(), "PNG", dpi=(300, 300))
    options = ImageOptions(metadata="strip", lossless=True)
    stored = check_image(text, options)
    assert b"pHYs" in text
    assert b"pHYs" not in stored.encoded
    assert Image.open(io.BytesIO(stored.encoded)).tobytes() == noise().tobytes()


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"keep_rgb": True}, {"restart_marker_rows": 1}])
def test_every_kind_of_jpeg_keeps_its_pixels_without_metadata(options):
    for mode in ("RGB", "L"):
        data = saved(noise(mode), "JPEG", comment=b"secret", exif=b"Exif\0\0" + b"\0" * 99, **options)
        bare = without_metadata(data)
        assert len(bare) < len(data)
        assert b"secret" not in bare
        opened = Image.open(io.BytesIO(bare))
        assert opened.tobytes() == Image.open(io.BytesIO(data)).tobytes()


def test_taking_metadata_away_ends_on_any_bytes():
    rng, data = random.Random(3), with_metadata()
    for _ in range(2000):
        damaged = bytearray(data[: rng.randrange(1, len(data))] if rng.random() < 0.3 else data)
        for _ in range(rng.randrange(9)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        assert len(without_metadata(bytes(damaged))) <= len(damaged)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["flat", "folders", "splits", "list", "parquet"])
def test_images_without_labels_make_a_dataset(capsys, digits, tmp_path, layout):
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = [path for label in "01" for path in sorted((digits / label).iterdir())[:12]]
    source, keys = tmp_path / "in", set[str]()
    source.mkdir()
    for number, path in enumerate(images):
        folder = {"folders": f"x{number % 3}/", "splits": f"{('train', 'test')[number % 2]}/"}.get(layout, "")
        (source / folder).mkdir(exist_ok=True)
        keys.add(f"{folder}{number}.jpg")
        (source / f"{folder}{number}.jpg").write_bytes(path.read_bytes())
    input_path = source
    if layout == "list":
        input_path = source / "list.csv"
        input_path.write_text("image\n" + "".join(f"{number}.jpg\n" for number in range(len(images))))
    if layout == "parquet":
        input_path = tmp_path / "x.parquet"
        pq.write_table(pa.table({"image": [path.read_bytes() for path in images]}), input_path)
    args = (f"--input={input_path}", f"--output={tmp_path}/out", "--unlabelled")
    code, _, err = run(capsys, "convert", *args)
    assert (code, "Traceback" in err) == (0, False), err
    contents = records(tmp_path / "out")
    assert {(record.label, record.class_name) for record in contents.values()} == {((), ())}
    assert Counter(record.encoded for record in contents.values()) == Counter(path.read_bytes() for path in images)
    assert layout == "parquet" or contents.keys() == keys
    manifest = Manifest.from_json((tmp_path / "out/manifest.json").read_bytes(), "")
    assert (manifest.classes, manifest.label_type) == ((), "none")
    assert set(manifest.splits) == ({"train", "test"} if layout == "splits" else {"train", "validation"})
    assert run(capsys, "verify", tmp_path / "out")[0] == 0
    assert run(capsys, "report", tmp_path / "out")[0] == 0
    command = ("reshard", tmp_path / "out", "--shard_size=10KB", f"--output={tmp_path}/again")
    assert run(capsys, *command)[0] == 0
    assert records(tmp_path / "again") == contents
    assert run(capsys, "diff", tmp_path / "out", tmp_path / "again")[0] == 0


def test_training_on_images_without_labels_is_refused(capsys, digits, tmp_path):
    pytest.importorskip("tensorflow")
    import tpu_input
    from support import app_commands

    assert run(capsys, "convert", f"--input={digits}", f"--output={tmp_path}/out", "--unlabelled")[0] == 0
    message = app_commands.refused(capsys, "train", f"--dataset={tmp_path}/out", f"--model_dir={tmp_path}/m")
    assert "have no labels; convert them without --unlabelled to train" in message
    batches = tpu_input.make_eval_input_fn(f"{tmp_path}/out", tpu_input.InputConfig(image_size=16))({"batch_size": 4})
    features, label = next(iter(batches))
    assert (features["image"].shape, label.shape) == ((4, 16, 16, 3), (4, 0))
    assert json.loads((tmp_path / "out/manifest.json").read_text())["options"]["label_type"] == "none"
    assert "--label_list" not in refused(capsys, "convert", f"--input={tmp_path}/none", f"--output={tmp_path}/b")
