"""Inputs at hf://: what pins them, where the token goes, and what a Hub that fails or lies costs.

That all kinds of inputs are read from there: tests/contracts/test_input_kinds.py.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trustme

from beam_pipelines import storage
from beam_pipelines.convert import convert
from beam_pipelines.sources.listing import list_rows
from beam_pipelines.sources.read_ahead import changes, read_rows
from beam_pipelines.sources.rows import find, locate
from beam_pipelines.verify import verify
from support.cloud import free_port
from support.conversion import after_planning, options
from support.fault_proxy import FaultProxy, every, fault_proxy
from support.folders import files
from support.hub import Hub
from support.lying_store import END, LIES, Handler, lying_store
from support.pipelines_commands import refused, run
from support.s3 import forget_stores

ROOT = Path(__file__).parents[2]
TOKEN = "hf_s3cr3tOfTests"


@pytest.fixture
def between(hub: Hub, monkeypatch):
    """A proxy in front of the Hub, but not of its CDN, which counts and disturbs."""
    with fault_proxy(hub.url) as proxy:
        monkeypatch.setenv("HF_ENDPOINT", proxy.url)
        forget_stores()
        yield proxy


@pytest.fixture
def quick(monkeypatch):
    """A tenth of the patience."""
    from beam_pipelines.storage import object_stores

    monkeypatch.setattr(object_stores, "QUICK", object_stores.Patience(0.5, 0.5, 0.5))
    monkeypatch.setattr(object_stores, "PATIENT", object_stores.Patience(0.5, 0.5, 0.5))
    forget_stores()


def images(hub: Hub, folder: Path) -> str:
    uri = hub.make_bucket()
    hub.upload(folder, f"{uri}/in")
    return f"{uri}/in"


def rows(uri: str) -> list:
    opts = options(uri, "/out")
    return [find(locate(row, opts.sources)) for row in list_rows(opts.sources[0], opts)]


def shards(dataset: Path) -> dict[str, object]:
    return {path: data for path, data in files(dataset).items() if path.endswith(".tfrecord")}


def archived(hub: Hub, folder: Path, path: Path) -> str:
    with tarfile.open(path, "w") as tar:
        for label in sorted(folder.iterdir()):
            tar.add(label, label.name)
    uri = hub.make_bucket()
    hub.put(f"{uri}/in.tar", path.read_bytes())
    return f"{uri}/in.tar"


def test_the_dataset_is_that_of_local_files_and_of_worker_processes(hub, few_digits, tmp_path):
    uri = images(hub, few_digits)
    convert(options(few_digits, tmp_path / "local"))
    convert(options(uri, tmp_path / "hub"), num_processes=1)
    convert(options(uri, tmp_path / "processes"), num_processes=2)
    assert shards(tmp_path / "local")
    assert shards(tmp_path / "local") == shards(tmp_path / "hub") == shards(tmp_path / "processes")
    assert not verify(str(tmp_path / "hub")).problems


def test_what_every_dataset_has_at_its_top_does_not_disturb(hub, few_digits, tmp_path, capsys):
    uri = hub.make_bucket()
    hub.upload(few_digits, uri)
    hub.put(f"{uri}/README.md", b"# Digits\n")
    hub.put(f"{uri}/.gitattributes", b"*.jpg filter=lfs\n")
    convert(options(few_digits, tmp_path / "local"))
    code, _, err = run(capsys, "convert", f"--input={uri}", "--shard_size=10KB", f"--output={tmp_path}/hub")
    assert code == 0, err
    assert shards(tmp_path / "hub") == shards(tmp_path / "local")


def test_a_dataset_with_splits_is_that_of_its_local_copy(hub, few_digits, tmp_path, capsys):
    """As it is published: folders of splits with class folders, and Parquet with the names of the classes."""
    folders, tables = tmp_path / "folders", tmp_path / "tables"
    (tables / "data").mkdir(parents=True)
    for split in ("train", "test"):
        shutil.copytree(few_digits, folders / split)
        examples = [(path.parent.name, path.read_bytes()) for path in sorted(few_digits.rglob("*.jpg"))]
        columns = {
            "image": [{"bytes": data, "path": None} for _, data in examples],
            "label": [int(label) for label, _ in examples],
        }
        features = {"image": {"_type": "Image"}, "label": {"names": ["zero", "one", "two"], "_type": "ClassLabel"}}
        table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        pq.write_table(table, tables / "data" / f"{split}-00000-of-00001.parquet")
    for name, flags in (("folders", []), ("tables", ["--record=huggingface"])):
        (tmp_path / name / "README.md").write_text("# Digits\n")
        uri = hub.make_bucket()
        hub.upload(tmp_path / name, uri)
        for place, output in ((tmp_path / name, "local"), (uri, "hub")):
            code, _, err = run(capsys, "convert", f"--input={place}", *flags, f"--output={tmp_path}/{name}_{output}")
            assert code == 0, err
        assert {path.partition("-")[0] for path in shards(tmp_path / f"{name}_hub")} == {"train", "test"}
        assert shards(tmp_path / f"{name}_hub") == shards(tmp_path / f"{name}_local")


def test_an_image_is_one_request_for_a_file_and_a_folder_is_listed_once(hub, few_digits):
    listed = rows(images(hub, few_digits))
    assert len(listed) == 36
    assert all(row.version for row in listed)
    hub.requests.clear()
    assert all(isinstance(data, bytes) for _, data in read_rows(listed))
    assert len([request for request in hub.requests if "/resolve/" in request.path]) == 36
    assert not [request for request in hub.requests if "/tree/" in request.path]
    assert not changes(listed)
    assert len([request for request in hub.requests if "cursor" not in request.path and "/tree/" in request.path]) == 3


@pytest.mark.parametrize("when", ["other bytes", "longer", "deleted", "another file"])
def test_a_branch_that_moves_after_planning_changes_nothing_in_the_process_that_planned(
    hub, few_digits, tmp_path, monkeypatch, when
):
    uri = images(hub, few_digits)
    convert(options(uri, tmp_path / "before"), num_processes=1)
    after_planning(monkeypatch, lambda: move(hub, uri, few_digits, when))
    convert(options(uri, tmp_path / "after"), num_processes=1)
    assert shards(tmp_path / "before") == shards(tmp_path / "after")


def move(hub: Hub, uri: str, folder: Path, change: str) -> str:
    """Moves the branch, and returns the URI of the file that is another one then."""
    path = sorted((folder / "1").iterdir())[0]
    data, name = path.read_bytes(), f"{uri}/1/{path.name}"
    changed = {"other bytes": data[:-1] + b"x", "longer": data + b"x"}
    if change == "another file":
        hub.put(f"{uri}/1/new.jpg", data)
    elif change in changed:
        hub.put(name, changed[change])
    else:
        hub.delete(name)
    return name


@pytest.mark.parametrize("when", ["other bytes", "longer", "deleted", "another file"])
def test_a_branch_that_moves_after_planning_is_noticed_in_other_processes(hub, few_digits, tmp_path, monkeypatch, when):
    """Worker processes ask for the commit themselves."""
    uri, names = images(hub, few_digits), []
    after_planning(monkeypatch, lambda: names.append(move(hub, uri, few_digits, when)))
    if when == "another file":
        convert(options(uri, tmp_path / "moved"), num_processes=2)
        convert(options(few_digits, tmp_path / "local"))
        assert shards(tmp_path / "moved") == shards(tmp_path / "local")
        return
    with pytest.raises(ValueError, match="an input has changed since it was listed: ") as error:
        convert(options(uri, tmp_path / "out"), num_processes=2)
    assert names[0] in str(error.value)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_listing_is_that_of_one_commit(hub, few_digits, tmp_path):
    uri = images(hub, few_digits)
    hub.after_page = lambda: hub.delete(f"{uri}/{sorted(few_digits.rglob('*.jpg'))[-1].relative_to(few_digits)}")
    assert len(rows(uri)) == 36
    hub.after_page = lambda: None
    storage.check(uri)
    assert len(rows(uri)) == 35


def test_a_member_of_an_archive_that_was_replaced_is_not_read(hub, few_digits, tmp_path):
    uri = archived(hub, few_digits, tmp_path / "in.tar")
    listed = [row for row in rows(uri) if not row.reason]
    assert not changes(listed)
    hub.put(uri, (tmp_path / "in.tar").read_bytes()[:-1] + b"\1")
    assert not changes(listed)  # this process reads the commit that it has listed
    assert all(isinstance(data, bytes) for _, data in read_rows(listed))
    forget_stores()  # as another process does
    assert "was modified" in changes(listed)
    with pytest.raises(storage.Changed, match=r"in\.tar' was overwritten: it has another hash in the commit "):
        list(read_rows(listed))


def test_content_that_is_not_what_was_listed_is_not_stored(hub, few_digits, tmp_path, monkeypatch, capsys):
    """The CDN sends other bytes, as many as there should be."""
    uri = images(hub, few_digits)
    answer = type(hub).answer_as_cdn

    def damage(self: Hub, request: object) -> None:
        self._blobs = {digest: data[:-1] + b"x" for digest, data in self._blobs.items()}
        answer(self, request)

    monkeypatch.setattr(type(hub), "answer_as_cdn", damage)
    message = refused(capsys, "convert", f"--input={uri}", f"--output={tmp_path}/out")
    assert "arrives damaged: its content has another hash than when listed" in message


def test_a_range_of_a_file_of_another_size_is_not_stored(hub, few_digits, tmp_path, monkeypatch, capsys):
    """The CDN has a longer file."""
    uri = archived(hub, few_digits, tmp_path / "in.tar")
    answer = type(hub).answer_as_cdn

    def lengthen(self: Hub, request: object) -> None:
        self._blobs = {digest: data + bytes(1000) for digest, data in self._blobs.items()}
        answer(self, request)

    monkeypatch.setattr(type(hub), "answer_as_cdn", lengthen)
    message = refused(capsys, "convert", f"--input={uri}", f"--output={tmp_path}/out")
    size = (tmp_path / "in.tar").stat().st_size
    assert "in.tar' was overwritten: it has " in message
    assert f" bytes, and {size} when listed" in message


def test_a_revision_is_a_branch_a_tag_a_commit_or_what_the_hub_makes(hub):
    uri = hub.make_bucket()
    name = uri.removeprefix("hf://datasets/")
    revisions = {
        "main": b"1",
        "v1.0": b"22",
        "feature/x": b"333",
        "refs/convert/parquet": b"4444",
        "refs/pr/7": b"55555",
    }
    commits = {
        branch: hub.commit(name, {"a.jpg": data, "b@c/d.jpg": b"6"}, branch=branch)
        for branch, data in revisions.items()
    }
    for revision in ("main", "v1.0", "feature%2Fx", "refs/convert/parquet", "refs%2Fconvert%2Fparquet", "refs/pr/7"):
        data = revisions[revision.replace("%2F", "/")]
        commit = commits[revision.replace("%2F", "/")]
        for version in (revision, commit):
            assert storage.read_bytes(f"{uri}@{version}/a.jpg") == data
            assert [*storage.list_files(f"{uri}@{version}")] == [("a.jpg", len(data)), ("b@c/d.jpg", 1)]
    assert storage.read_bytes(f"{uri}/a.jpg") == b"1"
    assert storage.read_bytes(f"{uri}/b@c/d.jpg") == b"6"


def test_names_are_read_as_they_are_and_levels_are_listed(hub):
    uri = hub.make_bucket()
    names = ["a b/ü %20#x?.jpg", "a b/c=1&d.jpg", "a b/e/+.jpg", "empty.jpg"]
    for name in names:
        hub.put(f"{uri}/in/{name}", b"" if "empty" in name else b"12345")
    assert sorted(path for path, _ in storage.list_files(f"{uri}/in")) == sorted(names)
    assert sorted(path for path, *_ in storage.list_level(f"{uri}/in")) == ["a b/", "empty.jpg"]
    assert sorted(path for path, *_ in storage.list_level(f"{uri}/in", "a b/")) == [
        "a b/c=1&d.jpg",
        "a b/e/",
        "a b/ü %20#x?.jpg",
    ]
    for name in names[:3]:
        path = f"{uri}/in/{name}"
        assert storage.read_bytes(path, storage.look(path)[1]) == b"12345"
        assert storage.read_bytes(storage.slice_uri(path, 1, 2), storage.look(path)[1]) == b"23"
        with storage.open_file(path) as file:
            assert file.read() == b"12345"
    assert storage.read_bytes(f"{uri}/in/empty.jpg", storage.look(f"{uri}/in/empty.jpg")[1]) == b""
    assert storage.exists(f"{uri}/in/a b")
    assert not storage.exists(f"{uri}/i")
    assert storage.look(f"{uri}/in/a b") == storage.look(f"{uri}/nothing/x.jpg") == (-1, 0)
    assert [*storage.list_files(f"{uri}/nothing")] == []


def test_a_dataset_that_was_renamed_is_found(hub, few_digits):
    uri = images(hub, few_digits)
    hub.renamed["former/name"] = uri.split("/", 3)[3].removesuffix("/in")
    assert rows("hf://datasets/former/name/in")[0].num_bytes > 0
    assert all(isinstance(data, bytes) for _, data in read_rows(rows("hf://datasets/former/name/in")))


def test_what_is_new_and_what_has_changed_is_added_by_extend(hub, few_digits, tmp_path, capsys):
    uri = images(hub, few_digits)
    command = ["convert", f"--input={uri}", f"--output={tmp_path}/out"]
    assert run(capsys, *command)[0] == 0
    first = sorted((few_digits / "1").iterdir())[0]
    hub.put(f"{uri}/1/new.jpg", first.read_bytes())
    code, out, err = run(capsys, *command, "--extend")
    assert code == 0, err
    assert "37" in out
    hub.put(f"{uri}/1/{first.name}", sorted((few_digits / "2").iterdir())[0].read_bytes())
    assert f"1/{first.name}" in "".join(map(str, run(capsys, *command, "--extend")))


# Failures.


def test_failures_that_end_cost_only_time(hub, between: FaultProxy, few_digits, tmp_path):
    uri = images(hub, few_digits)
    convert(options(few_digits, tmp_path / "local"))
    between.fault = every(3, ["503", "reset", "cut", "429", "lost", "500"])
    convert(options(uri, tmp_path / "hub"))
    assert sum(between.faults[fault] for fault in ("503", "reset", "cut", "429", "lost", "500")) > 6
    assert shards(tmp_path / "hub") == shards(tmp_path / "local")


def test_too_many_requests_are_sent_again_when_the_hub_says(hub, few_digits):
    uri = images(hub, few_digits)
    hub.ask_too_often = 2
    assert len(rows(uri)) == 36
    assert not hub.ask_too_often


def test_the_hub_is_asked_by_the_proxy_of_the_environment(hub, few_digits, tmp_path, monkeypatch):
    """As its files are, by obstore; with TLS, as the real Hub is asked, and without."""
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("hub.test").configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    uri = images(hub, few_digits)
    with fault_proxy(hub.url, tls) as proxy:
        for scheme in ("https", "http"):
            monkeypatch.setenv("HF_ENDPOINT", f"{scheme}://hub.test")
            monkeypatch.setenv(f"{scheme}_proxy", proxy.url.replace("http://", "http://me:s3cr3t@"))
            forget_stores()
            proxy.requests.clear()
            assert len(rows(uri)) == 36
            assert proxy.requests
        assert proxy.requests[-1].headers["proxy-authorization"] == "Basic bWU6czNjcjN0"


def commands(uri: str, tmp_path: Path) -> list[list[str]]:
    return [
        ["convert", f"--input={uri}/in", f"--output={tmp_path}/out"],
        ["convert", f"--input={uri}/in.tar", f"--output={tmp_path}/out"],
        ["convert", f"--input={uri}/in.zip", f"--output={tmp_path}/out"],
        ["convert", f"--input={uri}/in.csv", f"--output={tmp_path}/out"],
        ["convert", f"--input={uri}/in.parquet", f"--output={tmp_path}/out"],
        ["convert", f"--input={uri}/in", "--record=huggingface", f"--output={tmp_path}/out"],
        ["convert", f"--input={uri}/in/train-*", "--record=imagenet", f"--output={tmp_path}/out"],
        ["convert", f"--input={tmp_path}", f"--label_list={uri}/labels.txt", f"--output={tmp_path}/out"],
        ["verify", f"{uri}/dataset"],
    ]


@pytest.mark.parametrize("token", ["", TOKEN], ids=["without a token", "with one"])
def test_a_missing_dataset_revision_or_file_is_one_line(hub, capsys, tmp_path, monkeypatch, token):
    monkeypatch.setenv("HF_TOKEN", token)
    (tmp_path / "a.jpg").write_bytes(b"1")
    uri = hub.make_bucket()
    for command in commands("hf://datasets/nobody/nothing", tmp_path):
        message = refused(capsys, *command)
        assert "'hf://datasets/nobody/nothing': it does not exist, or is private; correct the name, or set" in message
        assert "run: hf auth login" in message
    for command in commands(f"{uri}@v9", tmp_path):
        assert "has no revision 'v9'; name a branch, a tag or a commit" in refused(capsys, *command)
    for command in commands(uri, tmp_path):
        assert uri in refused(capsys, *command)


def test_a_gated_dataset_says_what_to_do(hub, few_digits, capsys, tmp_path):
    for uri in (images(hub, few_digits), archived(hub, few_digits, tmp_path / "in.tar")):
        hub.is_gated = True
        message = refused(capsys, "convert", f"--input={uri}", f"--output={tmp_path}/out")
        assert f"no permission for '{uri}" in message
        assert "set HF_TOKEN" in message
        assert "which you accept on its page" in message


@pytest.mark.parametrize(
    "uri",
    [
        "hf://models/owner/name/in",
        "hf://spaces/owner/name",
        "hf://buckets/owner/name",
        "hf://owner/name/in",
        "hf://datasets/name",
        "hf://datasets/owner/../in.tar",
        "hf://datasets/owner/name@/in",
        "hf://datasets",
    ],
)
def test_what_is_no_dataset_is_refused_with_what_is(hub, uri, capsys, tmp_path):
    message = refused(capsys, "convert", f"--input={uri}", f"--output={tmp_path}/out")
    assert f"'{uri}' " in message
    assert "hf://datasets/OWNER/NAME/PATH" in message
    assert not hub.requests


def endless(request: Handler) -> None:
    """Never ends, as fast as it can."""
    request.lie(200, b"[", Content_Length="", Connection="close")
    while not END.is_set():
        request.wfile.write(bytes(1 << 20))


def slow_headers(request: Handler) -> None:
    """Sends a byte of its headers now and then."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while not END.wait(0.1):
        request.wfile.write(b"x")


