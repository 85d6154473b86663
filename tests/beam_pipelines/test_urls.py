"""Images behind URLs: what servers of the internet answer, and how a conversion goes on in spite of it."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipelines import storage
from beam_pipelines.conversion.output_folder import read_manifest
from beam_pipelines.images.rejection_reasons import HTTP_STATUS, REASONS
from beam_pipelines.options import UrlOptions
from beam_pipelines.sources import url_download, url_reading
from beam_pipelines.sources.url_download import Downloader, TryAgain, is_public
from beam_pipelines.sources.url_names import domain, key_of, origin, without_secrets
from beam_pipelines.sources.url_reading import Spool, UrlReader
from beam_pipelines.verify import verify
from support.lying_server import FAULTS, LIES, LyingServer, jpeg, urls
from support.pipelines_commands import refused, run
from tpu_input.dataset_format.index import index_path, read_columns
from tpu_input.dataset_format.records import decode, read_frames
from tpu_input.stored_images.check import Rejected

LOCAL = UrlOptions(url_timeout=1.0, url_max_bytes=1_000_000, allow_private_addresses=True, url_retries=0)
FLAGS = ("--allow_private_addresses", "--url_timeout=5", "--url_max_size=1MB", "--url_retries=0", "--max_rejected=10%")


@pytest.fixture
def server() -> Iterator[LyingServer]:
    with LyingServer() as running:
        yield running


def outcome(url: str, options: UrlOptions = LOCAL) -> bytes | str:
    """Returns the bytes behind a URL, or the reason for which there are none."""
    try:
        return Downloader(options).read(url)
    except Rejected as rejected:
        return rejected.reason
    except TryAgain as error:
        return error.rejected.reason


def path_of(kind: str) -> str:
    return kind if "/" in kind else f"{kind}/1.jpg"


# What is an image by its headers is rejected when its bytes are looked at.
@pytest.mark.parametrize("kind", sorted(LIES.keys() - {"html", "empty"}))
def test_a_server_that_lies_costs_one_rejection_and_little_time(kind: str, server: LyingServer):
    start = time.monotonic()
    assert outcome(f"{server.url}/{path_of(kind)}") == LIES[kind]
    assert time.monotonic() - start < 20  # where the lie goes on for a minute


@pytest.mark.parametrize("kind", ["ok", "moved", "gzip"])
def test_an_image_is_read_through_a_redirect_and_a_compression_that_was_not_asked_for(kind: str, server: LyingServer):
    assert outcome(f"{server.url}/{kind}/7.jpg#top") == jpeg("7")


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("noai", "robots"),
        ("all, NoImageAI", "robots"),
        ("noindex", "robots"),
        ("noimageindex", "robots"),
        ("jpeg2tpu: noindex", "robots"),
        ("otherbot: noai", ""),
        ("nofollow", ""),
        ("unavailable_after: 25 Jun 2010 15:00:00 PST", ""),
    ],
)
def test_a_site_refuses_by_its_headers(tag: str, reason: str, server: LyingServer):
    url = f"{server.url}/robots/{tag.replace(' ', '%20')}"
    assert outcome(url) == (reason or jpeg(tag.replace(" ", "%20")))
    assert isinstance(outcome(url, UrlOptions(allow_private_addresses=True, ignore_robots=True)), bytes)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::", "fd00:ec2::254"),
    ],
)
def test_addresses_that_are_not_of_the_internet(address: str):
    assert not is_public(address)


def test_addresses_of_the_internet():
    assert all(map(is_public, ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "a@127.0.0.1"]
)
def test_private_addresses_are_refused_however_they_are_written(host: str, server: LyingServer):
    assert outcome(f"http://{host}:{server.server_port}/ok/1.jpg", UrlOptions()) == "private_address"
    assert not server.count("/ok/1.jpg")


def resolve(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Lets names have these addresses, one answer after another; returns the list of the names that are asked for."""
    hosts = list[str]()
    rest = list(answers)

    def getaddrinfo(host: str, port: int, *arguments: Any, **keywords: Any) -> list[Any]:
        hosts.append(host)
        addresses = rest.pop(0) if len(rest) > 1 else rest[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    # 127.0.0.2 stands for a server of the internet.
    monkeypatch.setattr(url_download, "is_public", lambda address: address == "127.0.0.2")
    return hosts


def public_server() -> LyingServer:
    server = LyingServer(host="127.0.0.2")
    return server


def test_a_name_is_resolved_once_so_that_a_second_answer_does_not_help(monkeypatch: pytest.MonkeyPatch):
    with public_server() as server:
        hosts = resolve(monkeypatch, ["127.0.0.2"], ["127.0.0.1"])
        assert outcome(f"http://rebinding.example:{server.server_port}/ok/1.jpg", UrlOptions()) == jpeg("1")
        assert hosts == ["rebinding.example"]


def test_of_several_addresses_only_the_public_ones_are_used(monkeypatch: pytest.MonkeyPatch):
    with public_server() as server:
        resolve(monkeypatch, ["127.0.0.1", "10.0.0.1", "127.0.0.2"])
        assert outcome(f"http://both.example:{server.server_port}/ok/1.jpg", UrlOptions()) == jpeg("1")


def test_a_redirect_to_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch, server: LyingServer):
    with public_server() as public:
        resolve(monkeypatch, ["127.0.0.2"], ["127.0.0.1"])
        target = f"http://inner.example:{server.server_port}/ok/1.jpg"
        url = f"http://outer.example:{public.server_port}/elsewhere/x?{target}"
        assert outcome(url, UrlOptions()) == "private_address"
        assert not server.count("/ok/1.jpg")


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch, server: LyingServer):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert outcome(f"{server.url}/ok/1.jpg") == jpeg("1")


