"""tf.data service: real dispatcher, real workers, several hosts; each example once an epoch over all of them."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tensorflow as tf

from support.corrupting import SHARD, changed, rewrite
from support.service import marked, numbers
from tpu_input import InputConfig, from_infeed, make_eval_input_fn, make_train_input_fn, read_manifest
from tpu_input.__main__ import main
from tpu_input.augment import find_augment
from tpu_input.service import served

service = tf.data.experimental.service


@pytest.fixture
def dispatcher():
    server = service.DispatchServer()
    address = server.target.removeprefix("grpc://")
    workers = [service.WorkerServer(service.WorkerConfig(address, heartbeat_interval_ms=100)) for _ in range(2)]
    yield server.target
    while workers:  # a worker that is deleted later waits for answers of the dispatcher
        workers.pop()._stop()
    server._stop()


def configured(dispatcher, request, **options):
    fields: dict[str, Any] = {"augment": marked} | options
    return InputConfig(8, deterministic=False, service=dispatcher, service_job=request.node.name, **fields)


def take_batches(manifest, config, host, num_batches, start_step=0):
    params = {"batch_size": 24, "host": host, "num_hosts": 2}
    dataset = make_train_input_fn(manifest, config, start_step=start_step)(params)
    return list(dataset.take(num_batches).as_numpy_iterator())


@pytest.mark.long
@pytest.mark.core
def test_each_example_comes_once_an_epoch_over_all_hosts(digits_dataset, dispatcher, request):
    total, config = digits_dataset.split("train").num_examples, configured(dispatcher, request)
    with ThreadPoolExecutor(2) as pool:
        hosts = list(pool.map(lambda host: take_batches(digits_dataset, config, host, 3 * total // 48), range(2)))
    counts = Counter(number for batches in hosts for number in numbers(batches))
    assert set(counts.values()) == {1}  # no example of an epoch came twice
    assert set(range(total)) <= set(counts)  # and of the first epoch all came
    labels = Counter(int(label) for batches in hosts for _, labels in batches for label in labels)
    assert set(labels) == set(range(10))


@pytest.mark.long
def test_a_start_begins_near_its_step(digits_dataset, dispatcher, request):
    total, config = digits_dataset.split("train").num_examples, configured(dispatcher, request)
    first = numbers(take_batches(digits_dataset, config, 0, 4, start_step=5 * total // 48 + 1))
    assert {number // total for number in first} <= {5, 6}


@pytest.mark.long
def test_another_configuration_is_another_job(digits_dataset, dispatcher, request):
    for size in (8, 16):
        config = InputConfig(size, deterministic=False, service=dispatcher, service_job=request.node.name)
        assert take_batches(digits_dataset, config, 0, 1)[0][0]["image"].shape == (24, size, size, 3)


def test_an_augmentation_of_another_name_or_strength_is_another_job(monkeypatch):
    jobs = []

    def distribute(*_: Any, job_name: str, **__: Any) -> Any:
        jobs.append(job_name)
        return lambda dataset: dataset

    monkeypatch.setattr(service, "distribute", distribute)
    texts = (None, "color_jitter", "color_jitter:0.1", "rand_augment", "rand_augment:2,15", "auto", "rand_augment:2,9")
    for text in texts:
        config = InputConfig(8, deterministic=False, service="grpc://localhost:1", augment=find_augment(text))
        served(tf.data.Dataset.range(1), config)
    assert len(set(jobs)) == len(texts) - 1
    assert jobs[3] == jobs[-1]


def test_a_graph_is_served_in_every_layout(digits_dataset, dispatcher, request):
    config = configured(dispatcher, request, layout="auto", echo=2)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = make_train_input_fn(digits_dataset, config)({"batch_size": 24})
        features, label = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        assert (features["image"].shape, label.shape) == ((8, 8, 3, 24), (24,))
        assert session.run(from_infeed(features["image"], config)).shape == (24, 8, 8, 3)


def test_evaluation_stays_on_the_hosts(digits_dataset):
    nobody = InputConfig(8, deterministic=False, service="grpc://localhost:1")
    dataset = make_eval_input_fn(digits_dataset, nobody)({"batch_size": 111})
    assert sum(features["weight"].sum() for features, _ in dataset.take(3).as_numpy_iterator()) == 333


def test_a_corrupt_record_is_named_to_the_host(dataset_copy, dispatcher, request):
    rewrite(dataset_copy, changed(label=77))
    manifest = read_manifest(dataset_copy)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"record 5 of .*{SHARD} has label 77"):
        take_batches(manifest, configured(dispatcher, request), 0, 200)


@pytest.mark.long
def test_skipping_goes_on_within_its_budget(dataset_copy, dispatcher, request):
    rewrite(dataset_copy, changed(label=77))
    config = configured(dispatcher, request, on_corrupt="skip", max_corrupt=1)
    batches = take_batches(read_manifest(dataset_copy), config, 0, 180)
    assert 1 <= sum((features["weight"] == 0).sum() for features, _ in batches) <= 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"service": "10.0.0.2:5000"},
            "service must be the address of a dispatcher, \"grpc://address:port\", got '10.0.0.2:5000'",
        ),
        ({"service": "grpc://10.0.0.2"}, "service must be"),
        ({"deterministic": True}, "whichever host asks first, .*; set deterministic=False to accept this"),
        ({"cache": "records"}, "cache must be None with a service"),
    ],
)
def test_what_a_service_cannot_do_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        InputConfig(8, **({"deterministic": False, "service": "grpc://10.0.0.2:5000"} | options))


def test_a_second_dispatcher_at_a_port_is_refused(dispatcher, capsys):
    port = dispatcher.rpartition(":")[2]
    assert main(["dispatcher", f"--port={port}"]) == 2
    assert f"error: cannot listen on port {port}: Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize("port", [-4, 65536])
@pytest.mark.parametrize("command", [("dispatcher",), ("worker", "--dispatcher=grpc://127.0.0.1:5000")])
def test_a_port_that_no_machine_has_is_refused(capsys, command, port):
    assert main([*command, f"--port={port}"]) == 2
    assert capsys.readouterr().err == f"error: --port must be from 0 to 65535, got {port}\n"


def test_a_worker_of_no_dispatcher_s_address_is_refused(capsys):
    assert main(["worker", "--dispatcher=10.0.0.2:5050"]) == 2
    stderr = capsys.readouterr().err
    assert (
        stderr == "error: service must be the address of a dispatcher, \"grpc://address:port\", got '10.0.0.2:5050'\n"
    )