def same_page(request: Handler) -> None:
    """Has one page after the other, and all are the same."""
    if "/revision/" in request.path:
        return request.lie(200, b'{"sha": "' + b"0" * 40 + b'"}')
    request.lie(200, b'[{"type": "file", "path": "in/1", "oid": "1", "size": 1}]', Link='<h://h/?a=1>; rel="next"')


def other_files(request: Handler) -> None:
    """Lists what is not in the folder."""
    if "/revision/" in request.path:
        return request.lie(200, b'{"sha": "' + b"0" * 40 + b'"}')
    request.lie(200, b'[{"type": "file", "path": "in/../../etc/passwd", "oid": "1", "size": 1}]')


def no_sizes(request: Handler) -> None:
    """Lists what has no size."""
    if "/revision/" in request.path:
        return request.lie(200, b'{"sha": "' + b"0" * 40 + b'"}')
    request.lie(200, b'[{"type": "file", "path": "in/1", "oid": "1", "size": -1}, 7]')


def no_commit(request: Handler) -> None:
    """Names a commit that would lead to another file."""
    request.lie(200, b'{"sha": "../../../secret?"}')


def deep(request: Handler) -> None:
    """Answers what no parser of JSON likes."""
    request.lie(200, b"[" * 1_000_000)


@pytest.mark.parametrize(
    "lie",
    [*LIES, endless, slow_headers, same_page, other_files, no_sizes, no_commit, deep],
    ids=lambda lie: lie.__name__,
)
def test_a_hub_that_lies_costs_one_line(hub, quick, capsys, tmp_path, monkeypatch, lie):
    (tmp_path / "a.jpg").write_bytes(b"1")
    with lying_store(lie) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        for command in commands("hf://datasets/owner/name", tmp_path):
            forget_stores()
            code, _, err = run(capsys, *command)
            assert code == 2, err
            assert err.startswith("error: "), err
            assert err.count("\n") == 1, err
            assert server.url not in err
        assert 0 < len(server.requests) < 300


