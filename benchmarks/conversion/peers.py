"""One peer's way of converting, in a process and an environment of its own; __main__.py starts it.

    python benchmarks/conversion/peers.py tfds|webdataset|mds|litdata FOLDER_OF_CLASSES OUTPUT

Needs benchmarks/requirements-peers.txt (mds and litdata: requirements-peers-torch.txt) and nothing of this repository.
Each does what its documentation shows for a folder of JPEGs: the files' bytes and a label, shards of SHARD_BYTES.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHARD_BYTES = int(os.environ.get("SHARD_BYTES", 100_000_000))
SHARD_IMAGES = int(os.environ.get("SHARD_IMAGES", 1_000_000_000))  # webdataset's, at most
CORES = len(os.sched_getaffinity(0))


def labelled(folder: str) -> Iterator[tuple[Path, int]]:
    """Yields (path, label), the classes being folders."""
    for path in sorted(Path(folder).rglob("*.jpg")):
        yield path, int(path.parent.name.removeprefix("class"))


def tfds(folder: str, output: str) -> None:
    """A GeneratorBasedBuilder over class folders, which is how TFDS turns an image folder into TFRecords.

    https://www.tensorflow.org/datasets/add_dataset; tfds.ImageFolder itself reads the files and writes nothing.
    """
    import tensorflow_datasets
    from tensorflow_datasets import core

    class Photographs(core.GeneratorBasedBuilder):
        VERSION = core.Version("1.0.0")
        pkg_dir_path = Path(__file__).parent

        def _info(self) -> Any:
            features = tensorflow_datasets.features
            image = features.Image(shape=(None, None, 3), encoding_format="jpeg")
            label = features.ClassLabel(names=[f"class{number}" for number in range(10)])
            return core.DatasetInfo(
                builder=self,
                description="Photographs.",
                features=features.FeaturesDict({"image": image, "label": label}),
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[tuple[str, dict[str, Any]]]:
            for path, label in labelled(folder):
                yield path.name, {"image": path, "label": label}

    # Its least size of a shard is 64 MiB unless it is told otherwise.
    sizes = {"min_shard_size": min(SHARD_BYTES, 64 << 20), "max_shard_size": SHARD_BYTES}
    config = tensorflow_datasets.download.DownloadConfig(**sizes)
    Photographs(data_dir=output).download_and_prepare(download_config=config)


def webdataset(folder: str, output: str) -> None:
    """ShardWriter: https://webdataset.github.io/webdataset/creating/."""
    from webdataset import ShardWriter

    Path(output).mkdir(parents=True, exist_ok=True)
    with ShardWriter(f"{output}/train-%06d.tar", maxcount=SHARD_IMAGES, maxsize=SHARD_BYTES, verbose=0) as shards:
        for path, label in labelled(folder):
            shards.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": label})


def mds(folder: str, output: str) -> None:
    """MDSWriter: https://docs.mosaicml.com/projects/streaming/en/stable/, preparing_datasets.

    The column is "bytes", the files as they are; the column type "jpeg" would encode them anew.
    """
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=output, columns=columns, hashes=["sha1"], size_limit=SHARD_BYTES) as shards:
        for path, label in labelled(folder):
            shards.write({"image": path.read_bytes(), "label": label})


def litdata(folder: str, output: str) -> None:
    """Optimize with one process per core: https://github.com/Lightning-AI/litData."""
    from litdata import optimize

    optimize(fn=to_item, inputs=list(labelled(folder)), output_dir=output, chunk_bytes=SHARD_BYTES, num_workers=CORES)


def to_item(item: tuple[Path, int]) -> dict[str, Any]:
    """Returns what litData stores; found by name in its processes, so it is not inside of litdata()."""
    path, label = item
    return {"image": path.read_bytes(), "label": label}


WAYS = {"tfds": tfds, "webdataset": webdataset, "mds": mds, "litdata": litdata}

if __name__ == "__main__":
    WAYS[sys.argv[1]](*sys.argv[2:])
