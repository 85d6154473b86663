"""Records: their golden bytes, and what TensorFlow reads of them."""

from __future__ import annotations

import hashlib
import io

import pytest
import tensorflow as tf

from tpu_input.dataset_format import records as record_format

RECORD = record_format.Record("daisy/été 1.jpg", b"\xff\xd8jpeg", 375, 500, 3, 4, "daisy", "ab" * 32)
SEVERAL_LABELS = RECORD._replace(label=(0, 2), class_name=("daisy", "été"))


def test_a_record_comes_back_as_it_was_written():
    assert record_format.decode(record_format.encode(RECORD)) == RECORD
    assert record_format.decode(record_format.encode(RECORD, first_label=1), first_label=1) == RECORD


@pytest.mark.parametrize("first_label", [0, 1])
@pytest.mark.parametrize("record", [RECORD, SEVERAL_LABELS, SEVERAL_LABELS._replace(label=(), class_name=())])
def test_further_features_and_several_labels_come_back_with_their_types(record, first_label):
    record = record._replace(features={"author": ("Zoë",), "image/zoom": (0.5, 2.0), "a count": (3, -4)})
    assert record_format.decode(record_format.encode(record, first_label), first_label) == record


def test_a_text_that_is_not_utf_8_has_replacement_characters():
    example = tf.train.Example.FromString(record_format.encode(RECORD))
    example.features.feature["author"].bytes_list.value.append(b"Zo\xeb")
    assert record_format.decode(example.SerializeToString()).features == {"author": ("Zo\ufffd",)}


def test_the_image_of_a_frame_is_found_by_its_feature():
    framed = record_format.frame(record_format.encode(RECORD))
    assert record_format.image_of(framed) == RECORD.encoded
    example = tf.train.Example()
    example.features.feature["png"].bytes_list.value.append(b"another")
    assert record_format.image_of(record_format.frame(example.SerializeToString()), "png") == b"another"
    example.features.feature["png"].bytes_list.value.append(b"a second")
    for data, message in (
        (b"", "0 records in the bytes of one"),
        (framed * 2, "2 records in the bytes of one"),
        (record_format.frame(b"\xff\xff\xff"), r"not a tf\.train\.Example"),
        (record_format.frame(b""), "feature 'png' has 0 values, but must have 1"),
        (record_format.frame(example.SerializeToString()), "feature 'png' has 2 values, but must have 1"),
    ):
        with pytest.raises(ValueError, match=message):
            record_format.image_of(data, "png")


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


@pytest.mark.parametrize(("key", "name"), [("1.jpg", "1.jpg"), ("daisy/1.jpg", "1.jpg"), ("a/b/c/1.jpg", "1.jpg")])
@pytest.mark.parametrize(("channels", "colorspace"), [(1, b"Grayscale"), (3, b"RGB")])
def test_file_name_and_colorspace_are_those_of_imagenet_s_records(key, name, channels, colorspace):
    record = RECORD._replace(key=key, channels=channels)
    features = tf.train.Example.FromString(record_format.encode(record)).features.feature
    assert features["image/filename"].bytes_list.value == [name.encode()]
    assert features["image/colorspace"].bytes_list.value == [colorspace]
    assert features["image/channels"].int64_list.value == [channels]


def test_parse_gives_the_jpeg_and_the_label_counted_from_zero():
    parsed = record_format.parse(tf.constant(record_format.encode(RECORD, first_label=1)), first_label=1)
    assert parsed["encoded"].numpy() == RECORD.encoded
    assert (parsed["label"].numpy(), parsed["label"].dtype) == (4, tf.int32)
    assert record_format.parse(tf.constant(record_format.encode(RECORD)))["label"].numpy() == 4


@pytest.mark.parametrize("first_label", [0, 1])
@pytest.mark.parametrize(
    ("labels", "parsed"),
    [
        ((), [0, 0, 0]),
        ((0,), [1, 0, 0]),
        ((1, 2), [0, 1, 1]),
        ((2, 2), [0, 0, 1]),
        ((3,), [-(2**31)] * 3),
        ((-1, 1), [-(2**31)] * 3),
    ],
)
def test_parse_gives_a_one_for_each_class_of_several_or_none_at_all(labels, parsed, first_label):
    serialized = record_format.encode(SEVERAL_LABELS._replace(label=labels), first_label)
    example = record_format.parse(tf.constant(serialized), first_label, num_labels=3)
    assert (example["label"].numpy().tolist(), example["label"].dtype) == (parsed, tf.int32)
    assert example["encoded"].numpy() == SEVERAL_LABELS.encoded


def test_a_record_without_labels_has_none_of_several():
    assert record_format.parse(tf.constant(b""), num_labels=2)["label"].numpy().tolist() == [0, 0]


@pytest.mark.parametrize("first_label", [0, 1])
def test_a_missing_label_is_the_smallest_int32(first_label):
    unlabeled = tf.constant(tf.train.Example().SerializeToString())
    assert record_format.NO_LABEL == -2147483648
    assert record_format.parse(unlabeled, first_label)["label"].numpy() == -2147483648
    assert record_format.parse_int64(unlabeled, first_label)["label"].numpy() == -2147483648
    assert record_format.parse(unlabeled, first_label)["encoded"].numpy() == b""


@pytest.mark.parametrize(("label", "parsed"), [(2**32 + 1, 2**31 - 1), (-(2**32) + 1, -(2**31))])
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
    twice = tf.train.Example.FromString(record_format.encode(RECORD))
    twice.features.feature["image/height"].int64_list.value.append(375)
    with pytest.raises(ValueError, match="feature 'image/height' has 2 values of int, but must have 1"):
        record_format.decode(twice.SerializeToString())
