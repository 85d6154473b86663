"""Prism, Beam's runner in Go: same bytes, a worker's death, and what is said where there is no Prism.

`make test-engines` builds it; PRISM names the program.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.prism_runner import PrismJobServer
from apache_beam.version import __version__ as beam_version

from beam_pipelines.convert import convert
from beam_pipelines.runners import launch_checks
from support.cloud import free_port
from support.damage import damage_in_many_ways
from support.engines import command, make_photographs, options, started
from support.folders import files
from support.pipelines_commands import refused, run

INSTALL = f"GOBIN=$PWD go install github.com/apache/beam/sdks/v2/go/cmd/prism@v{beam_version}"
WORKER_PROCESS = "--experiments=use_loopback_process_worker=True"


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    make_photographs(folder)
    return folder


@pytest.fixture(scope="module")
def local_files(photographs, tmp_path_factory) -> dict[str, str]:
    """What a local conversion leaves."""
    output = tmp_path_factory.mktemp("whole") / "out"
    convert(options(photographs, output))
    return files(output)


@pytest.fixture(scope="module")
def prism() -> list[str]:
    if "PRISM" not in os.environ:
        pytest.skip("PRISM does not name Prism's program")
    return ["--runner=PrismRunner", f"--prism_location={os.environ['PRISM']}"]


@pytest.mark.engines
@pytest.mark.parametrize("flags", [[], [WORKER_PROCESS]], ids=["threads", "process"])
def test_the_command_gives_the_same_bytes_as_a_local_run(photographs, local_files, prism, tmp_path, flags):
    result = command(photographs, tmp_path / "out", *prism, *flags, PATH="/usr/bin:/bin")  # no `python` with Beam there
    assert (result.returncode, result.stderr) == (0, "")
    assert files(tmp_path / "out") == local_files


def wait_for_two_shards(process: subprocess.Popen[str], output: Path) -> None:
    while len(list(output.rglob("*.receipt"))) < 2:
        assert process.poll() is None, f"the conversion ended first: {process.communicate()}"
        time.sleep(0.002)


def kill_child(process: subprocess.Popen[str], word: str) -> None:
    """Kills the process below a conversion that has a word in its command line."""
    children = psutil.Process(process.pid).children(recursive=True)
    (child,) = (child for child in children if word in " ".join(child.cmdline()))
    child.send_signal(signal.SIGKILL)


@pytest.mark.engines
def test_a_worker_that_is_killed_ends_the_job_in_one_line_and_the_same_command_completes_it(
    photographs, local_files, prism, tmp_path
):
    output = tmp_path / "out"
    with started(photographs, output, *prism, WORKER_PROCESS) as process:
        wait_for_two_shards(process, output)
        kill_child(process, "SdkHarness")
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (2, ""), err
    assert re.fullmatch(
        r"error: the engine's job failed: .*; written files are kept; rerun the same command to resume\n",
        err,
    )
    finished = {path.name.removesuffix(".receipt") for path in output.rglob("*.receipt")}
    assert 2 <= len(finished) < len([name for name in local_files if name.endswith(".tfrecord")])
    mtimes = {shard: next(output.rglob(f"{shard}.data-*")).stat().st_mtime_ns for shard in finished}
    result = command(photographs, output, *prism, WORKER_PROCESS)
    assert (result.returncode, result.stderr) == (0, "")
    assert files(output) == local_files
    assert {shard: (output / shard).stat().st_mtime_ns for shard in finished} == mtimes


@pytest.mark.engines
def test_what_a_step_refuses_is_said_in_one_line_in_the_words_of_the_step(prism, tmp_path):
    (tmp_path / "broken.tar").write_bytes(b"no archive" * 100)
    result = command(tmp_path / "broken.tar", tmp_path / "out", *prism)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: '{tmp_path}/broken.tar' is not a complete, uncompressed tar archive: ")
    assert result.stderr.count("\n") == 1, result.stderr


@pytest.mark.engines
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_conversion_ends_with_one_line(photographs, local_files, prism, tmp_path, number):
    with started(photographs, tmp_path / "out", *prism) as process:
        wait_for_two_shards(process, tmp_path / "out")
        process.send_signal(number)
        output = process.communicate(timeout=100)
    assert output == ("", "interrupted; rerun the same command to resume\n")
    assert process.returncode == 128 + number
    assert command(photographs, tmp_path / "out", *prism).returncode == 0
    assert files(tmp_path / "out") == local_files


@pytest.mark.engines
def test_an_engine_that_is_killed_is_said_in_one_line(photographs, prism, tmp_path):
    with started(photographs, tmp_path / "out", *prism) as process:
        wait_for_two_shards(process, tmp_path / "out")
        kill_child(process, "--job_port")
        out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (2, ""), err
    pattern = (
        r"error: the connection to the engine was lost: .*; written files are kept; rerun the same command to resume\n"
    )
    assert re.fullmatch(pattern, err)


@pytest.mark.engines
def test_workers_of_prism_find_what_threads_find_and_say_the_same(dataset_copy, capsys, prism):
    damage_in_many_ways(dataset_copy)
    expected = run(capsys, "verify", dataset_copy)
    assert expected[0] == 1
    assert run(capsys, "verify", dataset_copy, *prism) == expected
    assert not (dataset_copy / ".jpeg2tpu").exists()


@pytest.mark.engines
def test_workers_of_prism_repair_a_shard(dataset_copy, capsys, prism):
    before, shard = files(dataset_copy), "train-00003-of-00009.tfrecord"
    (dataset_copy / shard).write_bytes(b"noise")
    assert run(capsys, "repair", dataset_copy, f"--shard={shard}", *prism)[0] == 0
    assert files(dataset_copy) == before


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """No Prism that was downloaded before, and no connection to where it is downloaded from."""
    monkeypatch.setattr(PrismJobServer, "BIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "PrismRunner has no Prism: Unable to fetch remote prism binary at https://github.com/apache/beam/"),
        (["--prism_location=/no/prism"], "has no Prism: --prism_location=/no/prism is not a file; build it"),
        (["--prism_location=/tmp"], "has no Prism: --prism_location=/tmp is not a file; build it"),
        (["--prism_location=http://x.org/prism"], "is not an Apache Beam Github Release page URL or download URL"),
        (["--job_endpoint=127.0.0.1:1"], "nothing answers at --job_endpoint=127.0.0.1:1"),
        (["--prism_locatoin=prism"], "unknown flag --prism_locatoin; did you mean --prism_location?"),
    ],
)
def test_without_prism_the_command_says_how_to_build_it(capsys, few_digits, tmp_path, flags, message):
    args = [f"--input={few_digits}", f"--output={tmp_path}/out", "--runner=PrismRunner", *flags]
    error = refused(capsys, "convert", *args)
    assert message in error
    assert error.count("\n") == 1
    assert ("PrismRunner has no Prism" not in error) or f"; build it with Go, {INSTALL}, and specify it" in error
    assert not (tmp_path / "out").exists()


def test_workers_of_prism_read_local_files_unless_they_are_containers(tmp_path):
    (tmp_path / "prism").touch()
    flags = ["--runner=PrismRunner", f"--prism_location={tmp_path}/prism"]
    for more in ([], ["--environment_type=LOOPBACK"], ["--environment_type=PROCESS"]):
        launch_checks.check(PipelineOptions([*flags, *more]), ["/images", "/dataset"])
    with pytest.raises(ValueError, match=r"^PrismRunner's workers run in containers .* cannot read or write '/images'"):
        launch_checks.check(PipelineOptions([*flags, "--environment_type=DOCKER"]), ["/images", "gs://b/d"])
