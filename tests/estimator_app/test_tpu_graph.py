"""The graph that TPUEstimator would send to a TPU of 4 hosts with 8 cores each, built and read; nothing runs it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from support import linear_network

pytest.importorskip("tensorflow_estimator", reason="TPUEstimator ends with TensorFlow 2.15")

from estimator_app.preflight.graph import all_ops, build, cluster, fed
from estimator_app.runtime.topologies import find_topology
from estimator_app.runtime.tpu import check_paths
from estimator_app.trainers.tpu_estimator.keras_in_graph import KerasInGraph
from estimator_app.trainers.tpu_estimator.model_fn import make_estimator, make_model_fn
from support.app_fixtures import configured, keras_warns
from tpu_input import InputConfig, make_eval_input_fn, make_train_input_fn

pytestmark = keras_warns
v1 = tf.compat.v1
TOPOLOGY = find_topology("v3:4x4")
HOSTS, CORES = 4, 8


def build_graph(config, model_dir, mode, input_fn, estimator=None) -> tf.Graph:
    """Returns the graph of the app's own estimator."""
    return build(estimator or make_estimator(config, str(model_dir), cluster()), TOPOLOGY, mode, input_fn).graph


def nodes(graph: tf.Graph) -> list[Any]:
    """Returns every node, those of functions too."""
    return [op.node_def for op in all_ops(graph)]


def ops_behind(node: Any, by_name: dict[str, Any]) -> set[str]:
    """Returns the kinds of nodes that a node's values come from, no further back than to what all cores share."""
    visited, ahead = set(), [node]
    while ahead:
        for name in ahead.pop().input:
            origin = by_name.get(name.partition(":")[0])  # none of what is not a value, or a function's argument
            if origin and origin.name not in visited:
                visited.add(origin.name)
                ahead += [] if origin.op == "CrossReplicaSum" else [origin]
    return {by_name[name].op for name in visited}


ALL_CORES = [(f"/job:worker/task:{host}/device:CPU:0", core) for host in range(HOSTS) for core in range(CORES)]


def shapes(node_defs: list[Any]) -> list[list[int]]:
    """Returns the shapes that each core takes."""
    (dequeue,) = [node for node in node_defs if node.op == "InfeedDequeueTuple"]
    return [[dim.size for dim in shape.dim] for shape in dequeue.attr["shapes"].list.shape]


@pytest.mark.parametrize(
    ("layout", "image"), [("NHWC", [4, 16, 16, 3]), ("HWCN", [16, 16, 3, 4]), ("HWNC", [16, 16, 4, 3])]
)
def test_every_core_trains_on_its_own_part_and_shares_its_gradients(digits_dataset, tmp_path, layout, image):
    config = configured(digits_dataset, layout=layout, train_batch_size=128, eval_batch_size=128)
    train = make_train_input_fn(digits_dataset, config.input)
    graph = build_graph(config, tmp_path, "training", train)
    assert sorted(fed(graph)) == ALL_CORES
    node_defs = nodes(graph)
    assert shapes(node_defs) == [image, [4], [4]]
    ops = [node.op for node in node_defs]
    trained = ops.count("ResourceApplyMomentum")
    assert trained == 6 * 3 + 2  # 6 x (kernel, scale, offset), and the dense layer
    assert ops.count("CrossReplicaSum") == trained + 2  # and the examples' weights, and the loss that is told
    assert ops.count("AssignSubVariableOp") == 6 * 2  # batch normalisation's means and variances
    assert "Cos" in ops  # the schedule
    assert "Placeholder" not in ops
    (replicas,) = [node.attr["num_replicas"].i for node in node_defs if node.op == "TPUReplicateMetadata"]
    assert replicas == HOSTS * CORES


