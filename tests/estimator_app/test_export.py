"""The exported model: loads without tags, is whole or not there, and says of files what evaluation says of records."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("tensorflow_estimator", reason="TPUEstimator ends with TensorFlow 2.15")

from tensorflow.core.protobuf import saved_model_pb2

from estimator_app.export import export_model
from estimator_app.saved_model.classifier import load_classifier
from estimator_app.saved_model.find import find_export, read_origin
from estimator_app.trainers.tpu_estimator.model_fn import make_estimator
from support.app_fixtures import configured, held_out_records, keras_warns
from tpu_input import make_eval_input_fn

pytestmark = keras_warns
v1 = tf.compat.v1


def graphs(export: str) -> dict[tuple[str, ...], list[tf.compat.v1.NodeDef]]:
    """Returns by their tags the nodes of each MetaGraph, functions' too."""
    saved = saved_model_pb2.SavedModel.FromString(Path(export, "saved_model.pb").read_bytes())
    return {
        tuple(graph.meta_info_def.tags): [
            *graph.graph_def.node,
            *(node for function in graph.graph_def.library.function for node in function.node_def),
        ]
        for graph in saved.meta_graphs
    }


def functions(export: str, names: set[str]) -> list[tf.compat.v1.NodeDef]:
    """Returns the nodes of the functions of those names in the last MetaGraph."""
    saved = saved_model_pb2.SavedModel.FromString(Path(export, "saved_model.pb").read_bytes())
    library = saved.meta_graphs[-1].graph_def.library.function
    return [node for function in library if function.signature.name in names for node in function.node_def]


def test_one_signature_takes_files_and_gives_probabilities_label_and_class(finished, digits_dataset):
    signature = tf.saved_model.load(finished.export).signatures["serving_default"]
    records = held_out_records(digits_dataset)
    outputs = signature(image_bytes=tf.constant([record.encoded for record in records]))
    probabilities, labels = outputs["probabilities"].numpy(), outputs["label"].numpy()
    assert set(outputs) == {"probabilities", "label", "class"}
    assert probabilities.shape == (len(records), 10)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(labels, probabilities.argmax(axis=1))
    assert [name.decode() for name in outputs["class"].numpy()] == [digits_dataset.classes[label] for label in labels]
    truth = np.array([record.label for record in records])
    assert (labels == truth).mean() == pytest.approx(finished.metrics.accuracy)
    loss = -np.log(probabilities[np.arange(len(truth)), truth]).mean()
    assert loss == pytest.approx(finished.metrics.loss, rel=1e-4)


def evaluated_logits(config, manifest, checkpoint, batch_size, scratch) -> np.ndarray:
    """Returns the logits that evaluation's first batch has, in TPUEstimator's own graph."""
    estimator = make_estimator(config, str(scratch))
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.create_global_step()
        dataset = make_eval_input_fn(manifest, config.input)({"batch_size": batch_size})
        features, labels = v1.data.make_one_shot_iterator(dataset).get_next()
        estimator.model_fn(features, labels, v1.estimator.ModeKeys.EVAL, estimator.config)
        v1.train.Saver().restore(session, checkpoint)
        (losses,) = [op for op in session.graph.get_operations() if op.type == "SparseSoftmaxCrossEntropyWithLogits"]
        return session.run(losses.inputs[0])


def served_logits(export, files) -> np.ndarray:
    signatures = tf.saved_model.load(export).signatures
    logits = signatures["logits"](image_bytes=tf.constant(files))["logits"]
    probabilities = signatures["serving_default"](image_bytes=tf.constant(files))["probabilities"]
    np.testing.assert_allclose(tf.nn.softmax(logits), probabilities, atol=1e-6)
    return logits.numpy()


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("layout", "batch_size", "eval_crop", "resize"),
    [
        ("NHWC", 50, 0.875, "crop"),
        ("HWCN", 50, 1.0, "crop"),
        ("HWNC", 50, 0.5, "crop"),
        ("auto", 50, 0.75, "crop"),
        ("auto", 8, 0.3, "crop"),
        ("HWCN", 50, 0.875, "pad"),
        ("NHWC", 50, 0.875, "squash"),
    ],
)
@pytest.mark.long
def test_logits_of_files_are_those_of_evaluation(
    finished, digits_dataset, tmp_path, layout, batch_size, eval_crop, resize, dtype
):
    config = configured(digits_dataset, layout=layout, dtype=dtype, eval_crop=eval_crop, resize=resize)
    model_dir = str(Path(finished.export).parent.parent)
    checkpoint = tf.train.latest_checkpoint(model_dir)
    evaluated = evaluated_logits(config, digits_dataset, checkpoint, batch_size, tmp_path / "scratch")
    files = [record.encoded for record in held_out_records(digits_dataset)[:batch_size]]
    served = served_logits(export_model(config, model_dir, str(tmp_path)), files)
    assert np.ptp(evaluated) > 1
    np.testing.assert_allclose(served, evaluated, atol=1e-4)


def test_it_says_where_it_comes_from(finished, digits_dataset):
    config, step = read_origin(finished.export)
    assert (config.network, config.classes, step) == ("cnn", digits_dataset.classes, 60)
    metrics = json.loads(Path(finished.export, "assets.extra", "metrics.json").read_text())
    assert metrics["accuracy"] == finished.metrics.accuracy


