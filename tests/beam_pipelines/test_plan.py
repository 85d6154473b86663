"""Splits, order and cuts: pure arithmetic, at real sizes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import pickle
from collections import Counter
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders.typecoders import registry
from apache_beam.testing.util import assert_that, equal_to

from beam_pipelines.conversion import plan as plan_module
from beam_pipelines.conversion.combining import CombineInParts
from beam_pipelines.conversion.plan import (
    Plan,
    assign_shards,
    buckets_at,
    by_range,
    choose_split,
    cut,
    hash_position,
    is_measured,
    place_rows,
    range_bits,
    row_splits,
)
from beam_pipelines.conversion.planning.beam_steps import assign
from beam_pipelines.conversion.planning.plan_survey import PlanSurvey, split_sums
from beam_pipelines.conversion.planning.row_batches import RowStore, by_hash, groups_of, in_parts
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.runners import execution
from beam_pipelines.sources.folders import FolderSurvey, split_survey
from beam_pipelines.sources.row_columns import Batch, batches_of, joined
from beam_pipelines.sources.rows import Row
from support.conversion import local

IMAGENET = 1_281_167


@pytest.mark.parametrize(
    ("end", "shard"), [(0, 0), (1, 0), (100_000_000, 0), (100_000_001, 1), (110_000 * IMAGENET, 1409)]
)
def test_a_record_lies_in_the_shard_its_last_byte_falls_in(end, shard):
    plan = Plan(("a", "b"), IMAGENET, {}, {}, "", {"train": {0: 110_000 * IMAGENET}}, 100_000_000, {})
    assert plan.shard_of("train", end) == shard
    assert len(plan.shards["train"]) == 1410


def test_shards_may_be_as_small_as_a_byte_and_splits_empty():
    plan = Plan(("a", "b"), 3, {}, {}, "", {"train": {0: 3}, "test": {}, "rest": {}}, 1, {"rest": 2})
    assert [plan.shard_of("train", end) for end in (0, 1, 2, 3)] == [0, 0, 1, 2]
    assert plan.totals == {"train": 3, "test": 0, "rest": 0}
    assert plan.shards["train"] == [f"train-0000{n}-of-00003.tfrecord" for n in range(3)]
    assert plan.shards["test"] == ["test-00000-of-00001.tfrecord"]
    assert plan.shard_of("rest", 0) == 0


@pytest.mark.parametrize(("total", "count"), [(IMAGENET, 1024), (50_000, 128), (7, 7), (9, 4), (5, 1)])
def test_a_number_of_shards_is_met_and_they_are_equally_full(total, count):
    plan = Plan(("a", "b"), total, {}, {}, "", {"train": {0: total}}, 100_000_000, {"train": count})
    shard_sizes = Counter(plan.shard_of("train", end) for end in range(1, total + 1))
    assert len(plan.shards["train"]) == len(shard_sizes) == count
    assert max(shard_sizes.values()) - min(shard_sizes.values()) <= 1


def options(output: str = "out", **changes) -> ConvertOptions:
    return ConvertOptions((Source("in"),), output, **{"shard_bytes": 200_000, **changes})


def rows(count: int) -> list[Row]:
    return [
        Row(f"c{n % 7}/{n}.jpg", f"/in/{n}", f"c{n % 7}", record_bytes=5_000 + 37 * n % 9_000) for n in range(count)
    ]


def planned(listed: list[Row], opts: ConvertOptions) -> tuple[Plan, dict[str, list[Row]]]:
    """Plans as the pipeline does, the survey in two accumulators."""
    survey, placed = PlanSurvey(opts), place_rows(Batch.from_rows(listed), opts)
    halves = [placed.take(range(start, len(listed), 2)) for start in range(2)]
    plan = survey.extract_output(
        survey.merge_accumulators(survey.add_input(survey.create_accumulator(), half) for half in halves)
    )
    buckets: dict[int, list[int]] = {}
    for number, bucket in enumerate(buckets_at(placed.columns["position"]).tolist()):
        buckets.setdefault(bucket, []).append(number)
    shards: dict[str, list[Row]] = {}
    for bucket, numbers in buckets.items():
        for name, batch in assign_shards(placed.take(numbers), bucket, plan, opts):
            shards.setdefault(name, []).extend(batch.rows())
    return plan, shards


def test_every_shard_but_a_split_s_last_is_within_one_image_of_its_size():
    plan, shards = planned(rows(2000), options())
    assert sorted(shards) == sorted(itertools.chain(*plan.shards.values()))
    for names in plan.shards.values():
        for name in names[:-1]:
            size = sum(row.record_bytes for row in shards[name])
            assert abs(size - 200_000) <= max(row.record_bytes for row in shards[name])


def digest(text: str) -> int:
    """Returns the first 64 bits of a SHA-256."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)


