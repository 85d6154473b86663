"""What a bucket refuses is said in one line, at once, before anything is launched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from beam_pipelines.storage import gcs
from support.pipelines_commands import refused, run
from tpu_input.command_line import google_client

ROOT = Path(__file__).parents[2]
REQUESTER_PAYS = "400 Bucket is a requester pays bucket but no user project provided."
DENIED = "403 somebody@example.com does not have storage.objects.list access to the Google Cloud Storage bucket."


def commands(uri: str, local: Path) -> list[tuple[str, ...]]:
    return [
        ("convert", f"--input={uri}", f"--output={local}/out"),
        ("convert", f"--input={local}", f"--output={uri}"),
        ("verify", uri),
        ("report", uri),
        ("sample", uri),
    ]


@pytest.mark.cloud
def test_a_missing_bucket(capsys, cloud, few_digits):
    for command in commands("gs://no-such-bucket-here/images", few_digits):
        message = refused(capsys, *command)
        assert message.startswith(
            "error: the bucket 'gs://no-such-bucket-here' does not exist; correct the name, or run: gcloud"
        )


@pytest.mark.cloud
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            DENIED,
            "does not have storage.objects.list access to the Google Cloud Storage bucket; reading needs the role",
        ),
        (REQUESTER_PAYS, "no user project provided; set GOOGLE_CLOUD_QUOTA_PROJECT to the project that pays"),
        ("401 Anonymous caller", "needs credentials: Anonymous"),
    ],
    ids=["denied", "requester_pays", "anonymous"],
)
def test_a_bucket_that_refuses(capsys, cloud, proxy, few_digits, answer, expected):
    bucket = cloud.make_bucket()
    proxy.fault = lambda request: answer
    for command in commands(f"{bucket}/images", few_digits):
        message = refused(capsys, *command)
        assert expected in message
        assert f"{bucket}/images" in message


@pytest.mark.cloud
def test_a_bucket_that_can_be_read_but_not_written(capsys, cloud, proxy, few_digits):
    bucket = cloud.make_bucket()
    proxy.fault = lambda request: DENIED if request.kind == "upload" else ""
    message = refused(capsys, "convert", f"--input={few_digits}", f"--output={bucket}/out")
    assert message.startswith(f"error: no permission for '{bucket}/out/.jpeg2tpu/lock': somebody@example.com")
    assert proxy.counts().keys() == {"list", "upload"}  # nothing was launched


@pytest.mark.cloud
def test_a_store_that_cannot_be_reached(capsys, cloud, proxy, few_digits, monkeypatch):
    monkeypatch.setattr(gcs, "QUICK", gcs.QUICK.with_timeout(0.5))
    bucket = cloud.make_bucket()
    proxy.fault = lambda request: "reset"
    for command in commands(f"{bucket}/images", few_digits):
        assert f"'{bucket}/images' cannot be reached: " in refused(capsys, *command)


@pytest.mark.cloud
def test_the_project_that_pays_and_the_credentials_go_with_every_request(cloud, proxy, monkeypatch):
    bucket = cloud.make_bucket()
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")  # for which no credentials are used
    monkeypatch.setenv("API_ENDPOINT_OVERRIDE", proxy.url)
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "payer")
    with gcs.explained(bucket):
        assert not gcs.exists(f"{bucket}/x")
    assert {(request.authorized, request.paid_by) for request in proxy.requests} == {(True, "payer")}


@pytest.mark.cloud
def test_without_credentials_a_public_bucket_can_be_read(cloud, proxy, monkeypatch, tmp_path):
    bucket = cloud.make_bucket()
    cloud.put(f"{bucket}/x", b"public")
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("API_ENDPOINT_OVERRIDE", proxy.url)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))  # where gcloud leaves those of a user
    assert gcs.read_bytes(f"{bucket}/x", 0, None, 0) == b"public"
    assert {request.authorized for request in proxy.requests} == {False}


def test_credentials_of_gcloud_cause_no_warning(monkeypatch, tmp_path):
    from google.auth._cloud_sdk import CLOUD_SDK_CLIENT_ID

    names = {"type": "authorized_user", "client_id": CLOUD_SDK_CLIENT_ID, "client_secret": "x", "refresh_token": "x"}
    (tmp_path / "application_default_credentials.json").write_text(json.dumps(names))
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    google_client._client_of.cache_clear()
    assert google_client.client()._credentials.refresh_token == "x"
    google_client._client_of.cache_clear()


@pytest.mark.cloud
def test_a_key_file_that_is_not_there(capsys, cloud, proxy, monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("API_ENDPOINT_OVERRIDE", proxy.url)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/key.json")
    assert "/no/such/key.json" in refused(capsys, "verify", "gs://bucket/x")


def test_a_uri_without_a_bucket(capsys, tmp_path):
    assert "does not name a bucket" in refused(capsys, "convert", f"--input={tmp_path}", "--output=gs:///out")


def test_a_missing_client_is_said_before_anything_is_launched(few_digits):
    code = (
        "import sys; sys.modules['google.cloud.storage'] = None\n"
        "from beam_pipelines.__main__ import main\n"
        f"sys.exit(main(['convert', '--input={few_digits}', '--output=gs://bucket/out']))"
    )
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("error: 'gs://bucket/out' needs google-cloud-storage (")
    assert process.stderr.endswith("; run: pip install google-cloud-storage\n")


@pytest.mark.cloud
def test_pascal_voc_in_a_bucket_is_told_as_such_but_not_files_of_boxes_beside_images(capsys, cloud, tmp_path):
    bucket = cloud.make_bucket()
    for name in ("voc/VOCdevkit/VOC2012/Annotations/1.xml", "voc/VOCdevkit/VOC2012/JPEGImages/1.jpg"):
        cloud.put(f"{bucket}/{name}", b"\0")
    for name in ("cat/Annotations/1.xml", "cat/b.jpg", "dog/Annotations/2.xml", "dog/b.jpg"):
        cloud.put(f"{bucket}/beside/{name}", b"\0")
    message = refused(capsys, "convert", f"--input={bucket}/voc", f"--output={tmp_path}/voc")
    assert f"input '{bucket}/voc' is in the layout of Pascal VOC" in message
    code, _, err = run(capsys, "convert", f"--input={bucket}/beside", f"--output={tmp_path}/beside")
    assert (code, "objects with boxes" in err) == (2, False)
    assert err.startswith("not images, so only listed in rejected.jsonl: 2 .xml\nerror: ")