@pytest.mark.parametrize("lie", [other_files, no_sizes, same_page], ids=lambda lie: lie.__name__)
def test_what_no_repository_has_is_no_listing(hub, monkeypatch, lie):
    with lying_store(lie) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with pytest.raises(storage.Unavailable, match="the Hub answers no list; check HF_ENDPOINT"):
            list(storage.list_files("hf://datasets/owner/name/in"))


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_cdn_that_lies_costs_one_line(hub, quick, few_digits, capsys, tmp_path, monkeypatch, lie):
    """The Hub itself says the truth."""
    uris = [images(hub, few_digits), archived(hub, few_digits, tmp_path / "in.tar")]
    with lying_store(lie) as server:
        hub._cdn = server.url
        for uri in uris:
            forget_stores()
            code, _, err = run(capsys, "convert", f"--input={uri}", f"--output={tmp_path}/out")
            assert code == 2, err
            assert err.startswith("error: "), err
            assert err.count("\n") == 1, err
            assert server.url not in err
        assert 0 < len(server.requests) < 1000


def test_a_hub_that_is_not_there_is_one_line(hub, quick, capsys, tmp_path, monkeypatch):
    (tmp_path / "a.jpg").write_bytes(b"1")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    for command in commands("hf://datasets/owner/name", tmp_path):
        assert "'hf://datasets/owner/name' cannot be reached" in refused(capsys, *command)
    monkeypatch.setenv("HF_ENDPOINT", "ftp://h?x=s3cr3t")
    message = refused(capsys, *commands("hf://datasets/owner/name", tmp_path)[0])
    assert "HF_ENDPOINT is not the URL of a host" in message
    assert "s3cr3t" not in message