@pytest.mark.parametrize("num_shards", [(), (("train", 3), ("validation", 7))])
@pytest.mark.parametrize("seed", [0, 5])
def test_shards_are_cut_out_of_each_split_in_the_order_of_the_hashes(num_shards, seed):
    """The plan's rule over the whole list at once, which the plan itself never has; shards end with a record."""
    listed = [row._replace(record_bytes=1000) for row in rows(1000)]
    opts = options(shard_bytes=20_000, num_shards=num_shards, seed=seed, splits=(("train", 0.6), ("validation", 0.4)))
    expected: dict[str, Counter[Row]] = {}
    splits = {row.key: "train" if digest(f"{seed}/split/{row.key}") / 2**64 < 0.6 else "validation" for row in listed}
    for split in ("train", "validation"):
        ordered = sorted(
            (row for row in listed if splits[row.key] == split), key=lambda row: digest(f"{seed}/order/{row.key}")
        )
        count = dict(num_shards).get(split) or -(-len(ordered) // 20)
        for number, row in enumerate(ordered):
            shard = number * count // len(ordered) if num_shards else number // 20
            expected.setdefault(f"{split}-{shard:05}-of-{count:05}.tfrecord", Counter())[row] += 1
    plan, shards = planned(listed, opts)
    assert {name: Counter(shard_rows) for name, shard_rows in shards.items()} == expected
    assert sorted(itertools.chain(*plan.shards.values())) == sorted(expected)


def test_the_rows_of_a_shard_are_written_in_the_order_of_the_hashes_however_many_a_bucket_has(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_module, "BUCKET_BITS", 2)
    monkeypatch.setattr(plan_module, "_RANGE_ROWS", 100)
    listed = rows(600)
    opts = options(output=str(tmp_path), splits=(("train", 0.8), ("validation", 0.2)))
    with execution.pipeline(local()) as pipeline:
        halves = [Batch.from_rows(listed[::-2]), Batch.from_rows(listed[::2])]
        batches = pipeline | beam.Create(halves).with_output_types(Batch)
        plans, _ = assign(batches, opts)
        plans | beam.Map(_keep, str(tmp_path / "plan.json"))
    plan = Plan.from_json((tmp_path / "plan.json").read_bytes())
    folder = WorkingFolder.for_plan(str(tmp_path), plan)
    for split, names in plan.shards.items():
        shard_rows = [row for name in names for row in folder.read_rows(name)]
        split_rows = [row for row in listed if choose_split(row, opts) == split]
        assert shard_rows == sorted(split_rows, key=lambda row: digest(f"0/order/{row.key}"))


def _keep(plan: Plan, path: str) -> None:
    with open(path, "w") as file:
        file.write(plan.to_json())


@pytest.mark.parametrize("bits", [0, 1, 5, 12])
def test_rows_are_cut_into_the_same_shards_however_many_ranges_there_are(bits):
    opts = options()
    plan, shards = planned(rows(500), opts)
    ranges = in_parts([by_range(place_rows(Batch.from_rows(rows(500)), opts), bits)])
    assert bits == 0 or len(ranges) > 1
    rows_by_shard: dict[str, list[Row]] = {}
    for number in sorted(ranges):
        for shard, batch in cut(number, bits, ranges[number], plan, opts):
            rows_by_shard.setdefault(shard, []).extend(batch.rows())
    assert {name: set(shard_rows) for name, shard_rows in rows_by_shard.items()} == {
        name: set(shard_rows) for name, shard_rows in shards.items()
    }
    for shard_rows in rows_by_shard.values():
        assert shard_rows == sorted(shard_rows, key=lambda row: digest(f"0/order/{row.key}"))


@pytest.mark.parametrize(("num_rows", "bits"), [(0, 0), (16_383, 0), (50_000, 1), (1_000_000, 5), (10**9, 12)])
def test_a_range_has_some_batches_of_rows(num_rows, bits):
    assert range_bits(num_rows) == bits


def test_the_order_has_4096_ranges_of_a_64_bit_hash():
    assert hash_position(3, "a.jpg") == digest("3/order/a.jpg")
    placed = place_rows(Batch.from_rows(rows(200)), options(seed=3))
    positions = placed.columns["position"]
    assert positions.tolist() == [digest(f"3/order/{row.key}") for row in rows(200)]
    assert buckets_at(positions).tolist() == [digest(f"3/order/{row.key}") // 2**52 for row in rows(200)]


def test_splits_of_a_batch_are_those_that_each_row_has_alone():
    listed = [
        row._replace(split=["", "test"][n % 3 == 0], group=["", "g 1"][n % 5 == 0]) for n, row in enumerate(rows(900))
    ]
    opts = options(splits=(("train", 0.7), ("validation", 0.1), ("rest", 0.2)))
    for some in (listed, listed[::3], rows(900), listed[:1]):
        assert row_splits(Batch.from_rows(some), opts) == [choose_split(row, opts) for row in some]


def test_shares_that_add_up_to_slightly_less_than_1_leave_no_row_without_a_split():
    opts: Any = SimpleNamespace(seed=0, splits=(("train", 0.3), ("validation", 0.3)))
    assert row_splits(Batch.from_rows(rows(90)), opts) == [choose_split(row, opts) for row in rows(90)]


def test_every_row_is_in_one_shard_whatever_the_order_in_which_rows_come():
    listed = rows(500)
    plan, shards = planned(listed, options())
    again = planned(listed[::-1], options())
    assert plan == again[0]
    assert {name: set(shard_rows) for name, shard_rows in shards.items()} == {
        name: set(shard_rows) for name, shard_rows in again[1].items()
    }
    assert sorted(row for shard_rows in shards.values() for row in shard_rows) == sorted(listed)


def test_a_split_s_share_is_met_and_later_inputs_move_no_earlier_one():
    splits = {row.key: choose_split(row, options()) for row in rows(10_000)}
    assert 0.89 < list(splits.values()).count("train") / len(splits) < 0.91
    more = {row.key: choose_split(row, options()) for row in rows(20_000)}
    assert all(more[key] == split for key, split in splits.items())


def test_a_group_stays_together_and_a_named_split_is_kept():
    grouped = [row._replace(group="patient 7") for row in rows(50)]
    assert len({choose_split(row, options()) for row in grouped}) == 1
    assert choose_split(rows(1)[0]._replace(split="test"), options()) == "test"


def test_a_key_that_comes_again_is_rejected_even_in_another_split():
    twice = [Row("a.jpg", "/a", "x", split, record_bytes=9) for split in ("train", "validation")]
    _, shards = planned([*rows(20), *twice], options())
    rejected = [row for shard_rows in shards.values() for row in shard_rows if row.reason]
    assert [(row.key, row.reason) for row in rejected] == [("a.jpg", "duplicate_key")]


@pytest.mark.parametrize(
    ("first", "second", "reason", "other"),
    [
        ("ant", "ant", "", "duplicate_key"),
        ("zebra", "ant", "conflicting_label", "conflicting_label"),
        ("ant", "zebra", "conflicting_label", "conflicting_label"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_the_first_good_one_of_a_key_counts_unless_labels_differ_in_whatever_order_rows_come(
    first, second, reason, other, turned
):
    lines = [
        Row("a.jpg", "/list", "bird", number=1).reject("unknown_label", ""),
        Row("a.jpg", "/a", first, "validation", record_bytes=9, number=2),
        Row("a.jpg", "/a", second, "train", record_bytes=9, number=3),
    ]
    _, shards = planned([*rows(20), *lines[:: -1 if turned else 1]], options())
    reasons = {row.number: row.reason for shard_rows in shards.values() for row in shard_rows if row.key == "a.jpg"}
    assert reasons == {1: "unknown_label", 2: reason, 3: other}


def test_which_of_two_lines_counts_is_part_of_the_fingerprint():
    """Else a conversion that goes on when the lines were swapped could write both, or neither."""
    one, other = (Row("a.jpg", "/a", "x", split, record_bytes=9) for split in ("train", "validation"))
    plan, _ = planned([one._replace(number=1), other._replace(number=2)], options())
    swapped, _ = planned([other._replace(number=1), one._replace(number=2)], options())
    assert plan.fingerprint != swapped.fingerprint


def test_the_fingerprint_follows_rows_and_options_but_not_the_folder():
    base = planned(rows(30), options())[0].fingerprint
    moved = [row._replace(uri=f"/elsewhere{row.uri}") for row in rows(30)]
    assert planned(moved, options())[0].fingerprint == base
    assert planned(rows(30), options(max_rejected=0.5, overwrite=True))[0].fingerprint == base
    for other in (
        planned(rows(31), options()),
        planned(rows(30), options(seed=1)),
        planned(rows(30), options(first_label=1)),
    ):
        assert other[0].fingerprint != base


def test_a_plan_comes_back_as_it_was_written():
    plan, _ = planned(rows(100), options())
    assert Plan.from_json(plan.to_json().encode()) == plan
    assert not plan.all_named
    train_rows = [row._replace(split="train") for row in rows(9)]
    other, _ = planned([*train_rows, train_rows[0]._replace(key="x", split="validation", label="another")], options())
    assert other.all_named
    assert Plan.from_json(other.to_json().encode()) == other
    assert not Plan(("a", "b"), 0, {}, {}, "", {}, 1, {}).all_named


def test_a_plan_counts_the_images_of_each_split():
    listed = [row._replace(split=["train", "test", "test"][n % 3]) for n, row in enumerate(rows(300))]
    listed[:30] = [row.reject("missing", "no such file") for row in listed[:30]]
    for opts in (options(), options(num_shards=(("test", 3),))):
        assert planned(listed, opts)[0].num_images == {"train": 90, "test": 180}


@pytest.mark.parametrize(
    ("num_images", "share"),
    [(1, 1), (1000, 1), (1001, 1000 / 1001), (4000, 1 / 4), (16_000, 1 / 16), (16_001, 1 / 16), (IMAGENET, 1 / 16)],
)
def test_as_many_images_are_measured_as_their_number_asks_for_in_every_part_of_the_order(num_images, share):
    keys = sorted((f"{number}.jpg" for number in range(20_000)), key=functools.partial(hash_position, 3))
    measured = [is_measured(key, 3, num_images) for key in keys]
    for part in (measured, *(measured[begin : begin + 5000] for begin in range(0, 20_000, 5000))):
        assert sum(part) == pytest.approx(share * len(part), abs=4 * (len(part) * share * (1 - share)) ** 0.5)


def test_a_sixteenth_is_measured_at_least():
    keys = [f"{number}.jpg" for number in range(20_000)]
    sixteenth = [is_measured(key, 3, 16_000, "header") for key in keys]  # which has no least share
    assert [is_measured(key, 3, IMAGENET) for key in keys] == sixteenth


def test_of_images_that_are_not_decoded_about_a_thousand_are_measured_however_many_there_are():
    keys = [f"{number}.jpg" for number in range(100_000)]
    for num_images in (16_000, 50_000, 100_000):
        measured = [is_measured(key, 3, num_images, "header") for key in keys[:num_images]]
        assert sum(measured) == pytest.approx(1000, abs=4 * 1000**0.5)


def test_a_larger_split_measures_some_of_the_same_images_and_another_seed_measures_others():
    keys = [f"{number}.jpg" for number in range(5000)]
    few, many, others = (
        {key for key in keys if is_measured(key, seed, num_images)}
        for seed, num_images in ((0, 16_000), (0, 2000), (1, 2000))
    )
    assert few < many
    assert len(many & others) == pytest.approx(len(many) * len(others) / len(keys), rel=0.1)


def test_a_plan_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plan(("a", "b"), 0, {}, {}, "", {}, 1, {}).shard_bytes = 2  # type: ignore[misc]


PLAN = {
    "classes": ["a", "b"],
    "num_inputs": 3,
    "num_rejected": {"missing": 1},
    "examples": {"missing": "'x.jpg'"},
    "fingerprint": "0a" * 32,
    "buckets": {"train": {"0": 600_000, "4095": 200_000}, "test": {"7": 200_000}},
    "shard_bytes": 1,
    "num_shards": {"validation": 1},
    "strangers": [["train", "test", "a", "b"]],
    "remarks": ["a line"],
    "all_named": True,
    "num_images": {"train": 7, "test": 2},
}


def test_a_plan_may_have_a_million_shards_and_any_of_4096_buckets():
    plan = Plan.from_json(json.dumps(PLAN).encode())
    assert plan.buckets == {"train": {0: 600_000, 4095: 200_000}, "test": {7: 200_000}}
    assert plan.disjoint_splits == (("train", "test", "a", "b"),)
    assert (plan.shard_bytes, plan.num_shards, plan.all_named) == (1, {"validation": 1}, True)
    assert [plan.num_images_beside(f"{split}-00000-of-00001.tfrecord") for split in ("train", "test")] == [7, 2]
    assert Plan.from_json(json.dumps(PLAN | {"all_named": False}).encode()).all_named is False
    assert plan.num_images_beside("validation-00000-of-00001.tfrecord") == 0
    assert [plan.size_before("train", bucket) for bucket in (0, 1, 4095)] == [0, 600_000, 600_000]
    assert Plan.from_json(json.dumps(PLAN | {"buckets": {"train": {"0": 1}}}).encode()).totals == {"train": 1}


def test_what_plans_of_earlier_versions_do_not_count_is_0():
    for plan in (Plan.from_json(json.dumps(PLAN).encode()), Plan(("a", "b"), 0, {}, {}, "", {}, 1, {})):
        assert (plan.num_ungrouped, plan.num_outdated, plan.num_bytes, plan.num_duplicates) == (0, 0, 0, {})
        assert (plan.pruned_keys, plan.format) == ((), "tfrecord")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("buckets", {"train": {"0": 1_000_001}}, "the plan has more than 1,000,000 shards"),
        ("buckets", {"train": {"0": 600_001}, "test": {"7": 400_000}}, "the plan has more than 1,000,000 shards"),
        ("buckets", {"train": {"0": 2_000_000}}, "the plan has more than 1,000,000 shards"),
        ("buckets", {"train": {"4096": 1}}, "unknown bucket '4096'"),
        ("buckets", {"train": {"-1": 1}}, "unknown bucket '-1'"),
        ("buckets", {"a-b": {}}, "a split name must be 1 to 64 letters, digits or _, got 'a-b'"),
        ("shard_bytes", 0, "shard_bytes must be a whole number from 1"),
        ("num_images", {"train": -1}, "num_images of 'train' must be a whole number from 0"),
        ("num_shards", {"train": 0}, "num_shards of 'train' must be a whole number from 1"),
        ("left_out", [1], "a key must be text"),
        ("strangers", [["train", "test", "a"]], "a pair must be a list of 4"),
        ("strangers", [["train", "test", "a", "b", "c"]], "a pair must be a list of 4"),
    ],
)
def test_a_plan_that_no_conversion_writes_is_refused(name, value, message):
    with pytest.raises(ValueError, match=message):
        Plan.from_json(json.dumps(PLAN | {name: value}).encode())


def test_a_rejected_row_takes_no_place_and_is_told_by_example():
    bad = [row.reject("missing", "no such file") for row in rows(10)]
    plan, shards = planned([*rows(100)[10:], *bad], options())
    assert plan.num_rejected == {"missing": 10}
    assert plan.examples == {"missing": "'c0/0.jpg': no such file"}
    assert sum(plan.totals.values()) == sum(row.record_bytes for row in rows(100)[10:])
    assert sum(map(len, shards.values())) == 100


def test_rows_pass_between_steps_without_pickling():
    """Planning two hundred thousand rows takes 40 MB more with Beam's own coder."""
    listed = [row._replace(number=7) for row in rows(20)]
    coder, batch = registry.get_coder(Batch), place_rows(Batch.from_rows(listed), options())
    decoded = coder.decode(coder.encode(batch))
    assert decoded.rows() == batch.rows()
    assert decoded.rows() == listed
    assert {type(row) for row in decoded.rows()} == {Row}
    assert list(decoded.column("position")) == list(batch.column("position"))
    assert decoded.column("placed_split") == batch.column("placed_split")
    assert len(coder.encode(Batch.from_rows(listed))) < 0.8 * len(pickle.dumps(listed))


def test_a_batch_is_its_rows_whatever_is_done_with_columns():
    varied = [row._replace(number=n % 2, reason="empty" * (n == 7)) for n, row in enumerate(rows(50))]
    for listed in (varied, varied[:1], [varied[0]] * 9, []):
        batch = Batch.from_rows(listed)
        assert batch.rows() == listed
        assert batch.num_rows == len(listed)
        assert joined([batch, Batch.from_rows(rows(3))]).rows() == [*listed, *rows(3)]
        numbers = range(len(listed))[::-3]
        assert batch.take(numbers).rows() == [listed[number] for number in numbers]
        assert batch.replace(split="test").rows() == [row._replace(split="test") for row in listed]
        assert [row for part in batches_of(listed, 7) for row in part.rows()] == listed
    changed = Batch.from_rows(varied).with_rows({3: varied[3].reject("bad_name", "")})
    assert changed.rows() == [*varied[:3], varied[3].reject("bad_name", ""), *varied[4:]]


def test_rows_of_a_key_come_together_once_all_are_there():
    keyed = [(f"k{number % 37}é\udcff", row) for number, row in enumerate(rows(500))]
    halves = keyed[:200], keyed[200:]
    parts = in_parts(by_hash([row for _, row in half], [key for key, _ in half]) for half in halves)
    groups = [group for packed in parts.values() for group in groups_of(packed)]
    assert len(groups) == 37
    for key, key_rows in groups:
        assert key_rows == [row for row_key, row in keyed if row_key == key]


def test_kept_batches_come_back_in_their_order_and_once():
    store = RowStore([Batch.from_rows(rows(3)), Batch.from_rows([]), Batch.from_rows(rows(20)[3:])])
    assert store.num_rows == 20
    assert [row for batch in store for row in batch.rows()] == rows(20)
    assert [row for batch in store.drain() for row in batch.rows()] == rows(20)
    assert list(store.drain()) == []


def many_classes(count: int) -> list[Row]:
    return [Row(f"class{n:07}/{n}.jpg", label=f"class{n:07}" * (n % 2), record_bytes=9_000) for n in range(count)]


@pytest.mark.parametrize(
    ("combine_fn", "split"),
    [(PlanSurvey(options()), split_sums), (FolderSurvey(options()), split_survey)],
    ids=["plan", "folders"],
)
def test_many_classes_are_combined_in_parts_none_of_which_is_large(combine_fn, split):
    listed = [*many_classes(20_000), Row("x", "/x").reject("empty", "0 bytes")]
    is_placed = isinstance(combine_fn, PlanSurvey)
    batch = place_rows(Batch.from_rows(listed), options()) if is_placed else Batch.from_rows(listed)
    accumulator = combine_fn.add_input(combine_fn.create_accumulator(), batch)
    parts = split(accumulator, 64)
    # 20,000 classes take 0.2 MB and more, and the sizes of buckets, of which there are never more, 0.06 MB.
    assert max(len(pickle.dumps(part)) for part in parts[1:]) < len(pickle.dumps(accumulator)) / 40
    expected = combine_fn.extract_output(accumulator)
    assert combine_fn.extract_output(combine_fn.merge_accumulators(parts)) == expected
    with beam.Pipeline(options=local()) as pipeline:
        batches = pipeline | beam.Create(list(batches_of(listed)))
        if is_placed:
            batches = batches | beam.Map(place_rows, options()).with_output_types(Batch)
        spread = batches | beam.Reshuffle(num_buckets=3)  # so that they are encoded
        assert_that(spread | CombineInParts(combine_fn, split), equal_to([expected]))


def test_no_rows_at_all_make_a_plan_too():
    with beam.Pipeline(options=local()) as pipeline:
        batches = pipeline | beam.Create([])
        empty = PlanSurvey(options()).extract_output(PlanSurvey(options()).create_accumulator())
        assert_that(batches | CombineInParts(PlanSurvey(options()), split_sums), equal_to([empty]))
