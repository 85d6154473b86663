"""Which answers of Google's servers are retried: a limit of a rate as status 403, and a damaged download."""

from __future__ import annotations

import json

import pytest
import requests
from google.api_core import exceptions
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from tpu_input.command_line.google_client import retries


def response(status: int, reason: str) -> requests.Response:
    answer = requests.Response()
    answer.status_code = status
    body = {"error": {"code": status, "message": "no", "errors": [{"reason": reason, "message": "no"}]}}
    answer._content = json.dumps(body).encode()
    answer.request = requests.Request("GET", "http://localhost/b").prepare()
    return answer


@pytest.mark.parametrize("is_invalid", [False, True])
@pytest.mark.parametrize(
    ("status", "reason", "is_retried"),
    [
        (403, "rateLimitExceeded", True),
        (403, "userRateLimitExceeded", True),
        (403, "quotaExceeded", True),
        (403, "forbidden", False),
        (403, "insufficientPermissions", False),
        (429, "rateLimitExceeded", True),
        (404, "notFound", False),
    ],
)
def test_a_limit_of_a_rate_is_retried(status, reason, is_retried, is_invalid):
    answer = response(status, reason)
    error = InvalidResponse(answer, "no") if is_invalid else exceptions.from_http_response(answer)
    assert retries()._predicate(error) is is_retried


def test_a_damaged_download_is_read_again():
    tries = []

    def download() -> bytes:
        tries.append(1)
        if len(tries) == 1:
            raise DataCorruption(response(200, ""), "Checksum mismatch while downloading")
        return b"data"

    assert retries().with_delay(initial=0, maximum=0)(download)() == b"data"
