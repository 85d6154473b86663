"""The benchmark command: numbers that add up, words that say what to change."""

from __future__ import annotations

import json

import pytest

from tpu_input import __main__
from tpu_input.benchmark import Measured


def test_the_benchmark_measures_a_dataset(digits_dataset, capsys):
    flags = ["benchmark", digits_dataset.path, "--image_size=16", "--images=256", "--need=3000"]
    assert __main__.main([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["cpu_ms"]) == ["read", "parse", "full decode", "whole"]
    assert found["cores_needed"] == pytest.approx(3 * found["cpu_ms"]["whole"])
    assert __main__.main(flags) == 0
    assert "3000 images/s take" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("read", "decode", "message"),
    [(0.1, 0.9, "Decoding bounds it"), (0.6, 0.7, "Reading bounds it"), (0.1, 0.2, "Neither reading nor decoding")],
)
def test_the_verdict_names_what_bounds_the_input(read, decode, message):
    measured = Measured(1000, {"read": read, "parse": read, "full decode": decode, "whole": 1.0}, 2, 10**8)
    assert message in measured.verdict(None)
    assert "3000 images/s take 3.0 cores" in measured.verdict(3000)


def test_no_dataset_is_said(tmp_path, capsys):
    assert __main__.main(["benchmark", str(tmp_path)]) == 2
    assert "holds no manifest.json" in capsys.readouterr().err