@pytest.mark.parametrize("url", ["http:///1.jpg", "http://a:99999/", "http://a:0/", "http://[::1/"])
def test_what_is_no_url(url: str):
    assert outcome(url) == "bad_url"


def test_user_info_is_sent_to_its_host_alone(server: LyingServer):
    assert outcome(f"http://me:word@127.0.0.1:{server.server_port}/secret/1.jpg") == jpeg("1")
    assert outcome(f"{server.url}/secret/1.jpg") == "http_403"
    target_url = f"{server.url}/secret/1.jpg"
    assert outcome(f"http://me:word@127.0.0.1:{server.server_port}/elsewhere/x?{target_url}") == "http_403"


def test_a_server_that_fails_once_is_asked_again(server: LyingServer):
    reader = UrlReader(UrlOptions(allow_private_addresses=True, url_retries=1))
    body = reader.submit(f"{server.url}/flaky/1.jpg", Spool()).result()
    assert not isinstance(body, Rejected)
    assert body.read() == jpeg("1")
    rejected = reader.submit(f"{server.url}/503/1.jpg", Spool()).result()
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "http_503"
    assert server.count("/503/1.jpg") == 2


def test_a_server_that_wants_to_be_asked_tomorrow_is_not_waited_for(server: LyingServer):
    reader = UrlReader(UrlOptions(allow_private_addresses=True, url_retries=5))
    rejected = reader.submit(f"{server.url}/later/86400", Spool()).result()
    assert isinstance(rejected, Rejected)
    assert (rejected.reason, server.count("/later/86400")) == ("http_429", 1)


@pytest.mark.parametrize("text", ["Fri, 31 Dec 1999 23:59:59 GMT", "0", "", "soon", "-5", "Fri, 99 Dec"])
def test_times_to_try_again(text: str):
    seconds = url_download._seconds(text)
    assert seconds in (None, 0.0)


