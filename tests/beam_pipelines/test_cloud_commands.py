"""Commands that look at a dataset in a bucket, by TensorFlow's own filesystem."""

from __future__ import annotations

import json
import re

import pytest

from estimator_app.config import default_trainer
from support.gs import FLAGS

pytestmark = pytest.mark.cloud
SHARD = "train-00002-of-00009.tfrecord"


def preflight(gs) -> tuple[str, ...]:
    return ("preflight", f"--dataset={gs.dataset}", "--topology=v5e:2x2", "--eval_batch_size=32", *FLAGS)


def test_preflight_of_a_dataset_in_a_bucket_says_what_it_says_of_one_in_a_folder(gs, digits_dataset):
    stdout = gs.does(*preflight(gs))
    gs.proxy.requests.clear()
    assert stdout == gs.does(*preflight(gs), f"--dataset={digits_dataset.path}")
    assert gs.proxy.requests == []
    assert stdout.startswith(f"cnn by {default_trainer()} on v5e:2x2, 1 TPU VM × 4 cores")
    assert stdout.endswith("nothing found that would fail on a TPU; lines marked – were not checked\n")


def test_preflight_names_a_shard_that_the_bucket_does_not_deliver(gs):
    gs.proxy.fault = lambda request: "403" if SHARD in request.target else None
    code, out, err = gs.run("-m", "estimator_app", *preflight(gs))
    assert (code, err) == (1, "")
    assert f"  ✗ {gs.dataset}/{SHARD}: no permission; reading needs the role Storage Object Viewer" in out


BENCHMARK = ("-m", "tpu_input", "benchmark")
SHORT = ("--image_size=8", "--images=32", "--rounds=1", "--batch_size=32")


def test_the_benchmark_reads_every_stage_from_a_bucket(gs):
    code, out, err = gs.run(*BENCHMARK, gs.dataset, *SHORT, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert list(result["stages"]) == ["read", "parse", "crop", "decode", "resize", "batch", "layout"]
    assert "cache='decoded'" in result["changes"]
    reads = [re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["range"]) for request in gs.proxy.reads(".tfrecord")]
    assert reads
    assert all(read and int(read[2]) - int(read[1]) < 8 << 20 for read in reads)


def test_the_benchmark_says_what_a_bucket_refuses_in_one_line(gs):
    gs.proxy.fault = lambda request: "403" if SHARD in request.target else None
    code, out, err = gs.run(*BENCHMARK, gs.dataset, *SHORT)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {gs.dataset}/{SHARD}: no permission; reading needs the role")
    code, out, err = gs.run(*BENCHMARK, f"{gs.dataset}/none", *SHORT)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(
        f"error: '{gs.dataset}/none' has no manifest.json, so it is not a complete dataset; create one with:"
    )
