"""Training, evaluation, export and prediction where all is gs://, with TensorFlow's own filesystem; also disturbed."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.model_dir.history import read_history
from support import published
from support.trainers import RUNNABLE

pytestmark = pytest.mark.cloud


@pytest.fixture(scope="module", params=RUNNABLE)
def trained(gs_session, digits_dataset, request) -> tuple[str, str]:
    """The URI of a whole run's model_dir by one of the loops, and what it said."""
    gs_session.take(digits_dataset.path)
    model_dir = f"{gs_session.cloud.make_bucket()}/{request.param}"
    return model_dir, gs_session.does(*gs_session.training(model_dir, f"--trainer={request.param}"))


def assert_same(gs, model_dir, expected, tmp_path) -> None:
    """Compares two runs: weights to the bit, and what each evaluation found."""
    folders = [gs.download(uri, tmp_path / name) for uri, name in ((model_dir, "mine"), (expected, "other"))]
    actual, reference = map(weights, folders)
    assert actual.keys() == reference.keys()
    for name, value in reference.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)
    rows = [
        [(row.step, row.values["accuracy"], row.values["loss"]) for row in read_history(folder)] for folder in folders
    ]
    assert rows[0] == rows[1]


def weights(folder: str) -> dict[str, np.ndarray]:
    checkpoint = tf.train.load_checkpoint(folder)
    values = {name: checkpoint.get_tensor(name) for name in checkpoint.get_variable_to_shape_map()}
    return {name: value for name, value in values.items() if "save_counter" not in name and "OBJECT_GRAPH" not in name}


def test_a_run_leaves_in_a_bucket_what_it_leaves_in_a_folder(gs, trained):
    model_dir, output = trained
    files = set(gs.cloud.files(model_dir))
    assert {"config.json", "history.csv", "metrics.json", "exports.json", "curves.png", "confusion.png"} <= files
    assert {"checkpoint", "model.ckpt-20.index", "model.ckpt-20.data-00000-of-00001"} <= files
    metrics = json.loads(gs.cloud.get(f"{model_dir}/metrics.json"))
    assert (metrics["step"], output.splitlines()[-1]) == (20, f"export: {model_dir}/{metrics['export']}")
    for kind in ("export/", "export/best/"):
        assert any(name.startswith(kind) and name.endswith("/saved_model.pb") for name in files)
    assert not [name for name in files if "temp" in name or name.endswith(".tmp")]


def test_evaluate_export_and_predict_work_on_buckets(gs, trained, digits):
    model_dir, output = trained
    bucket = model_dir.rpartition("/")[0]
    evaluated = gs.does("evaluate", f"--model_dir={model_dir}")
    assert evaluated.replace("step 20:", "step 20/20:") in output
    out = gs.does("export", f"--model_dir={model_dir}", "--step=12", f"--export_dir={bucket}/exports")
    assert out.startswith(f"export: {bucket}/exports/")
    assert "step 12: accuracy" in gs.does("evaluate", f"--export_dir={bucket}/exports")
    for label in "03":
        for path in sorted((digits / label).iterdir())[:3]:
            gs.cloud.put(f"{bucket}/photos/{label}/{path.name}", path.read_bytes())
    everything = gs.does("predict", f"--export_dir={model_dir}", f"{bucket}/photos").splitlines()
    files = [json.loads(line)["file"] for line in everything]
    assert len(files) == 6
    assert len([request for request in gs.proxy.requests if ".jpg" in request.target]) == 12  # size and bytes of each
    selection = gs.does("predict", f"--export_dir={model_dir}", f"{bucket}/photos/0/*", files[-1]).splitlines()
    assert selection == [*everything[:3], everything[-1]]
    code, _, err = gs.run("-m", "estimator_app", "predict", f"--export_dir={model_dir}", f"{bucket}/nowhere.jpg")
    assert code == 1
    assert err == f"{bucket}/nowhere.jpg: The specified path {bucket}/nowhere.jpg was not found.\n"


# What a run was about to write when it was killed, in the order of writing; each time it goes on from there.
DEADLY = (
    "model.ckpt-8_temp",  # a checkpoint's variables
    "metrics.json",
    "/saved_model.pb",  # the end of an export
    "exports.json",
    "history.csv",
    "model.ckpt-16.index",
)