# The token.


@pytest.mark.parametrize("where", ["variable", "file", "named file"])
def test_the_token_goes_to_the_hub_alone_and_is_nowhere_to_be_read(
    hub, few_digits, tmp_path, monkeypatch, capsys, where
):
    uri, archive = images(hub, few_digits), archived(hub, few_digits, tmp_path / "in.tar")
    hub.token = TOKEN
    for source in (uri, archive):
        assert "is private" in refused(capsys, "convert", f"--input={source}", f"--output={tmp_path}/out")
    path = Path(os.environ["HF_HOME"]) / "token" if where == "file" else tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    if where == "variable":
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    elif where == "named file":
        monkeypatch.setenv("HF_TOKEN_PATH", str(path))
    forget_stores()
    hub.requests.clear()
    content = b""
    for number, source in enumerate((uri, archive)):
        out = f"{tmp_path}/out{number}"
        code, stdout, err = run(capsys, "convert", f"--input={source}", f"--output={out}", f"--log_file={out}.log")
        assert code == 0, err
        assert TOKEN not in stdout + err
        assert source in Path(f"{out}/manifest.json").read_text()
        content += b"".join(file.read_bytes() for file in Path(out).rglob("*") if file.is_file())
        content += Path(f"{out}.log").read_bytes()
    assert TOKEN.encode() not in content
    assert b"s1gn3d" not in content
    assert {request.token for request in hub.requests if request.place == "hub"} == {TOKEN}
    assert {request.token for request in hub.requests if request.place == "cdn"} == {""}


