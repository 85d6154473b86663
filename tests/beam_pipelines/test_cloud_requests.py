"""What a bucket is asked by beam_pipelines: how many requests, how large, how many at a time; counted at a proxy."""

from __future__ import annotations

import gc
import io
import os
import re
import tarfile
import threading
from collections import Counter

import pytest

from beam_pipelines import storage
from beam_pipelines.convert import convert
from beam_pipelines.options import Source
from beam_pipelines.sources.listing import list_rows
from beam_pipelines.sources.read_ahead import read_rows
from beam_pipelines.sources.rows import Row
from beam_pipelines.verify import verify
from support.conversion import options

pytestmark = pytest.mark.cloud


def test_large_objects_are_sent_and_read_in_large_pieces_and_survive_a_reset_between_them(cloud, proxy):
    bucket = cloud.make_bucket()
    data = os.urandom(40 << 20)
    dropped = iter(["reset", "503", "reset"])
    proxy.fault = lambda request: next(dropped, "") if request.kind == "chunk" else ""
    with storage.create(f"{bucket}/shard") as file:
        file.write(data)
    assert proxy.counts() == {"begin": 1, "chunk": 3 + 3}
    proxy.requests.clear()
    with storage.open_file(f"{bucket}/shard") as file:
        assert b"".join(iter(lambda: file.read(1 << 20), b"")) == data
    assert proxy.counts() == {"look": 1, "read": 3}
    proxy.requests.clear()
    dropped_reads = iter(["cut", "503", "cut"])
    proxy.fault = lambda request: next(dropped_reads, "") if request.kind == "read" else ""
    assert storage.read_bytes(f"{bucket}/shard") == data
    assert proxy.counts() == {"read": 1 + 3}
    assert storage.read_bytes(storage.slice_uri(f"{bucket}/shard", 5, 10)) == data[5:15]


def write_half(path: str, data: bytes) -> None:
    with storage.create(path) as file:
        for _ in range(50):
            file.write(data)
        raise OSError("the disk is full")


def test_a_large_object_is_sent_while_it_is_written_and_is_there_only_when_all_is_written(cloud, proxy):
    bucket = cloud.make_bucket()
    data = os.urandom(1 << 20)
    with storage.create(f"{bucket}/shard") as file:
        for _ in range(50):
            file.write(data)
        assert proxy.counts() == {"begin": 1, "chunk": 3}
        assert cloud.files(bucket) == {}
    assert cloud.get(f"{bucket}/shard") == 50 * data
    proxy.requests.clear()
    with pytest.raises(OSError, match="the disk is full"):
        write_half(f"{bucket}/other", data)
    gc.collect()
    assert proxy.counts() == {"begin": 1, "chunk": 3}
    assert cloud.files(bucket).keys() == {"shard"}


@pytest.mark.parametrize("num_bytes", [100, 20 << 20])
def test_an_answer_that_is_lost_is_no_error_and_an_object_of_another_is(cloud, proxy, num_bytes):
    bucket = cloud.make_bucket()
    proxy.fault = lambda request: "lost" if request.kind in ("upload", "chunk") and not proxy.faults["lost"] else ""
    with storage.create(f"{bucket}/shard", new=True) as file:
        file.write(bytes(num_bytes))
    assert proxy.faults["lost"] == 1
    with pytest.raises(FileExistsError), storage.create(f"{bucket}/shard", new=True) as file:
        file.write(b"x" * num_bytes)
    assert cloud.get(f"{bucket}/shard") == bytes(num_bytes)


_ATTEMPT = re.compile(r"\.tfrecord\.(data|index)-[0-9a-f]{32}$")


def test_an_image_takes_one_request_and_a_shard_thirteen(cloud, proxy, digits):
    bucket = cloud.make_bucket()
    cloud.upload(digits / "1", f"{bucket}/images/1")
    cloud.upload(digits / "2", f"{bucket}/images/2")
    proxy.requests.clear()
    manifest, *_ = convert(options(f"{bucket}/images", f"{bucket}/out", shard_bytes=50_000))
    num_shards = sum(len(split.shards) for split in manifest.splits.values())
    assert num_shards > 5
    images = Counter(request.name for request in proxy.requests if request.name.endswith(".jpg"))
    assert proxy.counts(".jpg").keys() == {"read"}
    assert len(images) == manifest.num_inputs
    assert Counter(images.values())[1] > 200
    assert max(images.values()) == 2  # planning learns from a sample how much of an image is stored
    # A bucket has no renames: the commit copies what an attempt has written, and deletes it.
    attempt_requests = [
        (request.kind, match[1]) for request in proxy.requests if (match := _ATTEMPT.search(request.name))
    ]
    assert Counter(attempt_requests) == {
        (kind, part): num_shards for kind in ("upload", "copy", "delete") for part in ("data", "index")
    }
    assert proxy.counts(".tfrecord") == {}
    # Each index is read once more for the lengths.
    assert proxy.counts(".parquet") == {"upload": 1, "read": num_shards}
    assert proxy.counts(".rows") == {"upload": num_shards, "read": num_shards, "delete": num_shards}
    assert proxy.counts(".receipt") == {"upload": num_shards, "read": num_shards, "delete": num_shards}
    assert len({request.authorized for request in proxy.requests}) == 1
    proxy.requests.clear()
    verify(f"{bucket}/out")
    assert proxy.counts(".tfrecord") == {"look": num_shards, "read": num_shards}
    assert proxy.counts(".parquet") == {"read": num_shards + 1}