def test_of_a_host_few_urls_are_read_at_the_same_time_and_of_all_hosts_no_more_than_allowed(server: LyingServer):
    options = UrlOptions(allow_private_addresses=True, url_concurrency=5, url_host_concurrency=3, url_timeout=60)
    hosts = f"http://127.0.0.1:{server.server_port}", f"http://localhost:{server.server_port}"
    reader = UrlReader(options)
    futures = [reader.submit(f"{host}/held/{number}.jpg", Spool()) for number in range(10) for host in hosts]
    while server.most_together[""] < 5:
        time.sleep(0.01)
    server.gate.set()
    assert not any(isinstance(future.result(), Rejected) for future in futures)
    assert server.most_together[""] == 5
    assert max(server.most_together["127.0.0.1"], server.most_together["localhost"]) == 3


def test_processes_share_what_a_command_may_read_at_the_same_time():
    reader = UrlReader(UrlOptions(url_concurrency=10, url_host_concurrency=2), num_processes=4)
    assert (reader._num_threads, reader._num_per_host) == (3, 1)


def test_a_large_body_waits_in_a_file(server: LyingServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(url_reading, "_SMALL_BYTES", 100)
    spool = Spool()
    reader = UrlReader(LOCAL)
    futures = [reader.submit(f"{server.url}/ok/{number}.jpg", spool) for number in range(20)]
    bodies = [future.result() for future in futures]
    assert not any(isinstance(body, Rejected) or body.data for body in bodies)
    assert [body.read() for body in bodies if not isinstance(body, Rejected)] == [jpeg(str(n)) for n in range(20)]
    spool.close()


def test_without_any_network_reading_ends_instead_of_rejecting_everything(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(url_reading, "_UNANSWERED", 5)
    futures = [UrlReader(LOCAL).submit(f"http://127.0.0.1:9/{n}", Spool()) for n in range(4)]
    assert all(isinstance(future.result(), Rejected) for future in futures)
    reader, patient = UrlReader(LOCAL), UrlReader(LOCAL, is_patient=True)
    futures = [reader.submit(f"http://127.0.0.1:9/{n}", Spool()) for n in range(5)]
    assert any(isinstance(future.exception(), storage.Unavailable) for future in futures)
    futures = [patient.submit(f"http://127.0.0.1:9/{n}", Spool()) for n in range(9)]
    assert all(isinstance(future.result(), Rejected) for future in futures)


def test_names_of_urls():
    assert origin("https://me:word@a.com:8080/x/1.jpg?a=1#b") == "https://a.com:8080/x/1.jpg"
    assert origin("HTTPS://a.com") == "https://a.com"
    assert origin("http://a.com\\@b.com/x") == "http://a.com\\@b.com/x"
    assert origin("gs://b/1?x") == "gs://b/1?x"
    assert origin("1.jpg?x") == "1.jpg?x"
    assert domain("https://me@A.com:1/x") == "a.com"
    assert domain("https://[::1") == ""
    assert key_of("https://a.com/1.jpg") == "https://a.com/1.jpg"
    assert len({key_of(f"https://a.com/get?id={number}") for number in range(100)}) == 100
    signed = "https://a.com/1.jpg?id=5&X-Amz-Signature={}&X-Amz-Date={}&Expires={}"
    assert (
        key_of(signed.format("abc", 1, 2)) == key_of(signed.format("def", 3, 4)) == key_of("https://a.com/1.jpg?id=5")
    )
    assert without_secrets("of 'https://u:p@a.com/1?s=2', and http://b/?q") == "of 'https://a.com/1', and http://b/"


def write_list(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["image,label", *lines]) + "\n")


def rejected(output: Path) -> dict[str, str]:
    manifest = read_manifest(str(output))
    assert manifest
    lines = map(json.loads, (output / "rejected.jsonl").read_text().splitlines())
    return {line["key"]: line["reason"] for line in lines}


def convert(capsys: pytest.CaptureFixture[str], tmp_path: Path, *more: str) -> str:
    command = ("convert", f"--input={tmp_path}/in/list.csv", f"--output={tmp_path}/out", *FLAGS)
    code, _, err = run(capsys, *command, *more)
    assert code == 0, err
    return err


def test_a_list_of_urls_becomes_a_dataset_in_which_every_url_is_accounted_for(capsys, tmp_path, server):
    expected = list(urls(server.url, 400))
    write_list(tmp_path / "in" / "list.csv", [f"{url},{number % 2}" for number, (url, _) in enumerate(expected)])
    convert(capsys, tmp_path, "--num_processes=2", "--url_image_size=1KB", "--shard_size=50KB")
    assert rejected(tmp_path / "out") == {url: reason for url, reason in expected if reason}
    manifest = read_manifest(str(tmp_path / "out"))
    assert manifest
    assert Counter(manifest.num_rejected) == Counter(reason for _, reason in expected if reason)
    assert set(FAULTS.values()) == manifest.num_rejected.keys()
    assert sum(split.num_examples for split in manifest.splits.values()) == 380
    assert len(manifest.splits["train"].shards) > 3
    assert verify(manifest.path).problems == []
    for shard in manifest.splits["train"].shards:
        table = read_columns(
            (tmp_path / "out" / index_path(shard.name)).read_bytes(), shard.num_examples, ["key", "source_bytes"]
        )
        for key, num_bytes in zip(table["key"].to_pylist(), table["source_bytes"].to_pylist(), strict=True):
            assert num_bytes == len(jpeg(key.rpartition("/")[2].removesuffix(".jpg")))


def test_no_secret_of_a_url_is_stored_or_printed(capsys, tmp_path, server):
    port = server.server_port
    lines = [f"http://me:w0rd@127.0.0.1:{port}/secret/{n}.jpg?Signature=s3cr3t&v={n},{n % 2}" for n in range(20)]
    lines += [f"http://me:w0rd@127.0.0.1:{port}/404/{n}.jpg?Signature=s3cr3t,1" for n in range(2)]
    write_list(tmp_path / "in" / "list.csv", lines)
    conversion_output = convert(capsys, tmp_path)
    code, out, err = run(capsys, "report", f"{tmp_path}/out", f"--sources={tmp_path}/in")
    assert code == 0, err
    stored = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(stored) > 5
    for text in (conversion_output.encode(), out.encode(), err.encode(), *stored):
        assert b"s3cr3t" not in text
        assert b"w0rd" not in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<code>127.0.0.1</code></bdi> (2)." in page
    assert REASONS[HTTP_STATUS].meaning in page
    assert rejected(tmp_path / "out").keys() == {f"http://127.0.0.1:{port}/404/{n}.jpg" for n in range(2)}


def test_a_damaged_shard_is_repaired_from_its_urls_also_with_queries(capsys, tmp_path, server):
    lines = [f"{server.url}/secret/{number}.jpg?Signature=s3cr3t&v={number},{number % 2}" for number in range(20)]
    write_list(tmp_path / "in" / "list.csv", lines)
    convert(capsys, tmp_path)
    (shard,) = (tmp_path / "out").glob("train-*.tfrecord")
    right = shard.read_bytes()
    shard.write_bytes(right[:-9])
    code, out, err = run(capsys, "repair", f"{tmp_path}/out")
    assert code == 0, err
    assert shard.read_bytes() == right
    assert "s3cr3t" not in out + err


@pytest.mark.parametrize("header", ["image,label,note", "other,label"])
def test_no_secret_is_in_a_message_about_a_list(header, capsys, tmp_path):
    (tmp_path / "list.csv").write_text(f"https://a.com/1.jpg?Signature=s3cr3t,{header}\n")
    message = refused(capsys, "convert", f"--input={tmp_path}/list.csv", f"--output={tmp_path}/out")
    assert "https://a.com/1.jpg" in message
    assert "s3cr3t" not in message


@pytest.mark.parametrize("flag", ["--dedup=exact", "--dedup=near", "--group_by=near_duplicates"])
def test_what_would_read_urls_while_planning_is_refused(flag, capsys, tmp_path):
    write_list(tmp_path / "list.csv", ["https://a.com/1.jpg,1"])
    message = refused(capsys, "convert", f"--input={tmp_path}/list.csv", f"--output={tmp_path}/out", flag)
    assert flag in message


def test_files_and_urls_may_stand_in_one_list(capsys, tmp_path, server):
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "file.jpg").write_bytes(jpeg("file"))
    lines = [f"{server.url}/ok/{number}.jpg,{number % 2}" for number in range(8)]
    write_list(tmp_path / "in" / "list.csv", [*lines, "a/file.jpg,1", *["a/none.jpg,1"]])
    convert(capsys, tmp_path, "--max_rejected=20%")
    assert rejected(tmp_path / "out") == {"a/none.jpg": "missing"}