def test_names_of_classes_are_read_from_the_asset(finished, digits_dataset, tmp_path):
    export = export_model(configured(digits_dataset), str(Path(finished.export).parent.parent), str(tmp_path))
    names = Path(export, "assets", "classes.txt")
    assert names.read_text() == "".join(f"{name}\n" for name in digits_dataset.classes)
    names.write_text("".join(f"digit {name} · été\n" for name in digits_dataset.classes))
    outputs = tf.saved_model.load(export).signatures["serving_default"](
        image_bytes=tf.constant([held_out_records(digits_dataset)[0].encoded])
    )
    assert outputs["class"].numpy()[0].decode() == f"digit {outputs['label'].numpy()[0]} · été"


def test_warm_up_requests_are_what_tensorflow_serving_reads_and_the_model_answers(finished):
    protos = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    path = f"{finished.export}/assets.extra/tf_serving_warmup_requests"
    logs = [protos.PredictionLog.FromString(data.numpy()) for data in tf.data.TFRecordDataset(path)]
    assert [log.WhichOneof("log_type") for log in logs] == ["predict_log"] * 2
    signatures = tf.saved_model.load(finished.export).signatures
    begins = []
    for log in logs:
        request = log.predict_log.request
        files = tf.make_ndarray(request.inputs["image_bytes"])
        outputs = signatures[request.model_spec.signature_name](image_bytes=tf.constant(files))
        assert outputs["label"].shape == [1]
        begins.append(files[0][:4])
    assert begins == [b"\xff\xd8\xff\xe0", b"\x89PNG"]


def test_an_export_has_its_name_only_when_all_of_it_is_there(finished, digits_dataset, tmp_path, monkeypatch):
    def files(folder: Path) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    def killed(source, target):
        raise KeyboardInterrupt

    model_dir = str(Path(finished.export).parent.parent)
    with monkeypatch.context() as patched:
        patched.setattr("estimator_app.runtime.files.rename", killed)
        with pytest.raises(KeyboardInterrupt):
            export_model(configured(digits_dataset), model_dir, str(tmp_path))
    (remnant,) = tmp_path.iterdir()
    assert remnant.name.startswith("temp-")
    assert files(remnant) == files(Path(finished.export))
    with pytest.raises(ValueError, match="holds no SavedModel"):
        find_export(str(tmp_path))


def test_an_export_for_tpus_runs_only_the_network_there(finished, digits_dataset, tmp_path):
    model_dir = str(Path(finished.export).parent.parent)
    assert list(graphs(finished.export)) == [("serve",)]
    export = export_model(configured(digits_dataset), model_dir, str(tmp_path), export_to_tpu=True)
    nodes_by_tags = graphs(export)
    assert list(nodes_by_tags) == [("serve",), ("serve", "tpu")]
    assert not [node for node in nodes_by_tags["serve",] if "TPU" in node.op]
    marked = [node for node in nodes_by_tags["serve", "tpu"] if "_tpu_replicate" in node.attr]
    called = {node.attr["f"].func.name for node in marked if node.op == "StatefulPartitionedCall"}  # the network
    network_nodes = functions(export, called)
    on_tpu = {node.op for node in [*marked, *network_nodes]}
    on_host = {
        node.op
        for node in nodes_by_tags["serve", "tpu"]
        if "_tpu_replicate" not in node.attr and node not in network_nodes
    }
    assert on_tpu >= {"Conv2D", "MatMul", "Softmax"}
    assert on_host >= {"TPUPartitionedCall", "DecodeAndCropJpeg", "LookupTableFindV2", "ArgMax"}
    assert not on_tpu & {"DecodeAndCropJpeg", "LookupTableFindV2", "Placeholder"}
    with pytest.raises(ValueError, match="tags"):
        tf.saved_model.load(export)
    jpeg = held_out_records(digits_dataset)[0].encoded
    (one,), (other,) = load_classifier(export)([jpeg]), load_classifier(finished.export)([jpeg])
    assert isinstance(one, np.ndarray)
    assert isinstance(other, np.ndarray)
    np.testing.assert_array_equal(one, other)


@pytest.mark.long
def test_the_guides_ways_to_run_it_elsewhere_work(finished, digits, digits_dataset, tmp_path, capsys):
    guide = (Path(__file__).parents[2] / "docs" / "train.md").read_text()
    section = guide.partition("### Elsewhere\n")[2].partition("\n### ")[0]
    (commands,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    photo = shutil.copy(min((digits / "3").iterdir()), tmp_path / "photo.jpg")
    (tmp_path / "model").symlink_to(Path(finished.export).parent.parent)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.run(
        ["bash", "-ec", commands], cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    (expected,) = load_classifier(finished.export)([photo.read_bytes()])
    assert isinstance(expected, np.ndarray)
    assert f"Result for output key class:\n[b'{digits_dataset.classes[expected.argmax()]}']" in process.stdout
    exec(code, {"EXPORT": finished.export, "PHOTO": str(photo)})
    class_name, probability = capsys.readouterr().out.split()
    assert class_name == digits_dataset.classes[expected.argmax()]
    assert float(probability) == pytest.approx(expected.max())
