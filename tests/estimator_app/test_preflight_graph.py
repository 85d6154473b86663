"""The graph part of preflight: what is well passes, and each mistake is told by its own sentence."""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf

from support import broken_networks
from support.app_fixtures import RECIPE, configured, keras_warns

pytest.importorskip("tensorflow_estimator", reason="TPUEstimator ends with TensorFlow 2.15")

from estimator_app.preflight.findings import FAILS, GOOD
from estimator_app.preflight.graph import check_build, cluster
from estimator_app.runtime.topologies import find_topology
from estimator_app.trainers.tpu_estimator.model_fn import make_estimator
from tpu_input import make_eval_input_fn, make_train_input_fn

pytestmark = keras_warns
v1 = tf.compat.v1
ONE_HOST, FOUR_HOSTS = find_topology("v3:2x2"), find_topology("v3:4x4")


def looked_at(manifest, model_dir, mode="training", topology=ONE_HOST, input_fn=None, **options):
    config = configured(manifest, train_batch_size=128, eval_batch_size=128, **options)
    make = make_train_input_fn if mode == "training" else make_eval_input_fn
    estimator = make_estimator(config, str(model_dir), cluster())
    return check_build(estimator, topology, mode, input_fn or make(manifest, config.input))


@pytest.mark.parametrize("topology", [ONE_HOST, FOUR_HOSTS], ids=str)
@pytest.mark.parametrize("network", ["cnn", "resnet18"])
@pytest.mark.long
def test_a_good_network_passes_on_one_host_and_on_four(digits_dataset, tmp_path, topology, network):
    for mode in ("training", "evaluation") if network == "cnn" else ("training",):
        findings, built = looked_at(digits_dataset, tmp_path, mode, topology, network=network)
        assert {finding.verdict for finding in findings} == {GOOD}, findings
        per_core = 128 // topology.num_cores
        assert f"image [{per_core}, 16, 16, 3] uint8, weight [{per_core}] float32, label [{per_core}] int32" in str(
            findings
        )
        assert [params["batch_size"] for params, _ in built.calls] == [per_core] * topology.num_hosts


@pytest.mark.long
def test_every_part_of_a_recipe_is_in_a_graph_that_a_tpu_takes(digits_dataset, tmp_path):
    for mode in ("training", "evaluation"):
        findings, built = looked_at(digits_dataset, tmp_path, mode, **RECIPE, freeze="stage1_.*")
        assert {finding.verdict for finding in findings} == {GOOD}, findings
        names = {variable.op.name for variable in built.graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)}
        averaged = {name for name in names if name.startswith("ema_") and name.rpartition("/")[2] == name}
        assert len(averaged) == 32  # beside the weights in training, instead of them in evaluation
        assert ("0_kernel" in names) == (mode == "training")


@pytest.mark.filterwarnings("ignore:Cannot activate TF2 compatibility support for TF1 summary ops")
@pytest.mark.parametrize(
    ("network", "op", "mark", "advice"),
    [
        ("summary", "ScalarSummary", "SUMMARY", "host_call"),
        ("python", "PyFunc", "PYTHON", "move it into the input"),
        ("text", "AsString", "TEXT", "strings are supported only on hosts"),
    ],
)
def test_an_op_that_no_tpu_runs_is_named_with_the_line_that_made_it(
    digits_dataset, tmp_path, monkeypatch, network, op, mark, advice
):
    findings, _ = looked_at(digits_dataset, tmp_path, network=f"support.broken_networks:{network}")
    wrong = [str(finding) for finding in findings if finding.verdict == FAILS]
    assert any(f"TPUs do not support {op}, created at " in text and advice in text for text in wrong), wrong
    assert all(broken_networks.line_of(mark) in text for text in wrong)


def changed(manifest, change, params, config):
    """An input_fn of somebody's that changes what ours gives."""
    return change(make_train_input_fn(manifest, configured(manifest).input)(params))


BROKEN_INPUTS = {
    "dynamic batch": (
        lambda dataset: dataset.unbatch().batch(16),
        "the input's image is [?, 16, 16, 3] uint8, but a TPU needs static shapes: use batch(…, drop_remainder=True)",
    ),
    "string feature": (
        lambda dataset: dataset.map(lambda features, label: (features | {"key": tf.strings.as_string(label)}, label)),
        "the input's key is [16] string, and string cannot be sent to a TPU: leave it out, or send a number instead",
    ),
    "float64 weight": (
        lambda dataset: dataset.map(
            lambda features, label: (features | {"weight": tf.cast(features["weight"], tf.float64)}, label)
        ),
        "the input's weight is [16] float64, and float64 cannot be sent to a TPU: cast it to float32",
    ),
}


@pytest.mark.parametrize("name", BROKEN_INPUTS)
def test_an_input_that_no_tpu_takes_is_named_by_its_part(digits_dataset, tmp_path, name):
    change, message = BROKEN_INPUTS[name]
    findings, built = looked_at(
        digits_dataset,
        tmp_path,
        input_fn=functools.partial(changed, digits_dataset, tf.autograph.experimental.do_not_convert(change)),
    )
    assert [str(finding) for finding in findings] == [f"✗ training: {message}"]
    assert built is None


def test_gradients_that_no_core_shares_are_told(digits_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(v1.tpu, "CrossShardOptimizer", lambda optimizer: optimizer)
    findings, _ = looked_at(digits_dataset, tmp_path)
    (wrong,) = [str(finding) for finding in findings if finding.verdict == FAILS]
    assert "each core would train its own network: wrap the optimizer in tf.compat.v1.tpu.CrossShardOptimizer" in wrong


def test_what_a_network_raises_is_told_with_its_line(digits_dataset, tmp_path):
    findings, built = looked_at(digits_dataset, tmp_path, network="support.broken_networks:unbuildable")
    assert built is None
    assert "Dimensions must be equal, but are 3 and 4" in findings[0].seen
    assert findings[0].seen.endswith(f"{broken_networks.line_of('UNBUILDABLE')})")
