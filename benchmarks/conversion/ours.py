"""One way of converting with this repository, or with its environment, in a process of its own.

    python -m benchmarks.conversion.ours WAY FOLDER_OF_CLASSES OUTPUT [FLAG …]; __main__.py starts it

Each function is one way; what it does not need it does not import.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

# About 100 MB of LARGE or SMALL photographs; a benchmark of few of them makes several shards all the same.
SHARD_BYTES = int(os.environ.get("SHARD_BYTES", 100_000_000))


def plain_loop(folder: str, output: str) -> None:
    """Reads, decodes whole, encodes an Example, frames it with checksums and writes, one image after the other.

    This is what any converter that checks its images has to do.
    """
    import io

    from PIL import Image

    from tpu_input.dataset_format.records import Record, encode, frame

    Path(output).mkdir(parents=True, exist_ok=True)
    with open(f"{output}/plain.tfrecord", "wb") as shard:
        for path in sorted(Path(folder).rglob("*.jpg")):
            data = path.read_bytes()
            image = Image.open(io.BytesIO(data))
            image.load()
            label = int(path.parent.name.removeprefix("class"))
            record = Record(path.name, data, image.height, image.width, 3, label, path.parent.name, "0" * 64)
            shard.write(frame(encode(record)))


def convert(folder: str, output: str, *flags: str) -> None:
    from beam_pipelines.__main__ import main

    sys.exit(main(["convert", f"--input={folder}", f"--output={output}", f"--shard_size={SHARD_BYTES}", *flags]))


def beam_processes(folder: str, output: str) -> None:
    """The same in two of Beam's own worker processes."""
    from apache_beam.options.pipeline_options import PipelineOptions

    from beam_pipelines.convert import convert as convert_by_beam
    from beam_pipelines.options import ConvertOptions, Source

    flags = ["--runner=FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    options = ConvertOptions((Source(folder),), output, shard_bytes=SHARD_BYTES)
    convert_by_beam(options, PipelineOptions(flags))


def reference(folder: str, output: str) -> None:
    """The shape of tensorflow/tpu's tools/datasets/jpeg_to_tf_record.py, as publicly described.

    A list of path,label ──Map: read, decode with TensorFlow for the size, tf.train.Example──▶ WriteToTFRecord. The
    original leaves the number of shards to the runner, which locally is one; here it is as many as hold SHARD_BYTES.
    It decodes in a session made for each image, in whose favor this uses an eager operation.
    """
    import apache_beam as beam
    import tensorflow as tf
    from apache_beam.options.pipeline_options import PipelineOptions

    def to_example(line: str) -> bytes:
        path, label = line.rsplit(",", 1)
        data = tf.io.gfile.GFile(path, "rb").read()
        height, width, _ = tf.io.decode_jpeg(data, channels=3).shape

        def integer(value: int) -> tf.train.Feature:
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

        def text(value: bytes) -> tf.train.Feature:
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

        feature = {"image/height": integer(height), "image/width": integer(width), "image/encoded": text(data)}
        feature |= {"image/class/label": integer(int(label) + 1), "image/filename": text(path.encode())}
        return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())

    paths = sorted(Path(folder).rglob("*.jpg"))
    num_shards = -(-sum(path.stat().st_size for path in paths) // SHARD_BYTES)
    lines = [f"{path},{path.parent.name.removeprefix('class')}" for path in paths]
    Path(output).mkdir(parents=True, exist_ok=True)
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        examples = pipeline | beam.Create(lines) | beam.Map(to_example)  # serialized tf.train.Example
        examples | beam.io.WriteToTFRecord(f"{output}/train", num_shards=num_shards)


def slow_plain(folder: str, output: str) -> None:
    """Reads and checks one image at a time from storage in which opening a file takes time."""
    from beam_pipelines.options import ImageOptions
    from tpu_input.stored_images.check import check_image

    storage = slow_storage()
    for path in Path(folder).rglob("*.jpg"):
        check_image(storage.read_bytes(str(path)), ImageOptions())


def slow_convert(folder: str, output: str) -> None:
    """The same storage, and convert; all in this process, as writers of their own would find it fast."""
    slow_storage()
    convert(folder, output, "--num_processes=1")


def slow_storage() -> ModuleType:
    """Makes opening a file take 50 ms."""
    import time

    from beam_pipelines import storage
    from beam_pipelines.storage import local as local_files

    read = local_files.read_bytes

    def slow(path: str, start: int, end: int | None, version: int) -> bytes:
        time.sleep(0.05)
        return read(path, start, end, version)

    local_files.read_bytes = slow
    return storage


WAYS = {
    "plain": plain_loop,
    "convert": convert,
    "beam_processes": beam_processes,
    "reference": reference,
    "slow_plain": slow_plain,
    "slow_convert": slow_convert,
}

if __name__ == "__main__":
    WAYS[sys.argv[1]](*sys.argv[2:])
