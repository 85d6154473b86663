"""A Hugging Face Hub of the tests' own, and its CDN, on two free ports of 127.0.0.1.

It has the addresses that huggingface_hub asks for: revisions, trees in pages, and files, which it sends itself or, as
those of Git LFS, has sent by the CDN. A token that comes to the CDN is an error there, as with S3.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import re
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.loopback import LoopbackHandler, LoopbackServer, serving
from support.s3 import forget_stores

Files = dict[str, bytes]
_PAGE = 5  # entries of a page; 1,000 at the real one
_ENDPOINT = re.compile(r"/(api/)?(datasets)/([^/]+/[^/]+)/(revision|tree|resolve)/([^/?]+)(?:/(.*))?")


class HubRequest(NamedTuple):
    """A request; token as it came, "" without one."""

    place: str
    path: str
    token: str


class Hub:
    """Both servers.

    Attributes:
      url: "http://127.0.0.1:PORT" of the Hub.
      branches: By dataset "OWNER/NAME" and branch, the commits of it, the newest last.
      token: What private datasets are read with; "" if all are public.
      is_gated: Whether files are refused, but not their listing.
      renamed: New names of datasets by their former ones.
      after_page: Called after each page of a listing.
      ask_too_often: The number of requests that are still refused as too many.
      requests: All so far.
    """

    def __init__(self) -> None:
        self.branches: dict[str, dict[str, list[str]]] = {}
        self._commits: dict[str, Files] = {}
        self._blobs: dict[str, bytes] = {}
        self.token, self.is_gated, self.ask_too_often = "", False, 0
        self.renamed: dict[str, str] = {}
        self.requests: list[HubRequest] = []
        self.after_page: Callable[[], object] = lambda: None
        self._servers = [_Server(self, "hub"), _Server(self, "cdn")]
        self.url, self._cdn = (server.url for server in self._servers)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Answers requests in threads until the block ends."""
        with serving(self._servers[0]), serving(self._servers[1]):
            yield

    def make_bucket(self) -> str:
        """Returns the URI of a new, empty dataset."""
        name = f"owner/name-{uuid.uuid4().hex[:8]}"
        self.commit(name, {})
        return f"hf://datasets/{name}"

    def upload(self, folder: Path | str, uri: str) -> None:
        """Commits all files of a local folder below a URI."""
        name, path = _split(uri)
        files = {file.relative_to(folder): file for file in sorted(Path(folder).rglob("*")) if file.is_file()}
        self.commit(name, {"/".join(filter(None, [path, str(key)])): file.read_bytes() for key, file in files.items()})

    def put(self, uri: str, data: bytes) -> None:
        name, path = _split(uri)
        self.commit(name, {path: data})

    def delete(self, uri: str) -> None:
        name, path = _split(uri)
        self.commit(name, {}, without=path)

    def commit(self, name: str, files: Files, without: str = "", branch: str = "main") -> str:
        """Returns the new commit of a branch, which has these files, too."""
        commits = self.branches.setdefault(name, {}).setdefault(branch, [])
        now = {**(self._commits[commits[-1]] if commits else {}), **files}
        now.pop(without, None)
        commits.append(hashlib.sha1(f"{name} {branch} {len(commits)}".encode()).hexdigest())
        self._commits[commits[-1]] = now
        return commits[-1]

    def head(self, uri: str) -> str:
        """Returns the newest commit of the branch main."""
        return self.branches[_split(uri)[0]]["main"][-1]

    def answer(self, request: _Handler) -> None:
        """Answers as the Hub."""
        target = urllib.parse.urlsplit(request.path)
        is_cached = target.path.startswith("/api/resolve-cache/")
        path = target.path.replace("/api/resolve-cache/datasets/", "/datasets/", 1)
        if self.ask_too_often:
            self.ask_too_often -= 1
            return request.send(429, headers={"RateLimit": '"api";r=0;t=1', "RateLimit-Policy": '"api";q=500;w=300'})
        if is_cached:
            path = re.sub(r"^(/datasets/[^/]+/[^/]+)/", r"\1/resolve/", path)
        match = _ENDPOINT.fullmatch(path)
        if not match:
            return request.send(404)
        _, kind, name, endpoint, revision, file = match.groups()
        if name in self.renamed:
            return request.send(307, headers={"Location": request.path.replace(name, self.renamed[name])})
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if name not in self.branches or token != (self.token or token):
            return request.send(404 if token else 401, headers={"X-Error-Code": "RepoNotFound"})
        revision = urllib.parse.unquote(revision)
        commit = self.branches[name].get(revision, [revision])[-1]
        if commit not in self._commits:
            return request.send(404, headers={"X-Error-Code": "RevisionNotFound"})
        file = urllib.parse.unquote(file or "")
        if endpoint == "revision":
            return request.send(200, json.dumps({"id": name, "sha": commit}).encode())
        if endpoint == "tree":
            return self._tree(request, commit, file, urllib.parse.parse_qs(target.query))
        if self.is_gated:
            return request.send(403 if token else 401, headers={"X-Error-Code": "GatedRepo"})
        data = self._commits[commit].get(file)
        if data is None:
            return request.send(404, headers={"X-Error-Code": "EntryNotFound"})
        entry = _entry(file, data)
        digest = entry.get("lfs", entry)["oid"]
        linked = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{digest}"'}
        if "lfs" in entry:
            self._blobs[digest] = data
            return request.send(302, headers=linked | {"Location": f"{self._cdn}/lfs/{digest}?X-Signature=s1gn3d"})
        if not is_cached:
            quoted = urllib.parse.quote(file)
            place = f"/api/resolve-cache/{kind}/{name}/{commit}/{quoted}?etag=%22{digest}%22"
            return request.send(307, headers=linked | {"Location": place})
        request.send_file(data, {"X-Repo-Commit": commit, "ETag": f'"{digest}"'})

    def answer_as_cdn(self, request: _Handler) -> None:
        digest = urllib.parse.urlsplit(request.path).path.rpartition("/")[2]
        if "Authorization" in request.headers:
            return request.send(400)
        request.send_file(self._blobs[digest], {"ETag": f'"cdn-{digest[:8]}"'})

    def _tree(self, request: _Handler, commit: str, folder: str, query: dict[str, list[str]]) -> None:
        prefix = f"{folder}/" if folder else ""
        entries = {}
        for path, data in sorted(self._commits[commit].items()):
            if path.startswith(prefix):
                first, *others = path.removeprefix(prefix).split("/")
                parts = [first, *others]
                for depth in range(1, len(parts)):
                    parent = f"{prefix}{'/'.join(parts[:depth])}"
                    entries[parent] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": parent}
                entries[path] = _entry(path, data)
        if query.get("recursive", ["false"])[0].lower() != "true":
            entries = {path: entry for path, entry in entries.items() if "/" not in path.removeprefix(prefix)}
        if folder and not entries:
            return request.send(404, headers={"X-Error-Code": "EntryNotFound"})
        start = int(query.get("cursor", ["0"])[0])
        page = [*entries.values()][start : start + _PAGE]
        headers = {}
        if start + _PAGE < len(entries):
            address = request.path.partition("?")[0]
            following = urllib.parse.urlencode(
                {name: value[0] for name, value in query.items()} | {"cursor": start + _PAGE}
            )
            headers["Link"] = f'<{self.url}{address}?{following}>; rel="next"'
        request.send(200, json.dumps(page).encode(), headers)
        self.after_page()


