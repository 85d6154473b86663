"""Combination of all rows to one value, in parts: no worker merges the whole accumulators of all others.

    [row] of a bundle ──accumulate──▶ accumulator ──split──▶ (part, accumulator) ──group, merge──▶ a part ──▶ one value

A million class names make an accumulator of 19 MB. beam.CombineGlobally would send one from every bundle to one worker.
Here 64 workers merge a part of each, and the parts, which have nothing in common, are put together at the end. Beam's
own with_fanout() would merge 64 whole accumulators at the end, and takes 11 µs more for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

_NUM_PARTS = 64


class Combination(Protocol):
    """The methods of beam.CombineFn, by which a combination is made here or in a pipeline."""

    def create_accumulator(self) -> Any: ...
    def add_input(self, accumulator: Any, value: Any, /) -> Any: ...
    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any: ...
    def extract_output(self, accumulator: Any) -> Any: ...


class CombineInParts(beam.PTransform[PCollection[Any], PCollection[Any]]):
    """CombineGlobally(combine_fn), whose accumulators are merged in parts."""

    def __init__(self, combine_fn: Combination, split: Callable[[Any, int], list[Any]]) -> None:
        """Makes the transform.

        Args:
          combine_fn: The combination.
          split: Returns the parts of an accumulator, given it and their number: accumulators that merge to it. What
            could be in several accumulators must always be in the same part.
        """
        super().__init__()
        self._combine_fn, self._split = combine_fn, split

    def expand(self, values: PCollection[Any]) -> PCollection[Any]:
        accumulators = values | "Accumulate" >> beam.ParDo(
            _Accumulate(self._combine_fn, self._split)
        ).with_output_types(tuple[int, Any])
        merged: PCollection[Any] = (
            accumulators  # (part, accumulator)
            | "Group parts" >> beam.GroupByKey()
            | "Merge parts" >> beam.Map(_merge, self._combine_fn)  # accumulator
            | "Put together" >> beam.CombineGlobally(_PutTogether(self._combine_fn))
        )
        return merged


class _Accumulate(beam.DoFn):
    """Value → (part, accumulator), for each part of the accumulator of a bundle."""

    def __init__(self, combine_fn: Combination, split: Callable[[Any, int], list[Any]]) -> None:
        self._combine_fn, self._split = combine_fn, split

    def start_bundle(self) -> None:
        self._accumulator = self._combine_fn.create_accumulator()

    def process(self, value: Any) -> None:
        self._accumulator = self._combine_fn.add_input(self._accumulator, value)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for part in enumerate(self._split(self._accumulator, _NUM_PARTS)):
            yield GlobalWindows.windowed_value_at_end_of_window(part)


def _merge(part: tuple[int, Iterable[Any]], combine_fn: Combination) -> Any:
    return combine_fn.merge_accumulators(part[1])


class _PutTogether(beam.CombineFn):
    """CombineFn: accumulators → the value of them all. They are merged once, as each merge copies."""

    def __init__(self, combine_fn: Combination) -> None:
        self._combine_fn = combine_fn

    def create_accumulator(self) -> list[Any]:
        return []

    def add_input(self, accumulators: list[Any], accumulator: Any) -> list[Any]:
        return [*accumulators, accumulator]

    def merge_accumulators(self, accumulators: Iterable[list[Any]]) -> list[Any]:
        return [accumulator for group in accumulators for accumulator in group]

    def extract_output(self, accumulators: list[Any]) -> Any:
        return self._combine_fn.extract_output(self._combine_fn.merge_accumulators(accumulators))
