"""The input part of preflight: hosts that share, drop or run dry are told; ours are well."""

from __future__ import annotations

import dataclasses
import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.preflight.findings import FAILS, GOOD
from estimator_app.preflight.input import Feed, check_evaluation, check_order, check_training, unaugmented
from support.app_fixtures import configured
from support.training_input import Context
from tpu_input import Order, eval_steps, make_eval_input_fn, make_train_input_fn
from tpu_input.pipeline.order import BalancedOrder

HOSTS, CORES, BATCH = 4, 2, 8  # of a core
EXAMPLES = 1464


def feeds(input_fn):
    """Returns a Feed for each host, as TPUEstimator calls it."""
    contexts = [Context(host, HOSTS, CORES) for host in range(HOSTS)]
    return [Feed(functools.partial(input_fn, {"batch_size": BATCH, "context": context}), CORES) for context in contexts]


def alone(input_fn):
    return lambda: input_fn({"batch_size": BATCH})


def whatever_host(input_fn):
    """An input_fn of somebody's that does not ask which host it is called for."""
    return lambda params: input_fn({"batch_size": params["batch_size"]})


@pytest.fixture
def train(digits_dataset):
    return make_train_input_fn(digits_dataset, unaugmented(configured(digits_dataset).input))


@pytest.fixture
def evaluate(digits_dataset):
    return make_eval_input_fn(digits_dataset, unaugmented(configured(digits_dataset).input))


@pytest.mark.long
def test_our_hosts_train_on_images_of_their_own(train):
    finding = check_training(feeds(train), EXAMPLES, steps=5)
    assert (finding.verdict, finding.seen) == (
        GOOD,
        f"training: 5 steps of 4 TPU VMs read {5 * HOSTS * CORES * BATCH} different images, each only once",
    )


def test_hosts_that_train_on_the_same_images_are_told(train):
    finding = check_training(feeds(whatever_host(train)), EXAMPLES, steps=5)
    assert finding.verdict == FAILS
    assert finding.seen == f"training: TPU VMs 0 and 1 both read the same {5 * CORES * BATCH} images"
    assert "current_input_fn_deployment()" in finding.advice


@pytest.mark.long
def test_a_host_that_repeats_few_images_is_told(train):
    """As an input that deals whole shards to hosts does, where one host has got a shard of ten images."""

    def by_shard(params):
        few = params["context"].current_input_fn_deployment()[1] == 1
        host = {"batch_size": 5, "host": 0, "num_hosts": 1} if few else params
        dataset = train(host).take(2).unbatch().repeat().batch(BATCH, drop_remainder=True) if few else train(host)
        return dataset

    finding = check_training(feeds(by_shard), EXAMPLES, steps=5)
    assert finding.verdict == FAILS
    fed, other_images = 5 * HOSTS * CORES * BATCH, 5 * (HOSTS - 1) * CORES * BATCH
    ((total, different),) = re.findall(r"feed (\d+) images, but only (\d+) different ones", finding.seen)
    assert int(total) == fed
    assert other_images <= int(different) <= other_images + 10
    assert "TPU VM 1 feeds one of them 8 times" in finding.seen


@pytest.mark.long
def test_steps_of_more_than_an_epoch_may_repeat_images(digits_dataset):
    train = make_train_input_fn(digits_dataset, unaugmented(configured(digits_dataset).input), split="validation")
    finding = check_training(feeds(train), 333, steps=8)
    assert str(finding).startswith("✓ training: 8 steps of 4 TPU VMs read 333 different images, each at most 2 times")


@pytest.mark.parametrize(
    ("num_hosts", "fed"),
    [(1, "1 TPU VM feeds 1,281,167"), (4, "each of 4 TPU VMs feeds 320,256 to 320,399")],
)
def test_the_order_is_followed_through_an_epoch_on_all_hosts(num_hosts, fed):
    finding = check_order(Order(1_281_167, 1024), num_hosts)
    assert (finding.verdict, finding.seen) == (
        GOOD,
        f"the order of 1,281,167 examples: each comes once in an epoch; {fed}",
    )