def test_rejected_urls_are_tried_again_by_extend_and_stored_ones_are_not(capsys, tmp_path, server):
    lines = [f"{server.url}/ok/{number}.jpg,{number % 2}" for number in range(20)]
    flaky, missing = f"{server.url}/flaky/1.jpg", f"{server.url}/404/1.jpg"
    write_list(tmp_path / "in" / "list.csv", [*lines, f"{flaky},1", f"{missing},1"])
    convert(capsys, tmp_path)
    assert rejected(tmp_path / "out") == {flaky: "http_503", missing: "http_404"}
    err = convert(capsys, tmp_path, "--extend")
    assert "changed" not in err
    assert list(rejected_of_version(tmp_path / "out")) == [missing]
    assert {server.count(f"/ok/{number}.jpg") for number in range(20)} == {1}


def rejected_of_version(output: Path) -> dict[str, str]:
    manifest = read_manifest(str(output))
    assert manifest
    newest = max(output.glob("rejected*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    return {line["key"]: line["reason"] for line in map(json.loads, newest.read_text().splitlines())}


def test_an_endless_answer_of_headers_is_no_endless_wait():
    """A server whose status line never ends."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        try:
            while True:
                connection.sendall(b"x" * 1000)
        except OSError:
            pass

    threading.Thread(target=answer, daemon=True).start()
    assert outcome(f"http://127.0.0.1:{listener.getsockname()[1]}/") == "bad_response"
    assert http.client._MAXLINE == 65536  # type: ignore[attr-defined]
    listener.close()


def recipes() -> list[str]:
    """Returns the two recipes of the guide's section about URLs."""
    page = (Path(__file__).parents[2] / "docs" / "conversion.md").read_text()
    section = page[page.index("### Lists of URLs") : page.index("### How folders are read")]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_the_recipe_for_laion(capsys, tmp_path, server, monkeypatch):
    monkeypatch.chdir(tmp_path)
    captions = ['of "two" cats, asleep', "a\nline", "ä"]
    columns = {"URL": [f"{server.url}/ok/{number}.jpg" for number in range(3)], "TEXT": captions, "hash": [1, 2, 3]}
    pq.write_table(pa.table(columns), "laion.parquet")
    exec(recipes()[0], {})
    flags = ("--label_type=none", "--feature=caption:string", "--output=laion", "--splits=train=100%", *FLAGS)
    code, _, err = run(capsys, "convert", "--input=laion.csv", *flags)
    assert code == 0, err
    manifest = read_manifest("laion")
    assert manifest
    stored = set[Any]()
    for shard in manifest.splits["train"].shards:
        with open(f"laion/{shard.name}", "rb") as file:
            stored |= {decode(payload).features["caption"] for _, payload in read_frames(file)}
    assert stored == {(caption,) for caption in captions}


def test_the_recipe_for_inaturalist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    annotations = {
        "images": [{"id": 7, "file_name": "train_mini/0001_a_b/x.jpg"}, {"id": 8, "file_name": "train_mini/2/y.jpg"}],
        "annotations": [{"id": 1, "image_id": 8, "category_id": 0}, {"id": 2, "image_id": 7, "category_id": 1}],
        "categories": [{"id": 0, "name": "Parus major"}, {"id": 1, "name": "Rosa canina"}],
    }
    Path("train_mini.json").write_text(json.dumps(annotations))
    exec(recipes()[1], {})
    assert Path("train_mini.csv").read_text().splitlines() == [
        "image,label",
        "train_mini/0001_a_b/x.jpg,Rosa canina",
        "train_mini/2/y.jpg,Parus major",
    ]