@pytest.mark.parametrize(
    ("options", "update"),
    [
        ({"optimizer": "lars"}, "ResourceApplyKerasMomentum"),
        ({"optimizer": "adamw", "label_smoothing": 0.1, "class_weights": "balanced"}, "ResourceApplyAdam"),
        ({"network": "resnet18", "precision": "bfloat16", "decay": "steps"}, "ResourceApplyMomentum"),
    ],
    ids=str,
)
@pytest.mark.long
def test_every_way_of_training_updates_from_summed_gradients_and_sends_its_curves_to_the_host(
    digits_dataset, tmp_path, options, update
):
    config = configured(digits_dataset, train_batch_size=128, **options)
    train = make_train_input_fn(digits_dataset, config.input)
    graph = build_graph(config, tmp_path, "training", train)
    node_defs = nodes(graph)
    by_name = {node.name: node for node in node_defs}
    updates = [node for node in node_defs if node.op == update]
    assert len(updates) == (62 if "network" in options else 20)
    # 2: of the weights, and of the loss.
    assert [node.op for node in node_defs].count("CrossReplicaSum") == len(updates) + 2
    for node in updates:  # LARS' norms and all decay are of what the cores' gradients add up to
        assert "CrossReplicaSum" in ops_behind(node, by_name)
        assert not ops_behind(node, by_name) & {"Conv2DBackpropFilter", "BiasAddGrad"}
    summaries = [node for node in node_defs if node.op == "WriteSummary"]
    assert sorted(node.name.split("/")[1] for node in summaries) == ["epoch", "learning_rate", "loss"]
    assert all("CPU" in node.device for node in summaries)


def test_cores_whose_examples_weigh_differently_take_the_step_of_one(digits_dataset, tmp_path):
    """What TPUEstimator runs on each core, run twice here; sums over cores, which no processor does, are NumPy's."""
    config = configured(digits_dataset, **linear_network.OPTIONS)
    config = dataclasses.replace(config, classes=config.classes[:3])
    size = linear_network.SIZE
    with tf.Graph().as_default() as graph:
        v1.train.create_global_step()
        fed = [
            v1.placeholder(tf.uint8, [4, size, size, 3]),
            v1.placeholder(tf.float32, [4]),
            v1.placeholder(tf.int32, [4]),
        ]
        features = {"image": fed[0], "weight": fed[1]}
        run_config = make_estimator(config, str(tmp_path)).config
        spec = make_model_fn(config)(features, fed[2], v1.estimator.ModeKeys.TRAIN, {"use_tpu": True}, run_config)
        start = spec.scaffold_fn().init_fn
        initialise = v1.global_variables_initializer()
    sums = [op for op in graph.get_operations() if op.type == "CrossReplicaSum"]  # as made: none needs a later one
    examples = (linear_network.IMAGES, linear_network.WEIGHT, linear_network.LABELS)
    cores = [dict(zip(fed, (part[offset : offset + 4] for part in examples), strict=True)) for offset in (0, 4)]
    only_what_is_run = v1.GraphOptions(place_pruned_graph=True)
    with v1.Session(graph=graph, config=v1.ConfigProto(graph_options=only_what_is_run)) as session:
        session.run(initialise)
        start(session)
        totals: dict[Any, Any] = {}
        for op in sums:
            totals[op.outputs[0]] = sum(session.run(op.inputs[0], {**core, **totals}) for core in cores)
        loss, _ = session.run([spec.loss, spec.train_op], {**cores[0], **totals})
        kernel, bias = session.run(v1.trainable_variables())
    expected = linear_network.step(config.input.mean, config.input.std)
    for one, other in zip((loss, kernel, bias), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_tpu_s_host_gives_variables_the_network_s_own_values(digits_dataset, tmp_path, monkeypatch):
    """On a server of TensorFlow's under the address of a TPU's host, by the ops that would run there."""
    scaffolds, make = [], KerasInGraph.scaffold

    def remember(model):
        scaffolds.append(make(model))
        return scaffolds[-1]

    monkeypatch.setattr(KerasInGraph, "scaffold", remember)
    config = configured(digits_dataset, **(linear_network.OPTIONS | {"train_batch_size": 32}))
    config = dataclasses.replace(config, classes=config.classes[:3])
    estimator = make_estimator(config, str(tmp_path), cluster())
    one_host = find_topology("v3:2x2")
    graph = build(estimator, one_host, "training", make_train_input_fn(digits_dataset, config.input)).graph
    (scaffold,) = scaffolds
    variables = graph.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES)
    reads = [f"{variable.op.name}/Read/ReadVariableOp" for variable in variables]
    needed = [*reads, *(variable.initializer.name for variable in variables)]
    worker = tf.distribute.Server({"worker": ["localhost:0"]}, job_name="worker", task_index=0)
    with tf.Graph().as_default() as host_graph, v1.Session(worker.target, host_graph) as session:
        tf.graph_util.import_graph_def(v1.graph_util.extract_sub_graph(graph.as_graph_def(), needed), name="")
        assert {op.device for op in host_graph.get_operations()} <= {"", "/job:worker/task:0/device:CPU:0"}

        def run(ops: Any, fed: Any) -> Any:
            return session.run([op.name for op in ops], {tensor.name: value for tensor, value in fed.items()})

        scaffold.init_fn(SimpleNamespace(run=run))
        kernel, bias = session.run([f"{name}:0" for name in reads])
    np.testing.assert_array_equal(kernel, linear_network.KERNEL)
    np.testing.assert_array_equal(bias, np.zeros(3))


