"""What one process of a run of the tests makes, the others get."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from support.shared import shared


class Factory:
    """Stands in for pytest.TempPathFactory of a process of pytest-xdist."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def getbasetemp(self) -> Path:
        return self.base


def test_processes_that_need_a_folder_at_once_get_the_one_that_the_first_has_filled(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    factories: list[Any] = [Factory(tmp_path / name) for name in ("popen-gw0", "popen-gw1")]
    is_making, may_end, makers, results = threading.Event(), threading.Event(), [], []

    def make(folder: Path) -> str:
        makers.append(folder)
        is_making.set()
        assert may_end.wait(60)
        (folder / "file").write_text("all of it")
        return f"{folder}/file"

    threads = [
        threading.Thread(target=lambda one=factory: results.append(shared(one, "folder", make)))
        for factory in factories
    ]
    for thread in threads:
        thread.start()
    assert is_making.wait(60)
    may_end.set()
    for thread in threads:
        thread.join()
    assert makers == [tmp_path / "folder"]
    assert [Path(path).read_text() for path in results] == ["all of it"] * 2


def test_what_failed_half_way_is_made_again(tmp_path):
    factory: Any = Factory(tmp_path)

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        shared(factory, "folder", fail)
    assert shared(factory, "folder", lambda folder: list(folder.iterdir())) == []
