"""All rows → the Plan, as Beam combines: each worker surveys what it sees, and the surveys add up.

Row ──add──▶ accumulator ──merge──▶ accumulator ──extract──▶ Plan (one)
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from beam_pipelines.conversion.plan import Plan, by_bucket, choose_split, cost
from beam_pipelines.options import ConvertOptions
from beam_pipelines.sources.rows import Row


class Survey(beam.CombineFn):
    """Row → Plan.

    The accumulator is ((split that an input names, class) pairs, inputs, reasons, examples, sum of hashes, costs by
    (split, bucket)).
    """

    def __init__(self, options: ConvertOptions) -> None:
        self._options = options

    def create_accumulator(self) -> Any:
        return set(), 0, Counter(), {}, 0, Counter()

    def add_input(self, accumulator: Any, row: Row) -> Any:
        classes, inputs, reasons, examples, hashes, costs = accumulator
        if row.reason:
            reasons[row.reason] += 1
            _keep_smallest(examples, {row.reason: f"{row.key!r}: {row.detail}"})
        else:
            classes.add((row.split, row.label))
        split = choose_split(row, self._options)
        number, _ = by_bucket(row, self._options.seed)
        costs[split, number] += cost(row, split, self._options)
        # A sum does not depend on the order in which rows come. The folder they lie in is no part of what they are, nor
        # how often an object of a bucket was written.
        what = repr(row._replace(uri="", version=0)).rsplit(", version=0, ", 1)
        digest = hashlib.sha256(", ".join(what).encode()).digest()
        return classes, inputs + 1, reasons, examples, hashes + int.from_bytes(digest, "big"), costs

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        all_classes, all_inputs, all_reasons, all_examples, all_hashes, all_costs = self.create_accumulator()
        for classes, inputs, reasons, examples, hashes, costs in accumulators:
            all_classes |= classes
            all_inputs += inputs
            all_reasons.update(reasons)
            _keep_smallest(all_examples, examples)
            all_hashes += hashes
            all_costs.update(costs)
        return all_classes, all_inputs, all_reasons, all_examples, all_hashes, all_costs

    def extract_output(self, accumulator: Any) -> Plan:
        classes, inputs, reasons, examples, hashes, costs = accumulator
        # Not sorted: the order of the splits decides which hash falls into which.
        what = json.dumps([self._options.shaping(), inputs, hashes % 2**256])
        buckets: dict[str, dict[int, int]] = {}
        for (split, number), total in sorted(costs.items()):
            buckets.setdefault(split, {})[number] = total
        return Plan(
            classes=self._options.labels or tuple(sorted({label for _, label in classes})),
            num_inputs=inputs,
            num_rejected=dict(sorted(reasons.items())),
            examples=dict(sorted(examples.items())),
            fingerprint=hashlib.sha256(what.encode()).hexdigest(),
            buckets=buckets,
            shard_bytes=self._options.shard_bytes,
            num_shards=dict(self._options.num_shards),
            strangers=tuple(_strangers(classes)),
            all_named=all(split for split, _ in classes),
        )


def _strangers(classes: set[tuple[str, str]]) -> Iterator[tuple[str, str, str, str]]:
    """Yields the pairs of splits that have no class in common, each with the first class of either."""
    by_split: dict[str, set[str]] = {}
    for split, label in classes:
        if split:  # else it is chosen by hash, and a few images may fall anyhow
            by_split.setdefault(split, set()).add(label)
    for (one, its), (other, others) in itertools.combinations(sorted(by_split.items()), 2):
        if its.isdisjoint(others):
            yield one, other, min(its), min(others)


def _keep_smallest(kept: dict[str, str], others: dict[str, str]) -> None:
    for reason, example in others.items():
        kept[reason] = min(example, kept.get(reason, example))
