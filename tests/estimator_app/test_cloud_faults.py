"""What a bucket refuses, and a shard that cannot be read, end a command with one line that names them."""

from __future__ import annotations

import pytest

from estimator_app.config import default_trainer

pytestmark = pytest.mark.cloud
SHARD = "train-00002-of-00009.tfrecord"


needs_estimator = pytest.mark.skipif(
    default_trainer() != "tpu_estimator", reason="TPUEstimator ends with TensorFlow 2.15"
)


@pytest.mark.parametrize(
    ("loop", "fault", "why"),
    [
        pytest.param("tpu_estimator", "503", "the storage answers 503 repeatedly", marks=needs_estimator),
        pytest.param("tpu_estimator", "cut", "the bucket cannot be reached: ", marks=needs_estimator),
        ("tf_distribute", "503", "the storage answers 503 repeatedly"),
        ("tf_distribute", "403", "no permission; reading needs the role Storage Object Viewer"),
    ],
)
def test_a_shard_that_cannot_be_read_ends_training_with_its_name(gs, loop, fault, why):
    def after_the_first(request):  # which is for the pictures of the input, before training
        return fault if request in gs.proxy.reads(SHARD)[1:] else ""

    gs.proxy.fault = after_the_first
    message = gs.refused(*gs.training(f"{gs.cloud.make_bucket()}/model", f"--trainer={loop}"))
    assert message.startswith(f"{gs.dataset}/{SHARD}: {why}")


def test_a_missing_shard_is_named(gs, digits_dataset):
    dataset = f"{gs.cloud.make_bucket()}/digits"
    gs.cloud.upload(digits_dataset.path, dataset)
    gs.cloud.client().bucket(dataset.split("/")[2]).blob(f"digits/{SHARD}").delete()
    message = gs.refused(
        "train", f"--dataset={dataset}", f"--model_dir={gs.cloud.make_bucket()}/model", "--image_size=16"
    )
    assert SHARD in message


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("403", "no permission; reading needs the role Storage Object Viewer"),
        ("401", "no valid credentials; log in with: gcloud auth application-default login"),
        ("400 <Code>UserProjectMissing</Code>", "the bucket is requester pays; set the project to bill"),
    ],
)
def test_a_dataset_that_is_not_for_this_user_is_said_with_what_helps(gs, tmp_path, fault, why):
    gs.proxy.fault = lambda request: fault
    assert gs.refused(*gs.training(f"{tmp_path}/m")).startswith(f"{gs.dataset}/manifest.json: {why}")


def test_a_bucket_that_is_not_there_is_said(gs):
    message = gs.refused("train", "--dataset=gs://no-such-bucket/digits", "--model_dir=gs://no-such-bucket/model")
    assert message == "bucket 'no-such-bucket' of 'gs://no-such-bucket/digits' does not exist; check its name"
    message = gs.refused(*gs.training("gs://no-such-bucket/model"))
    assert message == "cannot write to 'gs://no-such-bucket/model': there is no such object or bucket"


def test_a_model_dir_and_an_export_dir_that_cannot_be_written_are_said_before_training(gs):
    bucket = gs.cloud.make_bucket()
    for flag, path in (("", f"{bucket}/model"), (f"--export_dir={bucket}/exports", f"{bucket}/exports")):
        denied = path.rpartition("/")[2]
        gs.proxy.fault = lambda request, denied=denied: (
            "403" if request.method == "POST" and denied in request.target else None
        )
        message = gs.refused(*gs.training(f"{bucket}/model", *filter(None, [flag])))
        assert message.startswith(f"cannot write to '{path}': ")
        assert "no permission" in message
