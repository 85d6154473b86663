"""Optimizers: the steps of each against NumPy's reading of its paper, or Keras'; in graphs and under tf.distribute."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.model.optimizers import averaging, clip, make_optimizer
from estimator_app.model.schedule import RECIPES

v1 = tf.compat.v1
STEPS, DECAY = 5, 0.01
KERNEL = np.random.default_rng(0).normal(size=[3, 4]).astype(np.float32)
BIAS = np.array([1, -2, 3], np.float32)
RANDOM = np.random.default_rng(1)
GRADIENTS = [(RANDOM.normal(size=[3, 4]).astype("f"), RANDOM.normal(size=[3]).astype("f")) for _ in range(STEPS)]


def rate(step):
    return 0.1 / (1 + step)  # another each step: whether a rate is inside the velocity or not shows


def momentum(variable, gradients, decay):
    """Nesterov's, with the gradient of decay / 2 * |w|^2 (He et al. 2016; Sutskever et al. 2013)."""
    velocity = 0
    for step, gradient in enumerate(gradients):
        gradient = gradient + decay * variable
        velocity = 0.9 * velocity + gradient
        variable = variable - rate(step) * (gradient + 0.9 * velocity)
    return variable


def lars(variable, gradients, decay):
    """You et al. 2017, algorithm 1; plain momentum for what has no decay."""
    velocity = 0
    for step, gradient in enumerate(gradients):
        size, local = np.linalg.norm(variable), 1
        if decay:
            local = 0.001 * size / (np.linalg.norm(gradient) + decay * size)
        velocity = 0.9 * velocity + rate(step) * local * (gradient + decay * variable)
        variable = variable - velocity
    return variable


def adamw(variable, gradients, decay):
    """TensorFlow's own, where it is asked for."""
    weights = tf.Variable(variable)
    optimizer = tf.keras.optimizers.AdamW(rate(0), weight_decay=decay or 0.0)
    for step, gradient in enumerate(gradients):
        optimizer.learning_rate = rate(step)
        optimizer.apply_gradients([(tf.constant(gradient), weights)])
    return weights.numpy()


EXPECTED = {"momentum": momentum, "lars": lars, "adamw": adamw}


def check(name, kernel, bias):
    expected = EXPECTED[name](KERNEL, [pair[0] for pair in GRADIENTS], DECAY)
    np.testing.assert_allclose(kernel, expected, rtol=2e-5)
    # The steps of LARS are small beside the kernel, and what decays is small beside them.
    np.testing.assert_allclose(kernel - KERNEL, expected - KERNEL, rtol=1e-3, atol=5e-7)
    np.testing.assert_allclose(bias, EXPECTED[name](BIAS, [pair[1] for pair in GRADIENTS], 0), rtol=2e-5)


@pytest.mark.parametrize(("norm", "factor"), [(5.0, 0.5), (10.0, 1.0), (20.0, 1.0)])
def test_gradients_are_scaled_by_one_factor_so_that_their_sum_over_replicas_has_the_norm(norm, factor):
    parts = [tf.constant([3.0, 0.0]), None, tf.constant([[0.0, 4.0]])]  # of one of two replicas: 6 and 8 in both
    scaled = clip(parts, [tf.Variable(0.0)] * 3, norm, lambda part: 2 * part)
    assert scaled[1] is None
    assert [part.numpy().tolist() for part in (scaled[0], scaled[2])] == [[3 * factor, 0], [[0, 4 * factor]]]


@pytest.mark.parametrize(("step", "share"), [(0, 0.1), (8, 0.5), (80, 0.9), (10**6, 0.99)])
def test_a_moving_average_forgets_the_initial_weights(step, share):
    assert averaging(0.99, tf.constant(step, tf.int64)).numpy() == pytest.approx(share)