def _entry(path: str, data: bytes) -> dict[str, Any]:
    """What a tree has of a file; large ones are in Git LFS, and about every second small one."""
    digest = hashlib.sha256(data).hexdigest()
    oid = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
    entry: dict[str, Any] = {"type": "file", "oid": oid, "size": len(data), "path": path}
    if len(data) > 10_000 or int(digest[0], 16) % 2:
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(data)}\n".encode()
        entry["oid"] = hashlib.sha1(f"blob {len(pointer)}\0".encode() + pointer).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(data), "pointerSize": len(pointer)}
    return entry


def _split(uri: str) -> tuple[str, str]:
    owner, name, *path = uri.removeprefix("hf://datasets/").split("/")
    return f"{owner}/{name}", "/".join(path)


class _Server(LoopbackServer):
    def __init__(self, hub: Hub, place: str) -> None:
        super().__init__(_Handler)
        self.hub, self.place = hub, place


class _Handler(LoopbackHandler):
    server: _Server

    def respond(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.server.hub.requests.append(HubRequest(self.server.place, self.path, token))
        self.server.hub.answer(self) if self.server.place == "hub" else self.server.hub.answer_as_cdn(self)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """Both servers, with this process's environment pointing to them for one test, and no token."""
    for package in ("obstore", "boto3"):
        if not importlib.util.find_spec(package):
            pytest.skip(f"{package} is not installed")
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf_home")))
    for name in ("HF_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    forget_stores()
    with server.serving():
        yield server
    forget_stores()
