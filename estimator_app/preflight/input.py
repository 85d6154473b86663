"""Checks of the input pipelines of all hosts of a TPU, run on this machine; does not import TensorFlow.

    the input of each host ──▶ batches of its cores ──▶ digest and weight of each example ──▶ counts per host

In training, the counts of two images must not differ by more than one, neither on one host nor over several; an
evaluation must count each example exactly once.

An example is identified by a digest of its pixels, so the input must be without random augmentation: unaugmented().
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from estimator_app.preflight.findings import FAILS, GOOD, UNKNOWN, Finding
from estimator_app.runtime.record_errors import record_errors
from estimator_app.runtime.tensorflow_startup import one_line, user_error_types
from tpu_input import InputConfig, Manifest, Order
from tpu_input.pipeline.order import BalancedOrder

TRAIN_STEPS = 3  # enough to find hosts that read the same files; each step takes the time to decode a batch
# Accepted share of images that are fed more often than they should be: a dataset may contain duplicates, whereas nearly
# all are where hosts read the same files, or a host repeats a few images.
_EQUAL_IMAGES = 0.01
_MOST_FOLLOWED = 20_000_000  # examples of an epoch, which take 20 s and 80 MB


@dataclasses.dataclass(frozen=True)
class Feed:
    """Input of one host.

    Attributes:
      make: Returns the host's batches (features, label), with the examples along axis 0: a tf.data.Dataset, or arrays.
      batches_per_step: Number of its batches that a step consumes: one per core, or one in total.
    """

    make: Callable[[], Any]
    batches_per_step: int


class _RanDry(Exception):
    pass


def unaugmented(config: InputConfig) -> InputConfig:
    """Returns a config without random augmentation, cache, service and sampling, which feeds some images again."""
    return dataclasses.replace(
        config,
        dtype="uint8",
        layout="NHWC",
        crop_area=(1.0, 1.0),
        crop_aspect=(1.0, 1.0),
        flip=False,
        augment=None,
        echo=1,
        cache=None,
        service=None,
        sampling="equal",
    )


def check_training(feeds: Sequence[Feed], num_examples: int, steps: int = TRAIN_STEPS) -> Finding:
    """Returns a finding about images that are fed too often, from some steps of the training input of every host.

    Args:
      feeds: Input of each host.
      num_examples: Number of training examples, one epoch.
      steps: Number of steps to take.

    Raises:
      ValueError, OSError, tf.errors.OpError: A record cannot be read.
    """
    try:
        host_counts = [
            collections.Counter(digest for digest, _ in _examples(host, feed, steps)) for host, feed in enumerate(feeds)
        ]
    except _RanDry as dry:
        return Finding(FAILS, f"training: {dry}", "a training input must repeat() forever")
    total = sum((counts for counts in host_counts), collections.Counter[bytes]())
    fed = total.total()
    allowed = -(-fed // num_examples)  # times that an image may be fed: once, unless more than an epoch is fed
    host_excess = sum(max(0, times - allowed) for counts in host_counts for times in counts.values())
    if len(feeds) > 1 and allowed == 1 and host_excess <= _EQUAL_IMAGES * fed:
        first, second = max(
            itertools.combinations(range(len(host_counts)), 2),
            key=lambda pair: len(host_counts[pair[0]] & host_counts[pair[1]]),
        )
        shared = len(host_counts[first] & host_counts[second])
        if shared > _EQUAL_IMAGES * min(len(host_counts[first]), len(host_counts[second])):
            return Finding(
                FAILS,
                f"training: TPU VMs {first} and {second} both read the same {shared:,} images",
                'read different files on each VM: params["context"].current_input_fn_deployment() returns its index',
            )
    excess = sum(max(0, times - allowed) for times in total.values())
    if excess > _EQUAL_IMAGES * fed:
        most, host = max((max(counts.values()), host) for host, counts in enumerate(host_counts))
        return Finding(
            FAILS,
            f"training: {steps} steps of {_hosts(feeds)} feed {fed:,} images, but only {len(total):,} different ones; "
            f"TPU VM {host} feeds one of them {most} times",
            "feed every example equally often: all VMs must take as many examples from each part of the dataset as it "
            "has; tpu_input.make_train_input_fn() does",
        )
    equal = f", except {excess} that are fed again, as a dataset may contain an image twice" * bool(excess)
    frequency = "each only once" if allowed == 1 else f"each at most {allowed} times"
    return Finding(
        GOOD, f"training: {steps} steps of {_hosts(feeds)} read {len(total):,} different images, {frequency}{equal}"
    )


def check_order(order: Order, num_hosts: int) -> Finding:
    """Returns a finding about the order of training over an epoch, which must hold each example or class equally often.

    Nothing is read: the position of every example in every step is arithmetic.

    Args:
      order: Order of the training examples.
      num_hosts: Number of TPU VMs; each feeds an equal part of a step.
    """
    subject = f"the order of {order.num_examples:,} examples"
    if order.num_examples > _MOST_FOLLOWED:
        return Finding(
            UNKNOWN, f"{subject} was not followed through an epoch; that is done for up to {_MOST_FOLLOWED:,}"
        )
    counts, fed = np.zeros(order.num_examples, np.int32), np.zeros(num_hosts, np.int64)
    for begin in range(0, order.num_examples, 1 << 20):
        positions = np.arange(begin, min(begin + (1 << 20), order.num_examples), dtype=np.uint64)
        _, numbers = order.records(positions)
        np.add.at(counts, numbers.astype(np.int64), 1)
        hosts = positions % np.uint64(order.lanes) * np.uint64(num_hosts) // np.uint64(order.lanes)
        fed += np.bincount(hosts.astype(np.int64), minlength=num_hosts)
    unit, least, most = "", 1, 1
    if isinstance(order, BalancedOrder):
        unit = " class"
        counts = np.bincount(order.labels, weights=counts)[np.unique(order.labels)].astype(np.int32)
        least, most = order.num_examples // len(counts), -(-order.num_examples // len(counts))
    if counts.min() < least or counts.max() > most:
        return Finding(
            FAILS, f"{subject}: in an epoch, one{unit} comes {counts.min()} times, another {counts.max()} times"
        )
    times = "once" if most == 1 else _counts(counts) + " times"
    vms = "1 TPU VM" if num_hosts == 1 else f"each of {num_hosts} TPU VMs"
    return Finding(GOOD, f"{subject}: each{unit} comes {times} in an epoch; {vms} feeds {_counts(fed)}")


def _counts(values: npt.NDArray[Any]) -> str:
    return f"{values.min():,}" if values.min() == values.max() else f"{values.min():,} to {values.max():,}"


def check_evaluation(feeds: Sequence[Feed], steps: int, num_examples: int, alone: Callable[[], Any]) -> Finding:
    """Returns a finding about a complete evaluation on all hosts, which must count each example exactly once.

    Args:
      feeds: Input of each host.
      steps: Number of evaluation steps.
      num_examples: Number of examples of the split.
      alone: Returns the batches of a single host that evaluates alone, as of Feed; called only if an image occurs more
        than once.

    Raises:
      ValueError, OSError, tf.errors.OpError: A record cannot be read.
    """
    reads: collections.Counter[bytes] = collections.Counter()
    total, weights = 0, 0.0
    try:
        for host, feed in enumerate(feeds):
            for digest, weight in _examples(host, feed, steps):
                total, weights = total + 1, weights + weight
                reads[digest] += weight > 0
    except _RanDry as dry:
        return Finding(FAILS, f"evaluation: {dry}", "pad it endlessly with examples of weight 0")
    if weights != num_examples:
        return Finding(
            FAILS,
            f"evaluation: the weights of {steps} steps add up to {weights:,.0f}, but there are {num_examples:,} "
            "examples",
            "count each example once over all VMs, in the number of steps that tpu_input.eval_steps() returns",
        )
    if max(reads.values()) > 1 and +reads != _once(alone(), num_examples):
        return Finding(
            FAILS,
            f"evaluation: {sum(times > 1 for times in reads.values()):,} images were read more than once, others never",
            "read different files on each VM",
        )
    padding = f"; the other {total - num_examples:,} are padding of weight 0" if total > num_examples else ""
    return Finding(GOOD, f"evaluation: {steps} steps read each of {num_examples:,} examples exactly once{padding}")


def _once(batches: Any, num_examples: int) -> collections.Counter[bytes]:
    digests = (digest for element in _arrays(batches) for digest, weight in _rows(element) if weight > 0)
    return collections.Counter(itertools.islice(digests, num_examples))


def _examples(host: int, feed: Feed, steps: int) -> Iterator[tuple[bytes, float]]:
    """Yields (digest, weight) of each example that a host feeds in `steps` steps."""
    num_batches, batches = steps * feed.batches_per_step, 0
    for element in _arrays(feed.make(), num_batches):
        batches += 1
        yield from _rows(element)
    if batches < num_batches:
        raise _RanDry(f"the input of TPU VM {host} ended after {batches:,} of {num_batches:,} batches")


def _arrays(batches: Any, num_batches: int | None = None) -> Iterable[Any]:
    """Returns the first batches as arrays; None for all."""
    if not hasattr(batches, "as_numpy_iterator"):
        return itertools.islice(batches, num_batches)
    first: Iterable[Any] = (batches if num_batches is None else batches.take(num_batches)).as_numpy_iterator()
    return first


def _rows(element: Any) -> Iterator[tuple[bytes, float]]:
    features, label = element
    weights = features.get("weight") if isinstance(features, dict) else None
    parts = [part for part in _leaves((features, label)) if part is not weights]
    for row in range(len(parts[0])):
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(part[row].tobytes())
        yield digest.digest(), 1.0 if weights is None else float(weights[row])


def _leaves(element: Any) -> Iterator[Any]:
    """Yields the arrays of an element, a dict's in the order of their names."""
    if isinstance(element, dict):
        element = tuple(element[name] for name in sorted(element))
    if not isinstance(element, (tuple, list)):
        yield element
        return
    for part in element:
        yield from _leaves(part)


@contextlib.contextmanager
def reading(manifest: Manifest, split: str) -> Iterator[list[Finding]]:
    """Context manager that turns errors of reading a split into findings; yields the list to which they are added."""
    findings: list[Finding] = []
    try:
        with record_errors(manifest, split):
            yield findings
    except user_error_types() as error:
        findings.append(Finding(FAILS, one_line(error)))


def _hosts(feeds: Sequence[Feed]) -> str:
    return "1 TPU VM" if len(feeds) == 1 else f"{len(feeds)} TPU VMs"