@pytest.mark.parametrize(("lanes", "num_hosts"), [(24, 1), (48, 4)])
def test_the_order_of_balanced_sampling_is_followed_by_class(digits_dataset, lanes, num_hosts):
    order = Order.of(digits_dataset, "train", lanes, 0, 1, "balanced")
    assert isinstance(order, BalancedOrder)
    finding = check_order(order, num_hosts)
    fed = {1: "1 TPU VM feeds 1,464", 4: "each of 4 TPU VMs feeds 360 to 372"}[num_hosts]
    prefix = "the order of 1,464 examples: each class comes 146 to 147 times in an epoch"
    assert (finding.verdict, finding.seen) == (GOOD, f"{prefix}; {fed}")
    labels = np.where(order.labels == 3, 4, order.labels)  # the order is of other classes than are counted
    wrong = dataclasses.replace(order, labels=labels)
    object.__setattr__(wrong, "records", order.records)
    assert check_order(wrong, num_hosts).verdict == FAILS


def test_an_order_that_repeats_an_example_is_told(monkeypatch):
    records = Order.records
    monkeypatch.setattr(Order, "records", lambda order, positions: (positions, records(order, positions)[1] // 2))
    finding = check_order(Order(1000, 10), 2)
    assert finding.verdict == FAILS
    assert finding.seen == "the order of 1,000 examples: in an epoch, one comes 0 times, another 2 times"


def test_a_training_input_that_ends_is_told(train):
    finding = check_training(feeds(lambda params: train(params).take(7)), EXAMPLES, steps=5)
    assert str(finding) == (
        "✗ training: the input of TPU VM 0 ended after 7 of 10 batches: a training input must repeat() forever"
    )


def evaluated(manifest, input_fn, steps=None):
    split = manifest.split("validation").num_examples
    steps = steps or eval_steps(manifest, "validation", BATCH * CORES * HOSTS, HOSTS)
    return check_evaluation(feeds(input_fn), steps, split, alone(input_fn))


def test_our_evaluation_sees_every_example_once(digits_dataset, evaluate):
    finding = evaluated(digits_dataset, evaluate)
    assert finding.verdict == GOOD
    split = digits_dataset.split("validation").num_examples
    assert f"read each of {split} examples exactly once; the other " in finding.seen


@pytest.mark.long
def test_an_evaluation_that_drops_is_told(digits_dataset, evaluate):
    split = digits_dataset.split("validation").num_examples

    def dropping(params):
        """Without padding: what does not fill a batch is left out."""
        full = evaluate(params).take(split // (BATCH * HOSTS))
        return full.concatenate(full.map(tf.autograph.experimental.do_not_convert(empty)).repeat())

    def empty(features, label):
        return features | {"weight": tf.zeros_like(features["weight"])}, label

    finding = evaluated(digits_dataset, dropping)
    assert finding.verdict == FAILS
    assert f"there are {split} examples" in finding.seen
    finding = evaluated(digits_dataset, lambda params: evaluate(params).take(3))
    assert str(finding).startswith("✗ evaluation: the input of TPU VM 0 ended after 3 of ")
    assert "pad it endlessly with examples of weight 0" in finding.advice


def test_an_evaluation_whose_hosts_overlap_is_told(digits_dataset, evaluate):
    def overlapping(params):
        """All hosts see the beginning, as often as it takes for the sum of the weights to be right."""
        counted = (
            evaluate({"batch_size": 1, "host": 0, "num_hosts": HOSTS}) if "context" in params else evaluate(params)
        )
        return counted.unbatch().batch(params["batch_size"], drop_remainder=True) if "context" in params else counted

    num_examples = digits_dataset.split("validation").num_examples
    finding = check_evaluation(feeds(overlapping), 1, HOSTS * CORES * BATCH, alone(overlapping))
    assert finding.verdict == FAILS
    assert f"{CORES * BATCH} images were read more than once, others never" in finding.seen
    assert num_examples > HOSTS * CORES * BATCH


def test_equal_images_of_a_dataset_are_no_mistake(digits_dataset, evaluate):
    def twice(params):
        return evaluate(params).take(4).repeat(2)

    finding = check_evaluation([Feed(lambda: twice({"batch_size": BATCH}), 1)], 8, 8 * BATCH, alone(twice))
    assert finding.verdict == GOOD