def test_the_token_is_not_sent_where_the_api_leads_to(hub, few_digits, capsys, tmp_path, monkeypatch):
    """Neither by a redirect nor by the link to the next page."""
    tokens: list[str | None] = []

    def stranger(request: Handler) -> None:
        tokens.append(request.headers.get("Authorization"))
        request.lie(200, b"[]")

    with lying_store(stranger) as elsewhere:

        def redirect(request: Handler) -> None:
            request.lie(307, Location=f"{elsewhere.url}{request.path}")

        def link(request: Handler) -> None:
            if "/revision/" in request.path:
                return request.lie(200, b'{"sha": "' + b"0" * 40 + b'"}')
            following = f'<{elsewhere.url}/x?cursor=1>; rel="next"' if "cursor" not in request.path else ""
            request.lie(200, b'[{"type": "file", "path": "in/1", "oid": "1", "size": 1}]', Link=following)

        for lie in (redirect, link):
            with lying_store(lie) as server:
                monkeypatch.setenv("HF_ENDPOINT", server.url)
                monkeypatch.setenv("HF_TOKEN", TOKEN)
                forget_stores()
                message = refused(capsys, "convert", "--input=hf://datasets/owner/name/in", f"--output={tmp_path}/out")
                assert TOKEN not in message
                assert server.requests
    assert not tokens


def test_a_token_that_is_none_is_refused_without_it(hub, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "s3cr3t\r\nX-Other: 1")
    message = refused(capsys, "convert", "--input=hf://datasets/owner/name/in", f"--output={tmp_path}/out")
    assert "HF_TOKEN has characters that no token has" in message
    assert "s3cr3t" not in message


def test_no_dataset_is_written_there(few_digits, capsys):
    message = refused(capsys, "convert", f"--input={few_digits}", "--output=hf://datasets/owner/name/out")
    assert "cannot be written to, only local folders and gs://" in message