@pytest.mark.parametrize("name", RECIPES)
def test_steps_in_a_graph_are_those_of_the_paper_and_biases_never_decay(name, tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        kernel, bias = v1.Variable(KERNEL, use_resource=True), v1.Variable(BIAS, use_resource=True)
        now, step = v1.placeholder(tf.float32, []), v1.train.get_or_create_global_step()
        fed = [v1.placeholder(tf.float32, array.shape) for array in (KERNEL, BIAS)]
        optimizer = make_optimizer(name, rate(now), DECAY)
        apply = optimizer.apply_gradients(zip(fed, (kernel, bias), strict=True), step)
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver()
        for number, gradients in enumerate(GRADIENTS):
            session.run(apply, {now: number, **dict(zip(fed, gradients, strict=True))})
            path = saver.save(session, f"{tmp_path}/model.ckpt")
            session.run(v1.global_variables_initializer())
            saver.restore(session, path)  # the slots are in the checkpoint
        values = session.run([kernel, bias])
        assert session.run(step) == STEPS
    check(name, *values)


def ancestors(op) -> set[str]:
    """Returns the names of all ops that are done before an op."""
    names, pending = set(), [op]
    while pending:
        one = pending.pop()
        before = [*one.control_inputs, *(tensor.op for tensor in one.inputs)]
        pending += [other for other in before if other.name not in names]
        names |= {other.name for other in before}
    return names


@pytest.mark.parametrize("name", RECIPES)
def test_a_graph_changes_no_variable_before_all_gradients_are_there(name):
    with tf.Graph().as_default() as graph:
        first, second = (v1.Variable(KERNEL, use_resource=True) for _ in range(2))
        loss = tf.reduce_sum(tf.tanh(tf.matmul(first, tf.ones([4, 3]))) @ second)
        gradients = tf.gradients(loss, [first, second])
        before = {op.name for op in graph.get_operations()}
        make_optimizer(name, 0.1, DECAY).apply_gradients(zip(gradients, (first, second), strict=True))
        handles = {first.handle.op.name, second.handle.op.name}
        changes = [
            op
            for op in graph.get_operations()
            if op.name not in before and op.op_def.is_stateful and op.type != "ReadVariableOp"
            if op.inputs and op.inputs[0].op.name in handles
        ]
    assert len(changes) >= 2
    for op in changes:
        assert {gradient.op.name for gradient in gradients} <= ancestors(op), op.name
    # A kernel decays before its step: both change it, and their order must not depend on threads.
    decays = [op.name for op in changes if op.type == "AssignSubVariableOp"]
    assert len(decays) == (2 if name == "adamw" else 0)
    for op in changes:
        assert op.name in decays or not decays or ancestors(op) & {*decays}, op.name


def in_slices(gradient):
    """Returns a gradient as an embedding's comes: by rows, those that come twice in two parts, and none of zeros."""
    rows = [0, 1, 1, *range(2, len(gradient))]
    parts = np.stack([gradient[0], gradient[1] / 2, gradient[1] / 2, *gradient[2:]])
    return tf.IndexedSlices(tf.constant(parts), tf.constant(rows), tf.constant(gradient.shape))


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("graph", [True, False], ids=["graph", "tf.distribute"])
def test_an_embedding_s_gradient_takes_the_steps_of_the_dense_one_rows_that_no_example_had_too(name, graph):
    kernel = np.random.default_rng(2).normal(size=[5, 4]).astype(np.float32)
    gradients = [np.concatenate([pair[0], np.zeros([2, 4], "f")]) for pair in GRADIENTS]
    expected = EXPECTED[name](kernel, gradients, DECAY)
    sliced = [in_slices(gradient[:3]) for gradient in gradients]
    if graph:
        with tf.Graph().as_default(), v1.Session() as session:
            variable = v1.Variable(kernel, use_resource=True)
            now = v1.placeholder(tf.float32, [])
            values, indices = v1.placeholder(tf.float32, [4, 4]), v1.placeholder(tf.int32, [4])
            optimizer = make_optimizer(name, rate(now), DECAY)
            apply = optimizer.apply_gradients([(tf.IndexedSlices(values, indices), variable)])
            session.run(v1.global_variables_initializer())
            for step, slices in enumerate(sliced):
                session.run(apply, {now: step, values: slices.values.numpy(), indices: slices.indices.numpy()})
            actual = session.run(variable)
    else:
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
        with strategy.scope():
            variable, step = tf.Variable(kernel), tf.Variable(0.0)
            optimizer = make_optimizer(name, lambda: rate(step), DECAY)

        @tf.function
        def train(gradient):
            strategy.run(lambda: optimizer.apply_gradients([(gradient, variable)]))

        for slices in sliced:
            train(slices)
            step.assign_add(1.0)
        actual = variable.numpy()
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("name", RECIPES)
def test_steps_under_tf_distribute_are_the_same(name):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        kernel, bias, step = tf.Variable(KERNEL), tf.Variable(BIAS), tf.Variable(0.0)
        optimizer = make_optimizer(name, lambda: rate(step), DECAY)

    @tf.function
    def train(kernel_gradient, bias_gradient):
        strategy.run(lambda: optimizer.apply_gradients([(kernel_gradient, kernel), (bias_gradient, bias)]))

    for gradients in GRADIENTS:
        train(*map(tf.constant, gradients))
        step.assign_add(1.0)
    check(name, kernel.numpy(), bias.numpy())


def test_a_kernel_of_zeros_moves_under_lars():
    with tf.Graph().as_default(), v1.Session() as session:
        kernel = v1.Variable(np.zeros([2, 2], "f"), use_resource=True)
        apply = make_optimizer("lars", tf.constant(0.1), DECAY).apply_gradients([(tf.ones([2, 2]), kernel)])
        session.run(v1.global_variables_initializer())
        session.run(apply)
        np.testing.assert_allclose(session.run(kernel), -0.1)


@pytest.mark.parametrize("name", RECIPES)
def test_a_scalar_never_decays_and_what_has_no_gradient_stays(name):
    with tf.Graph().as_default(), v1.Session() as session:
        scalar, kernel = v1.Variable(2.0, use_resource=True), v1.Variable(KERNEL, use_resource=True)
        pairs = [(tf.constant(0.0), scalar), (None, kernel)]
        apply = make_optimizer(name, tf.constant(0.1), DECAY).apply_gradients(pairs)
        session.run(v1.global_variables_initializer())
        session.run(apply)
        assert session.run(scalar) == 2
        np.testing.assert_array_equal(session.run(kernel), KERNEL)
