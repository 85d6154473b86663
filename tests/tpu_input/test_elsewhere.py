"""The same input for tf.distribute, NumPy, grain and DALI; and prediction's files."""

from __future__ import annotations

import os
import pickle
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

import tpu_input
from support.app_fixtures import records_of
from support.folders import files
from tpu_input import InputConfig, RecordSource, __main__, read_manifest
from tpu_input.dataset_format import records as record_format
from tpu_input.pipeline.images import decode_for_evaluation
from tpu_input.record_source import write_dali_index

CONFIG = InputConfig(image_size=8)


def test_numpy_batches(digits_dataset):
    dataset = tpu_input.make_train_input_fn(digits_dataset, CONFIG)({"batch_size": 4})
    features, label = next(tpu_input.as_numpy(dataset))
    assert isinstance(features["image"], np.ndarray)
    assert (features["image"].shape, label.shape) == ((4, 8, 8, 3), (4,))


def test_a_strategy_gives_every_replica_batches_of_its_own(digits_dataset):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    input_fn = tpu_input.make_train_input_fn(digits_dataset, CONFIG)
    distributed = strategy.distribute_datasets_from_function(
        lambda context: input_fn(tpu_input.params_from_context(context, 32))
    )
    _, label = next(iter(distributed))
    assert strategy.experimental_local_results(label)[0].shape == [32]


def test_a_context_becomes_params():
    context = tf.distribute.InputContext(num_input_pipelines=4, input_pipeline_id=3, num_replicas_in_sync=32)
    params = tpu_input.params_from_context(context, 1024)
    assert params == {"batch_size": 32, "host": 3, "num_hosts": 4, "batches_per_step": 8}


def test_a_source_has_every_record_by_number(digits_dataset):
    source = RecordSource(digits_dataset, "train")
    split = digits_dataset.split("train")
    assert len(source) == split.num_examples
    with ThreadPoolExecutor(4) as pool:
        records = list(pool.map(pickle.loads(pickle.dumps(source)).__getitem__, range(len(source))))
    assert tuple(Counter(record.label for record in records)[label] for label in range(10)) == split.class_counts
    assert len({record.key for record in records}) == len(source)
    assert source[-1] == source[np.int64(len(source) - 1)] == records[-1]
    with pytest.raises(IndexError, match="record 1464 is out of range: there are 1464 records"):
        source[1464]


def test_a_damaged_record_of_a_source_is_named(dataset_copy, monkeypatch):
    source = RecordSource(tpu_input.read_manifest(dataset_copy), "train")
    shard = dataset_copy / "train-00000-of-00009.tfrecord"
    shard.write_bytes(shard.read_bytes()[:40] + b"X" + shard.read_bytes()[41:])
    with pytest.raises(ValueError, match=r"train-00000-of-00009.tfrecord', byte 0: record 0 .* corrupt payload"):
        source[0]
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"byte 0: the shard ends before the end of the record of \d+ bytes"):
        source[0]
    with pytest.raises(ValueError, match="the shard ends"):
        source[1]
    shard.unlink()
    os.mkfifo(shard)  # opening it would wait for a writer
    with pytest.raises(ValueError, match="is not a regular file"):
        source[0]
    shard.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(shard.parent)  # the name of a socket has at most 107 bytes
        listener.bind(shard.name)
        with pytest.raises(ValueError, match="is not a regular file"):
            source[0]


def test_grain_reads_a_source(digits_dataset):
    import grain.python as grain  # slow

    dataset = (
        grain.MapDataset.source(RecordSource(digits_dataset, "train")).shuffle(seed=0).map(lambda record: record.key)
    )
    assert len(set(dataset)) == len(dataset) == 1464


def test_grain_s_own_reader_of_tfrecords_reads_our_shards(digits_dataset):
    from grain.experimental import TFRecordIterDataset  # slow

    for name, split in digits_dataset.splits.items():
        paths = [f"{digits_dataset.path}/{shard.name}" for shard in split.shards]
        payloads = [payload for path in paths for payload in TFRecordIterDataset(path)]
        examples = [tf.train.Example.FromString(payload).features.feature for payload in payloads]
        pairs = [
            (features["image/encoded"].bytes_list.value[0], features["image/class/label"].int64_list.value[0])
            for features in examples
        ]
        assert pairs == [(record.encoded, record.label) for record in records_of(digits_dataset, name)]


def test_dali_s_index_says_where_records_lie(dataset_copy, capsys):
    assert __main__.main(["idx", str(dataset_copy)]) == 0
    assert "11 index files" in capsys.readouterr().out
    lines = (dataset_copy / "index" / "train-00000-of-00009.idx").read_text().splitlines()
    with (dataset_copy / "train-00000-of-00009.tfrecord").open("rb") as file:
        frames = [
            (offset, len(payload) + record_format.FRAME_BYTES) for offset, payload in record_format.read_frames(file)
        ]
    assert [tuple(map(int, line.split())) for line in lines] == frames


def test_dali_s_index_of_an_interrupted_command_is_not_half_there(dataset_copy, monkeypatch):
    write_dali_index(read_manifest(dataset_copy))
    before = files(dataset_copy)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_dali_index(read_manifest(dataset_copy))
    assert files(dataset_copy) == before


def test_a_command_s_mistake_is_said_without_a_traceback(tmp_path, capsys):
    assert __main__.main(["idx", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_prediction_sees_files_in_order_as_evaluation_does(digits):
    files = [str(path) for path in sorted((digits / "7").iterdir())[:5]]
    dataset = tpu_input.make_predict_input_fn(np.array(files), InputConfig(8, layout="HWCN"))({"batch_size": 2})
    batches = [features["image"] for features in dataset.as_numpy_iterator()]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    expected = [decode_for_evaluation(tf.io.read_file(path), CONFIG) for path in files]
    np.testing.assert_array_equal(np.concatenate(batches), expected)
    with pytest.raises(ValueError, match="files is empty"):
        tpu_input.make_predict_input_fn([], CONFIG)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\xff\xd8\xffnothing\xff\xd9"])
def test_a_file_that_cannot_be_predicted_is_named(digits, tmp_path, data):
    (tmp_path / "bad.jpg").write_bytes(data)
    files = [str(next((digits / "7").iterdir())), f"{tmp_path}/bad.jpg"]
    dataset = tpu_input.make_predict_input_fn(files, CONFIG)({"batch_size": 2})
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{tmp_path}/bad.jpg is not a JPEG or PNG file"):
        next(dataset.as_numpy_iterator())
