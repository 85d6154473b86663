"""Inputs at s3://: what pins them, what a store that fails or lies costs, and what is not written there.

That all kinds of inputs are read from every store: tests/contracts/test_input_kinds.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from beam_pipelines import storage
from beam_pipelines.convert import convert
from beam_pipelines.options import Source
from beam_pipelines.sources.listing import list_rows
from beam_pipelines.sources.read_ahead import changes, read_rows
from beam_pipelines.sources.rows import find, locate
from beam_pipelines.verify import verify
from support.cloud import free_port
from support.conversion import after_planning, options
from support.fault_proxy import FaultProxy, every, fault_proxy
from support.folders import files
from support.lying_store import LIES, lying_store
from support.pipelines_commands import refused, run
from support.s3 import ENVIRONMENT, S3, forget_stores

ROOT = Path(__file__).parents[2]


@pytest.fixture
def between(s3: S3, monkeypatch):
    """A proxy in front of the store, which counts and disturbs."""
    with fault_proxy(s3.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        forget_stores()
        yield proxy


@pytest.fixture
def quick(s3: S3, monkeypatch):
    """A tenth of the patience."""
    from beam_pipelines.storage import object_stores

    assert max(object_stores.QUICK) <= 5
    monkeypatch.setattr(object_stores, "QUICK", object_stores.Patience(0.5, 0.5, 0.5))
    monkeypatch.setattr(object_stores, "PATIENT", object_stores.Patience(0.5, 0.5, 0.5))
    forget_stores()


def images(s3: S3, folder: Path) -> str:
    bucket = s3.make_bucket()
    s3.upload(folder, f"{bucket}/in")
    return f"{bucket}/in"


def rows(uri: str) -> list:
    opts = options(uri, "/out")
    return [find(locate(row, opts.sources)) for row in list_rows(opts.sources[0], opts)]


def shards(dataset: Path) -> dict[str, object]:
    return {path: data for path, data in files(dataset).items() if path.endswith(".tfrecord")}


def test_the_dataset_is_that_of_local_files_and_of_worker_processes(s3, few_digits, tmp_path):
    uri = images(s3, few_digits)
    convert(options(few_digits, tmp_path / "local"))
    convert(options(uri, tmp_path / "s3"), num_processes=1)
    convert(options(uri, tmp_path / "processes"), num_processes=2)
    assert shards(tmp_path / "local")
    assert shards(tmp_path / "local") == shards(tmp_path / "s3") == shards(tmp_path / "processes")
    assert not verify(str(tmp_path / "s3")).problems


def test_an_image_is_one_request_and_its_version_none_more(s3, between, few_digits):
    listed = rows(images(s3, few_digits))
    assert len(listed) == 36
    assert all(row.version for row in listed)
    between.requests.clear()
    assert all(isinstance(data, bytes) for _, data in read_rows(listed))
    assert len(between.requests) == 36


@pytest.mark.parametrize("when", ["other bytes", "longer", "deleted"])
def test_an_object_that_changes_after_planning_ends_the_conversion_in_one_line(
    s3, few_digits, tmp_path, monkeypatch, capsys, when
):
    uri = images(s3, few_digits)
    path = sorted((few_digits / "1").iterdir())[0]
    data, name = path.read_bytes(), f"{uri}/1/{path.name}"
    changed = {"other bytes": data[:-1] + b"x", "longer": data + b"x"}

    def change() -> None:
        s3.put(name, changed[when]) if when in changed else s3.delete(name)

    after_planning(monkeypatch, change)
    message = refused(capsys, "convert", f"--input={uri}", f"--output={tmp_path}/out")
    assert "an input has changed since it was listed: " in message
    assert name in message
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_member_of_an_archive_that_was_replaced_is_not_read(s3, few_digits, tmp_path):
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        tar.add(few_digits, ".")
    bucket = s3.make_bucket()
    s3.put(f"{bucket}/in.tar", (tmp_path / "in.tar").read_bytes())
    listed = [row for row in rows(f"{bucket}/in.tar") if not row.reason]
    assert not changes(listed)
    s3.put(f"{bucket}/in.tar", (tmp_path / "in.tar").read_bytes()[:-1] + b"\1")
    assert "was modified" in changes(listed)
    with pytest.raises(storage.Changed, match=r"in\.tar' was overwritten"):
        list(read_rows(listed))


def test_objects_of_folders_are_no_files_and_names_are_read_as_they_are(s3, few_digits):
    bucket = s3.make_bucket()
    names = ["a b/ü %20#x?.jpg", "a b/c=1&d.jpg", "empty.jpg"]
    for name in names:
        s3.put(f"{bucket}/in/{name}", b"" if "empty" in name else b"1")
    for folder in ("in/", "in/a b/", "in/nothing/"):
        s3.put(f"{bucket}/{folder}", b"")
    assert sorted(path for path, _ in storage.list_files(f"{bucket}/in")) == sorted(names)
    assert sorted(path for path, *_ in storage.list_level(f"{bucket}/in")) == ["a b/", "empty.jpg", "nothing/"]
    for name in names[:2]:
        assert storage.read_bytes(f"{bucket}/in/{name}") == b"1"
    assert not storage.exists(f"{bucket}/i")


def test_a_name_that_cannot_be_read_is_said_in_one_line(s3, capsys, tmp_path):
    bucket = s3.make_bucket()
    s3.put(f"{bucket}/in/a/../b.jpg", b"1")
    message = refused(capsys, "convert", f"--input={bucket}/in", f"--output={tmp_path}/out")
    assert f"'{bucket}/in': " in message
    assert "rename them" in message


def test_failures_that_end_cost_only_time(s3, between: FaultProxy, few_digits, tmp_path):
    uri = images(s3, few_digits)
    convert(options(few_digits, tmp_path / "local"))
    between.fault = every(3, ["503", "reset", "cut", "429", "lost", "500"])
    convert(options(uri, tmp_path / "s3"))
    assert sum(between.faults[fault] for fault in ("503", "reset", "cut", "429", "lost", "500")) > 6
    assert shards(tmp_path / "s3") == shards(tmp_path / "local")


def commands(uri: str, tmp_path: Path) -> list[list[str]]:
    return [
        ["convert", f"--input={uri}/in", f"--output={tmp_path}/out"],
        ["convert", f"--input={uri}/in.tar", f"--output={tmp_path}/out"],
        ["convert", f"--input={uri}/in.zip", f"--output={tmp_path}/out"],
        ["convert", f"--input={uri}/in.csv", f"--output={tmp_path}/out"],
        ["convert", f"--input={uri}/in.parquet", f"--output={tmp_path}/out"],
        ["convert", f"--input={uri}/in/train-*", "--record=imagenet", f"--output={tmp_path}/out"],
        ["convert", f"--input={tmp_path}", f"--label_list={uri}/labels.txt", f"--output={tmp_path}/out"],
        ["verify", f"{uri}/dataset"],
    ]


def test_a_missing_bucket_or_file_is_one_line(s3, capsys, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"1")
    for command in commands("s3://no-such-bucket-here", tmp_path):
        assert "s3://no-such-bucket-here" in refused(capsys, *command)
    bucket = s3.make_bucket()
    for command in commands(bucket, tmp_path):
        assert bucket in refused(capsys, *command)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_store_that_lies_costs_one_line(s3, quick, capsys, tmp_path, monkeypatch, lie):
    (tmp_path / "a.jpg").write_bytes(b"1")
    with lying_store(lie) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        for command in commands("s3://bucket", tmp_path):
            forget_stores()
            code, _, err = run(capsys, *command)
            assert code == 2, err
            assert err.startswith("error: "), err
            assert err.count("\n") == 1, err
            assert server.url not in err
        assert 0 < len(server.requests) < 300


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("403 <Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>", "no permission for"),
        ("400 <Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>", "token has expired"),
        ("301 <Error><Code>PermanentRedirect</Code></Error>", "set AWS_REGION"),
    ],
    ids=["denied", "expired", "region"],
)
def test_a_store_that_refuses_says_why(s3, between, capsys, tmp_path, answer, says):
    between.fault = lambda request: answer
    for command in commands("s3://bucket", tmp_path):
        message = refused(capsys, *command)
        assert says in message
        assert "s3://bucket" in message


def test_a_store_that_is_not_there_is_one_line(s3, quick, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    for command in commands("s3://bucket", tmp_path):
        assert "cannot be reached" in refused(capsys, *command)


def test_without_credentials_requests_are_not_signed_and_with_them_they_are_nowhere_to_be_read(
    s3, between, few_digits, tmp_path, monkeypatch, capsys
):
    uri = images(s3, few_digits)
    code, out, err = run(capsys, "convert", f"--input={uri}", f"--output={tmp_path}/out", "--max_rejected=100%")
    assert code == 0, err
    assert all(request.authorized for request in between.requests)
    content = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert uri.encode() in content
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        assert ENVIRONMENT[name] not in out + err
    assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"].encode() not in content
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    forget_stores()
    between.requests.clear()
    assert len(rows(uri)) == 36
    assert not any(request.authorized for request in between.requests)


@pytest.mark.parametrize("uri", ["s3://bucket/out", "hdfs://host/out"])
def test_no_dataset_is_written_to_a_store_without_a_lock(capsys, few_digits, tmp_path, monkeypatch, uri):
    monkeypatch.chdir(tmp_path)
    for command in (
        ["convert", f"--input={few_digits}", f"--output={uri}"],
        ["sample", uri],
    ):
        assert f"'{uri}' cannot be written to, only local folders and gs://" in refused(capsys, *command)
    with pytest.raises(ValueError, match="cannot be written to"), storage.create(f"{uri}/x") as file:
        file.write(b"1")
    for write in (
        lambda: storage.delete([uri]),
        lambda: storage.move("/a", uri),
        lambda: storage.publish([(uri, uri)]),
    ):
        with pytest.raises(ValueError, match="cannot be written to"):
            write()
    assert not (tmp_path / uri.partition("/")[0]).exists()


# What every store but gs:// does alike: a scheme that is registered without an address here fails.
ADDRESSES = {
    "s3": "s3://bucket/in",
    "az": "az://container/in",
    "hf": "hf://datasets/owner/name/in",
    "http": "http://127.0.0.1:1/in.tar",
    "https": "https://127.0.0.1:1/in.tar",
}


@pytest.mark.parametrize("package", ["obstore", "boto3"])
@pytest.mark.parametrize("scheme", sorted(storage.STORES.keys() - {"gs"}))
def test_a_missing_extra_is_named(tmp_path, scheme, package):
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from beam_pipelines.__main__ import main\n"
        f"sys.exit(main(['convert', '--input={ADDRESSES[scheme]}', '--output={tmp_path}/out']))"
    )
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: '{ADDRESSES[scheme]}' needs obstore and boto3 (")
    assert result.stderr.endswith("; run: pip install 'jpeg2tpu[stores]'\n")


@pytest.mark.parametrize("store", ["s3", "hub", "web"])
def test_a_process_that_was_forked_says_so_instead_of_waiting_forever(request, few_digits, store):
    server = request.getfixturevalue(store)
    if store == "web":
        server.root["in"] = few_digits
        uri = f"{server.url}/in/{next(few_digits.glob('*/*')).relative_to(few_digits)}"
    else:
        uri = images(server, few_digits)
    assert storage.exists(uri)
    for use in (storage.exists, storage.look, storage.read_bytes):
        reader, writer = os.pipe()
        if not (child := os.fork()):
            try:
                message = repr(use(uri))
            except OSError as error:
                message = str(error)
            os.write(writer, message.encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        with open(reader, "rb") as file:
            assert b"cannot be read in a forked process" in file.read()


def test_a_dataset_there_is_read_by_conversions_and_refused_by_training(s3, capsys, few_digits, tmp_path):
    from tpu_input import read_manifest

    convert(options(few_digits, tmp_path / "dataset"))
    bucket = s3.make_bucket()
    s3.upload(tmp_path / "dataset", f"{bucket}/dataset")
    (tmp_path / "none").write_text("2\n")
    code, _, err = run(
        capsys, "filter", f"{bucket}/dataset", f"--without_classes={tmp_path}/none", f"--output={tmp_path}/merged"
    )
    assert code == 0, err
    with pytest.raises(ValueError, match=r"copy it to a local folder or to gs://"):
        read_manifest(f"{bucket}/dataset")
    assert Source(f"{bucket}/dataset/").path == f"{bucket}/dataset"


# Web servers.


def archived(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w") as tar:
        for label in sorted(folder.iterdir()):
            tar.add(label, label.name)
    return path


def test_a_web_server_needs_no_ranges_for_lists_of_labels_and_says_so_for_archives(web, few_digits, tmp_path, capsys):
    archived(few_digits, tmp_path / "in.tar")
    web.root, web.has_ranges = {"a": tmp_path}, False
    (tmp_path / "names.txt").write_text("zero\none\ntwo\n")
    assert storage.open_file(f"{web.url}/a/names.txt").read() == b"zero\none\ntwo\n"
    message = refused(capsys, "convert", f"--input={web.url}/a/in.tar", f"--output={tmp_path}/out")
    assert f"'{web.url}/a/in.tar': the server answers no ranges of bytes; copy the file here" in message


def test_an_archive_on_a_web_server_that_changes_after_planning_ends_the_conversion(
    web, few_digits, tmp_path, monkeypatch, capsys
):
    tar = archived(few_digits, tmp_path / "in.tar")
    web.root = {"a": tmp_path}
    after_planning(monkeypatch, lambda: tar.write_bytes(tar.read_bytes()))
    message = refused(capsys, "convert", f"--input={web.url}/a/in.tar", f"--output={tmp_path}/out")
    assert "an input has changed since it was listed: " in message


def test_a_folder_or_a_missing_file_of_a_web_server_is_one_line(web, tmp_path, capsys):
    for name in ("photos", "photos/", "train-*"):
        flags = ["--record=imagenet"] if "*" in name else []
        message = refused(capsys, "convert", f"--input={web.url}/{name}", *flags, f"--output={tmp_path}/out")
        assert "is on a web server, which lists no files; name one file" in message
    for name in ("in.tar", "in.zip", "in.csv", "in.parquet", "in.tar.gz"):
        message = refused(capsys, "convert", f"--input={web.url}/{name}", f"--output={tmp_path}/out")
        assert f"{web.url}/{name}" in message


@pytest.mark.parametrize("url", ["https://h.org/in.tar?X-Amz-Signature=s3cr3t", "https://me:s3cr3t@h.org/in.tar"])
def test_a_url_that_may_have_a_secret_is_refused_without_it(url, tmp_path, capsys):
    for flags in ([f"--input={url}"], [f"--input=train={url}"], [f"--input={tmp_path}", f"--label_list={url}"]):
        message = refused(capsys, "convert", *flags, f"--output={tmp_path}/out")
        assert "https://h.org/in.tar" in message
        assert "s3cr3t" not in message
    message = refused(capsys, "convert", *flags, f"--output={tmp_path}/out", f"--log_file={tmp_path}/log")
    assert "s3cr3t" not in message + (tmp_path / "log").read_text()
    assert "https://h.org/in.tar" in (tmp_path / "log").read_text()
    assert Source("s3://bucket/a?b@c.tar").path == "s3://bucket/a?b@c.tar"


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_web_server_that_lies_costs_one_line(web, s3, quick, capsys, tmp_path, lie):
    with lying_store(lie) as server:
        for name in ("in.tar", "in.zip", "in.csv", "in.parquet", "in.tar.gz"):
            forget_stores()
            code, _, err = run(capsys, "convert", f"--input={server.url}/{name}", f"--output={tmp_path}/out")
            assert code == 2, err
            assert err.startswith("error: "), err
            assert err.count("\n") == 1, err
        assert 0 < len(server.requests) < 300


# Azure.


@pytest.mark.cloud
def test_a_container_is_read_as_a_bucket_and_what_it_refuses_is_one_line(az, few_digits, tmp_path, monkeypatch, capsys):
    container = az.make_bucket()
    az.upload(few_digits, f"{container}/in")
    listed = rows(f"{container}/in")
    assert len(listed) == 36
    assert not changes(listed)
    first = sorted(few_digits.rglob("*.jpg"))[0].relative_to(few_digits)
    az.put(f"{container}/in/{first}", (few_digits / first).read_bytes())
    assert "was modified" in changes(listed)
    with pytest.raises(storage.Changed, match="was overwritten"):
        list(read_rows(listed))
    for uri in ("az://no-such-container", f"{container}/no-such-folder"):
        assert "does not exist" in refused(capsys, "convert", f"--input={uri}", f"--output={tmp_path}/out")
    for name, value, says in (
        ("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0", "no permission for 'az://"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "", "set AZURE_STORAGE_ACCOUNT_NAME"),
    ):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
        forget_stores()
        message = refused(capsys, "convert", f"--input={container}/in", f"--output={tmp_path}/out")
        assert says in message
        assert "c2VjcmV0" not in message
