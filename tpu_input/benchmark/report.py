"""Text report of a benchmark."""

from __future__ import annotations

from collections.abc import Iterator

from tpu_input.benchmark.cost import Cost
from tpu_input.benchmark.measure import Measured

_BUSY = 0.8  # share of the cores' time; below it, the input waits for something other than the cores
_GAIN = 1.1  # smallest gain that is reported: at 0.5 to 0.75 ms, three rounds repeat within a few percent

_STAGES = {  # by stage: (name in the line about the bottleneck, what the stage does)
    "read": ("Reading", "read the records and verify their checksums"),
    "parse": ("Parsing", "parse the tf.train.Example"),
    "crop": ("Choosing windows", "choose a window of each image"),
    "decode": ("Decoding", "decode the window; shuffle, check labels"),
    "resize": ("Resizing", "resize, flip, convert dtype, augment"),
    "batch": ("Batching", "batch, repeat by echo"),
    "layout": ("Transposing", "transpose to the layout: the complete input"),
}


def describe(measured: Measured, need: float | None) -> Iterator[str]:
    """Yields the lines of a report: a table of the stages, the bottleneck, and the gain of each change.

    Args:
      measured: The benchmark.
      need: Images per second that the accelerator needs; None omits the line about the cores needed.
    """
    total = measured.total
    yield f"{'CPU ms per image':16}{'adds':>8}{'total':>8}   images/s"
    for name, (adds, cost) in _added(measured).items():
        figures = f"{adds:8.3f}{cost.cpu_ms:8.3f}{cost.images_per_second:11,.0f}"
        yield f"  {name:14}{figures}   {_STAGES[name][1]}"
    peak, start = measured.peak_bytes / 1e6, measured.start_bytes / 1e6
    yield f"peak memory {peak:,.0f} MB, {start:,.0f} MB of it before the first image"
    yield ""
    yield (
        f"{total.images_per_second:,.0f} images/s here, {total.cpu_ms:.2f} CPU ms per image; {measured.cores} cores "
        f"are busy {measured.busy:.0%} of the time."
    )
    yield bottleneck(measured)
    alone = measured.decode_alone.cpu_ms
    yield (
        f"Only decoding all pixels, the decoder's limit, takes {alone:.2f} ms; the complete input takes "
        f"{total.cpu_ms / alone:.2f} times as long."
    )
    if need:
        yield f"{need:,.0f} images/s need {measured.cores_for(need):.1f} cores like these."
    yield from _changes(measured)


def bottleneck(measured: Measured) -> str:
    """Returns a sentence that names the bottleneck of the input."""
    if measured.busy < _BUSY:
        first, cost = next(iter(measured.stages.items()))
        return (
            "Waiting is the bottleneck: for storage, a single-threaded stage, or other programs on this machine; "
            f"{first} alone reaches {cost.images_per_second:,.0f} images/s."
        )
    added = {name: adds for name, (adds, _) in _added(measured).items()}
    most = max(added, key=added.__getitem__)
    return f"{_STAGES[most][0]} is the bottleneck: {added[most] / measured.total.cpu_ms:.0%} of the CPU time."


def _added(measured: Measured) -> dict[str, tuple[float, Cost]]:
    """Returns by stage (CPU ms that the stage adds, cost of the stage with all stages before it)."""
    before, added = 0.0, {}
    for name, cost in measured.stages.items():
        added[name] = (cost.cpu_ms - before, cost)
        before = cost.cpu_ms
    return added


def _changes(measured: Measured) -> Iterator[str]:
    yield ""
    busy = measured.busy >= _BUSY
    yield f"One option changed at a time, measured on these images; the gain in {'CPU time' if busy else 'images/s'}:"
    gains = {name: _gain(measured.total, cost, busy) for name, cost in measured.changes.items()}
    for name in sorted(gains, key=gains.__getitem__, reverse=True):
        cost = measured.changes[name]
        gain = f"{gains[name]:.2f} times" if gains[name] >= _GAIN else "none"
        yield f"  {name:46}{cost.cpu_ms:7.3f} ms{cost.images_per_second:9,.0f} images/s   {gain}"
    for reason in measured.not_tried:
        yield f"  {reason}"


def _gain(total: Cost, changed: Cost, busy: bool) -> float:
    """Returns the factor of improvement: of CPU time, which repeats best, if the cores are busy; else of images/s."""
    return total.cpu_ms / changed.cpu_ms if busy else changed.images_per_second / total.images_per_second
