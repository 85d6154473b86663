"""What TensorFlow says of a bucket becomes one line with what helps; Google's client belongs to one process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tpu_input.storage.gcs_filesystem import in_words

OBJECT = "gs://flowers/digits/train-00002-of-00009.tfrecord"
ANSWER = "Error executing an HTTP request: HTTP response code {} with body '{}'\n\t when reading " + OBJECT


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            ANSWER.format(403, '{\n "error": {\n  "code": 403,\n  "message": "me@x does not have storage.objects.get"'),
            "no permission; reading needs the role Storage Object Viewer on the bucket, writing Storage Object User",
        ),
        (ANSWER.format(401, "{}"), "no valid credentials; log in with: gcloud auth application-default login"),
        (ANSWER.format(404, "{}"), "there is no such object or bucket"),
        (
            ANSWER.format(400, "<Error><Code>UserProjectMissing</Code></Error>"),
            "the bucket is requester pays; set the project to bill: "
            "GCS_ADDITIONAL_REQUEST_HEADER=x-goog-user-project:PROJECT, for "
            "RecordSource GOOGLE_CLOUD_QUOTA_PROJECT=PROJECT",
        ),
        (
            "All 10 retry attempts failed. The last failure: " + ANSWER.format(503, "") + "\n\t [[{{node Next}}]]",
            "the storage answers 503 repeatedly; try again later",
        ),
        (
            "Error executing an HTTP request: libcurl code 6 meaning 'Could not resolve host', error details: Could "
            f"not resolve host: storage.googleapis.com\n\t when reading {OBJECT}",
            "the bucket cannot be reached: Could not resolve host",
        ),
    ],
)
def test_a_request_that_failed_is_said_in_a_line_with_its_object(message, words):
    assert in_words(message) == f"{OBJECT}: {words}"


def test_an_emulator_that_tensorflow_does_not_use_is_named(monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    message = "Error executing an HTTP request: libcurl code 7 meaning 'No', error details: x"
    assert in_words(message) == "the bucket cannot be reached: No; TensorFlow does not use STORAGE_EMULATOR_HOST"


def test_a_request_for_a_bucket_itself_names_none():
    message = "Error executing an HTTP request: HTTP response code 412 with body '{}'"
    assert in_words(message) == "the storage answers 412"


@pytest.mark.parametrize("message", ["record 5 of gs://b/o has label 77", "a\nb", "HTTP response code 403"])
def test_other_messages_stay_as_they_are(message):
    assert in_words(message) == message


FORKED = """
import multiprocessing
from tpu_input.command_line.google_client import client
mine = client()
def is_mine(_):
    return client() is mine
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(is_mine(0), *pool.map(is_mine, [0]))
"""


def test_a_forked_process_has_a_client_of_its_own():
    environment = os.environ | {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"}  # nobody is asked who we are
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.stdout.split() == ["True", "False"], result.stderr
