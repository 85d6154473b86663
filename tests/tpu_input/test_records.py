"""The record contract, its golden bytes, and TensorFlow's own opinion of them."""

from __future__ import annotations

import hashlib
import io

import pytest
import tensorflow as tf

from tpu_input.dataset_format import records as record_format

RECORD = record_format.Record("daisy/été 1.jpg", b"\xff\xd8jpeg", 375, 500, 3, 4, "daisy", "ab" * 32)


def test_a_record_comes_back_as_it_was_written():
    assert record_format.decode(record_format.encode(RECORD)) == RECORD
    assert record_format.decode(record_format.encode(RECORD, first_label=1), first_label=1) == RECORD


def test_the_bytes_of_a_record_are_pinned():
    # Changing them would make a resumed or repeated conversion differ from its first run.
    golden = "a51724c0d0abff33810d3298bfe9f435583ecd12980f1a5ae600c2a73e1655be"
    assert hashlib.sha256(record_format.frame(record_format.encode(RECORD))).hexdigest() == golden


def test_tensorflow_reads_the_same_example():
    example = tf.train.Example.FromString(record_format.encode(RECORD, first_label=1))
    assert set(example.features.feature) == set(record_format.FEATURES)
    assert example.features.feature["image/class/label"].int64_list.value == [5]
    assert example.features.feature["image/filename"].bytes_list.value == ["été 1.jpg".encode()]
    assert example.SerializeToString(deterministic=True) == record_format.encode(RECORD, first_label=1)


def test_parse_gives_the_jpeg_and_the_label_counted_from_zero():
    parsed = record_format.parse(tf.constant(record_format.encode(RECORD, first_label=1)), first_label=1)
    assert parsed["encoded"].numpy() == RECORD.encoded
    assert (parsed["label"].numpy(), parsed["label"].dtype) == (4, tf.int32)


@pytest.mark.parametrize(("label", "parsed"), [(2**32 + 1, 2**31 - 1), (-(2**32) + 1, record_format.NO_LABEL)])
def test_a_label_beyond_int32_becomes_none_that_a_class_has(label, parsed):
    serialized = record_format.encode(RECORD._replace(label=label))
    assert record_format.parse(tf.constant(serialized))["label"].numpy() == parsed
    assert record_format.parse_int64(tf.constant(serialized))["label"].numpy() == label


def test_tensorflow_reads_the_frames_and_we_read_tensorflow_s(tmp_path):
    payloads = [b"", b"one", bytes(range(256)) * 99]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_bytes(b"".join(map(record_format.frame, payloads)))
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for payload in payloads:
            writer.write(payload)
    assert ours.read_bytes() == theirs.read_bytes()
    assert [record.numpy() for record in tf.data.TFRecordDataset(str(ours))] == payloads
    assert list(record_format.read_frames(io.BytesIO(theirs.read_bytes()))) == [
        (0, b""),
        (16, b"one"),
        (35, payloads[2]),
    ]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "record 1 at byte 20 is truncated"),
        (lambda data: data[:25], "record 1 at byte 20 is truncated"),
        (lambda data: data[:14] + b"X" + data[15:], "record 0 at byte 0 has a corrupt payload"),
        (lambda data: data[:20] + b"\xff" + data[21:], "record 1 at byte 20 has a corrupt length"),
    ],
)
def test_a_damaged_file_names_the_record(damage, message):
    with pytest.raises(ValueError, match=message):
        list(record_format.read_frames(io.BytesIO(damage(record_format.frame(b"four") * 2))))


def test_what_is_no_example_of_ours_is_refused_by_name():
    other = tf.train.Example()
    other.features.feature["label"].int64_list.value.append(1)
    with pytest.raises(ValueError, match="feature 'image/channels' has 0 values of int, but must have 1"):
        record_format.decode(other.SerializeToString())
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        record_format.decode(b"\xff\xff\xff")


def test_a_manifest_comes_back_as_it_was_written(digits_dataset):
    assert record_format.Manifest.from_json(digits_dataset.to_json(), digits_dataset.path) == digits_dataset


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "is not a manifest"),
        ("[1", "is not a manifest"),
        ('{"format_version": 2}', "format_version is 2, this package reads 1"),
        ('{"format_version": 1, "classes": []}', "is not a manifest"),
    ],
)
def test_what_is_no_manifest_is_refused_with_its_path(text, message):
    with pytest.raises(ValueError, match=f"somewhere/manifest.json .*{message}"):
        record_format.Manifest.from_json(text, "somewhere")


def test_an_unknown_split_is_answered_with_those_there_are(digits_dataset):
    with pytest.raises(ValueError, match="has no split 'test'; it has 'train', 'validation'"):
        digits_dataset.split("test")
