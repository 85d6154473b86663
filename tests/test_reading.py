"""What keeps an image from being read, and which of it the image is to blame for."""

from __future__ import annotations

import errno
import os

import pytest

from beam_pipelines import storage
from beam_pipelines.images import Rejected
from beam_pipelines.reading import map_images, read_rows
from beam_pipelines.rows import Row


def failing(error: Exception):
    def fail(*_):
        raise error

    return fail


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE])
def test_what_the_machine_lacks_stops_the_run_and_rejects_nothing(monkeypatch, code):
    monkeypatch.setattr(storage, "read_bytes", failing(OSError(code, os.strerror(code), "a.jpg")))
    with pytest.raises(storage.Unavailable, match=rf"^'a.jpg' cannot be read now: {os.strerror(code)}; mend that"):
        list(read_rows([Row("a", "a.jpg")]))


def test_want_of_memory_stops_the_run_and_rejects_nothing(monkeypatch, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"a")
    row = Row("a", str(tmp_path / "a.jpg"))
    with pytest.raises(storage.Unavailable, match="there is too little memory; mend that, nothing is wrong with"):
        list(map_images([row], failing(MemoryError()), 1))
    monkeypatch.setattr(storage, "read_bytes", failing(MemoryError()))
    with pytest.raises(storage.Unavailable, match="there is too little memory"):
        list(read_rows([row]))


def test_a_file_that_may_not_be_read_is_rejected(monkeypatch):
    monkeypatch.setattr(storage, "read_bytes", failing(PermissionError(errno.EACCES, "Permission denied", "a.jpg")))
    ((_, rejected),) = read_rows([Row("a", "a.jpg")])
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "unreadable"