def test_a_run_killed_in_six_places_ends_with_the_same_weights_and_nothing_half(gs, trained, tmp_path):
    expected, _ = trained
    model_dir = f"{gs.cloud.make_bucket()}/model"
    training = gs.training(model_dir, f"--trainer={expected.rpartition('/')[2]}")
    for deadly in DEADLY:
        process = gs.start("-m", "estimator_app", *training)
        gs.proxy.fault = killing(process.pid, deadly)
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
        assert exports(gs, model_dir) <= exports(gs, expected)
    gs.proxy.calm()
    gs.cloud.put(f"{model_dir}/model.ckpt-3_temp/part-00000-of-00001.data-00000-of-00001", b"half")
    gs.does(*training)
    assert_same(gs, model_dir, expected, tmp_path)
    assert not [name for name in gs.cloud.files(model_dir) if "_temp" in name]


def killing(pid: int, deadly: str):
    """Returns a fault: the process that begins to write an object of that name is killed, and nothing is written."""

    def fault(request):
        if request.method == "POST" and deadly in request.target:
            os.kill(pid, signal.SIGKILL)
            return "503"
        return None

    return fault


def exports(gs, model_dir: str) -> set[tuple[str, ...]]:
    """Returns the files' names of each export that anybody would take for whole."""
    files = [name.rpartition("/") for name in gs.cloud.files(model_dir) if name.startswith("export/")]
    complete_folders = {folder for folder, _, name in files if name == "saved_model.pb"}
    return {
        tuple(sorted(name for parent, _, name in files if parent.startswith(folder))) for folder in complete_folders
    }


def disturb(counts: dict[str, int]):
    """Returns faults: of each kind of request, one in six fails, in all ways in which storage does."""
    turns = {0: "503", 1: "503", 2: "429", 12: "cut", 24: "reset"}

    def fault(request):
        kind = "read" if request.kind == "read" else request.method
        counts[kind] = counts.get(kind, 0) + 1
        if kind == "read" and counts[kind] == 12:
            return "stall"
        return turns.get(counts[kind] % 30)

    return fault


def test_a_run_whose_storage_fails_now_and_then_ends_with_the_same_weights(gs, trained, tmp_path):
    expected, _ = trained
    model_dir = f"{gs.cloud.make_bucket()}/model"
    counts: dict[str, int] = {}
    gs.proxy.fault = disturb(counts)
    gs.does(*gs.training(model_dir, f"--trainer={expected.rpartition('/')[2]}"))
    assert min(counts["read"], counts["POST"], counts["PUT"]) > 30  # all were disturbed
    bucket = model_dir.split("/")[2]
    assert f"/storage/v1/b/{bucket}" not in [request.target for request in gs.proxy.requests]  # takes a role more
    assert_same(gs, model_dir, expected, tmp_path)


def test_the_training_that_began_first_ends_when_another_begins_in_its_bucket(gs, trained):
    expected, _ = trained
    model_dir = f"{gs.cloud.make_bucket()}/model"

    def take_over(request):
        if request.method == "PUT" and "history.csv" in request.target:
            gs.cloud.put(f"{model_dir}/.lock", f"process 7 of elsewhere ({0:032x})".ljust(300).encode())
        return None

    gs.proxy.fault = take_over
    message = gs.refused(*gs.training(model_dir, f"--trainer={expected.rpartition('/')[2]}"))
    assert message.startswith(f"process 7 of elsewhere has started training in '{model_dir}', so this one (process ")


def test_published_weights_are_read_from_a_bucket(gs):
    folder = gs.cloud.make_bucket()
    content = published.to_bytes(published.random_tensors(published.timm_resnet18(10)))
    gs.cloud.put(f"{folder}/whole.safetensors", content)
    gs.cloud.put(f"{folder}/cut.safetensors", content[:-1])
    gs.cloud.put(f"{folder}/config.json", b'{"pretrained_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}}')
    code = (
        "from estimator_app.train import open_run\n"
        "from estimator_app.trainers.starting_weights import starting_weights\n"
        "for name in ('whole', 'cut'):\n"
        f"    options = {{'network': 'resnet18', 'init_from': f'{folder}/{{name}}.safetensors', 'image_size': 32}}\n"
        f"    opened = open_run({gs.dataset!r}, None, 1000, options)\n"
        "    print(opened.normalization)\n"
        "    print(starting_weights(opened.config))\n"
    )
    _, out, err = gs.run("-c", code)
    taken_over = "input: --mean=127.5,127.5,127.5 --std=127.5,127.5,127.5, of the config.json of"
    assert out.splitlines() == [f"{taken_over} {folder}/whole.safetensors", "102 of 102 variables"]
    assert f"ValueError: --init_from={folder}/cut.safetensors cannot be read: its tensors take 22," in err