def test_every_core_evaluates_its_own_part(digits_dataset, tmp_path):
    config = configured(digits_dataset, eval_batch_size=128)
    evaluate = make_eval_input_fn(digits_dataset, config.input)
    graph = build_graph(config, tmp_path, "evaluation", evaluate)
    assert sorted(fed(graph)) == ALL_CORES
    node_defs = nodes(graph)
    assert shapes(node_defs) == [[4, 16, 16, 3], [4], [4]]
    assert "ResourceApplyMomentum" not in {node.op for node in node_defs}


# (mode, batches of a host in a step, hosts whose input_fn runs, examples of a core)
MODES = [("PER_HOST_V2", CORES, HOSTS, 4), ("PER_HOST_V1", 1, HOSTS, 4), ("BROADCAST", 1, 1, 128)]


@pytest.mark.parametrize(("mode", "batches", "hosts", "core_batch"), MODES)
@pytest.mark.long
def test_tpuestimator_s_own_calls_of_input_fn_make_every_step_s_examples(
    digits_dataset, tmp_path, mode, batches, hosts, core_batch
):
    config = configured(digits_dataset, train_batch_size=128, eval_batch_size=128)
    estimator = make_estimator(config, str(tmp_path), cluster())
    tpu_config = estimator.config.tpu_config._replace(
        per_host_input_for_training=getattr(v1.estimator.tpu.InputPipelineConfig, mode)
    )
    estimator._config._tpu_config = estimator._ctx._config._tpu_config = tpu_config
    called = []

    def input_fn(params, config):
        called.append((dict(params), config))
        return make_train_input_fn(digits_dataset, input_config)(params, config)

    input_config = InputConfig(16, crop_area=(1, 1), crop_aspect=(1, 1), flip=False)  # every crop the whole image
    graph = build_graph(config, tmp_path, "training", input_fn, estimator)
    assert sorted(fed(graph)) == ALL_CORES
    node_defs = nodes(graph)
    assert shapes(node_defs) == [[core_batch, 16, 16, 3], [core_batch], [core_batch]]
    assert len(called) == hosts
    # The same calls again, this time run: a step is 128 examples, and none comes twice within the first ten.
    images = [
        image.tobytes()
        for params, run_config in called
        for features, _ in make_train_input_fn(digits_dataset, input_config)(params, run_config).take(10 * batches)
        for image in features["image"].numpy()
    ]
    assert len(images) == len(set(images)) == 10 * 128


@pytest.mark.parametrize(
    ("layout", "axis", "core_shape"),
    [("HWCN", 3, [16, 16, 3, 4]), ("HWNC", 2, [16, 16, 4, 3]), ("auto", 2, [16, 16, 4, 3])],
)
def test_one_batch_for_a_host_s_cores_is_cut_along_the_axis_of_its_layout(
    digits_dataset, tmp_path, layout, axis, core_shape
):
    config = configured(digits_dataset, layout=layout, train_batch_size=128)
    app_estimator = make_estimator(config, str(tmp_path), cluster())
    modes = v1.estimator.tpu.InputPipelineConfig
    tpu_config = app_estimator.config.tpu_config._replace(per_host_input_for_training=modes.PER_HOST_V1)
    estimator = v1.estimator.tpu.TPUEstimator(
        make_model_fn(config),
        config=app_estimator.config.replace(tpu_config=tpu_config),
        train_batch_size=128,
        batch_axis=[axis, 0, 0],  # image, weight, label
    )
    input_fn = make_train_input_fn(digits_dataset, config.input)
    graph = build_graph(config, tmp_path, "training", input_fn, estimator)
    assert sorted(fed(graph)) == ALL_CORES
    assert shapes(nodes(graph)) == [core_shape, [4], [4]]


def test_paths_that_a_tpu_cannot_open_are_refused():
    check_paths({"--dataset": "gs://bucket/digits", "--model_dir": "gs://bucket/model"})
    with pytest.raises(ValueError, match=r"--model_dir is '/tmp/model', which a TPU's hosts cannot open"):
        check_paths({"--dataset": "gs://bucket/digits", "--model_dir": "/tmp/model"})