def test_a_fresh_conversion_reads_the_manifest_and_lists_the_output_once_before_the_commit(cloud, proxy, few_digits):
    bucket = cloud.make_bucket()
    proxy.requests.clear()
    convert(options(few_digits, f"{bucket}/out", shard_bytes=10_000))
    requests = [(request.kind, request.name) for request in proxy.requests]
    lock, commit = requests.index(("upload", "out/.jpeg2tpu/lock")), requests.index(("look", "out/manifest.json"))
    looks = {("list", "out/"), ("read", "out/manifest.json")}
    before, locked, at_commit = (
        [request for request in part if request in looks]
        for part in (requests[:lock], requests[lock:commit], requests[commit:])
    )
    assert before == [("list", "out/")]  # whether there is anything else than a dataset, before a lock is made there
    assert sorted(locked) == sorted(looks)
    assert sorted(at_commit) == sorted(looks)  # what another may have changed in the meantime


@pytest.mark.parametrize(
    ("num_members", "num_bytes", "most_requests", "most_read"),
    [(30, 2_000_000, 40, 0.003), (300, 110_000, 15, 1.05), (4000, 700, 10, 1.01)],
    ids=["large", "middle", "small"],
)
def test_listing_an_archive_skips_large_members_and_reads_small_ones_in_large_pieces(
    cloud, proxy, tmp_path, num_members, num_bytes, most_requests, most_read
):
    bucket = cloud.make_bucket()
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        for number in range(num_members):
            info = tarfile.TarInfo(f"class{number % 2}/{number}.jpg")
            info.size = num_bytes
            tar.addfile(info, io.BytesIO(bytes(num_bytes)))
    data = (tmp_path / "in.tar").read_bytes()
    cloud.put(f"{bucket}/in.tar", data)
    proxy.requests.clear()
    source = f"{bucket}/in.tar"
    assert len(list(list_rows(Source(source), options(source, f"{bucket}/out")))) == num_members
    assert sum(proxy.counts().values()) <= most_requests
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", read.headers["range"]) for read in proxy.reads("in.tar")]
    assert sum(int(match[2]) + 1 - int(match[1]) for match in ranges if match) <= most_read * len(data)


def test_listing_an_archive_of_digits_takes_few_requests(cloud, proxy, digits, tmp_path):
    bucket = cloud.make_bucket()
    with tarfile.open(tmp_path / "digits.tar", "w") as tar:
        tar.add(digits, "digits")
    cloud.put(f"{bucket}/digits.tar", (tmp_path / "digits.tar").read_bytes())
    proxy.requests.clear()
    opts = options(f"{bucket}/digits.tar", f"{bucket}/out")
    assert len(list(list_rows(Source(f"{bucket}/digits.tar"), opts))) == 1797
    assert sum(proxy.counts().values()) <= 12


def test_images_are_read_many_at_a_time(cloud, proxy, digits):
    bucket = cloud.make_bucket()
    cloud.upload(digits / "1", f"{bucket}/1")
    cloud.upload(digits / "2", f"{bucket}/2")
    rows = [Row(name, f"{bucket}/{name}", num_bytes=num_bytes) for name, num_bytes in storage.list_files(bucket)]
    arrived, enough = [], threading.Event()

    def hold(request):
        arrived.append(request)
        if len(arrived) == 40:
            enough.set()
        return "" if enough.wait(30) else "404"

    proxy.fault = hold
    assert all(isinstance(data, bytes) for _, data in read_rows(rows))
    assert len(arrived) == len(rows) == 359


def test_each_class_folder_of_a_bucket_is_listed_with_a_request_of_its_own(cloud, proxy):
    bucket = cloud.make_bucket()
    names = [
        "loose.jpg",
        "cat/1.jpg",
        "cat/deep/2.jpg",
        "dog/3.jpg",
        "train/cat/4.jpg",
        "train/5.jpg",
        "a//6.jpg",
        "/7.jpg",
    ]
    for name in (*names, "empty/", "cat/"):
        cloud.put(f"{bucket}/in/{name}", name.encode())
    proxy.requests.clear()
    opts = options(f"{bucket}/in", f"{bucket}/out")
    rows = list(list_rows(opts.sources[0], opts))
    assert sorted(row.key for row in rows) == sorted(names)
    assert all(row.version and row.num_bytes == len(row.key) for row in rows)
    assert Counter(request.name for request in proxy.requests if request.kind == "list") == dict.fromkeys(
        (f"in/{folder}" for folder in ("", "cat/", "dog/", "train/", "train/cat/", "a/", "/", "empty/")), 1
    )
