"""Finding a TPU, and waiting for one that is away: the real resolver against stand-ins on this machine."""

from __future__ import annotations

import http.server
import json
import socket
import threading

import pytest
import tensorflow as tf

pytest.importorskip("tensorflow_estimator", reason="TPUEstimator ends with TensorFlow 2.15")

from estimator_app.runtime.tpu import Tpu, Unreachable
from estimator_app.trainers.interruption import Backoff, retry_while_unavailable

ENVIRONMENT = ("TPU_NAME", "TPU_CONFIG", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_API_DISCOVERY_URL")


def api(url: str) -> dict:
    """Returns the description of the one method that is called, in the discovery format of Google's APIs."""
    name = {"location": "path", "required": True, "type": "string", "pattern": "^projects/.*$"}
    get = {"id": "tpu.get", "path": "v1/{+name}", "httpMethod": "GET", "response": {"$ref": "Node"}}
    methods = {"get": get | {"parameters": {"name": name}, "parameterOrder": ["name"]}}
    resources = {"projects": {"resources": {"locations": {"resources": {"nodes": {"methods": methods}}}}}}
    schemas = {"Node": {"id": "Node", "type": "object"}}
    addresses = {"rootUrl": f"{url}/", "servicePath": "", "batchPath": "batch"}
    return {"name": "tpu", "version": "v1", "schemas": schemas, "resources": resources, **addresses}


class Cloud(http.server.ThreadingHTTPServer):
    """Google Cloud's TPU service, as far as the resolver asks it: the description of its API, and its nodes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.nodes: dict[str, dict] = {}


class Handler(http.server.BaseHTTPRequestHandler):
    server: Cloud

    def do_GET(self) -> None:
        if self.path.startswith("/discovery"):
            self.answer(200, api(self.server.url))
        else:
            node = self.server.nodes.get(self.path.partition("?")[0].removeprefix("/v1/"))
            self.answer(200 if node else 404, node or {"error": {"message": "not found"}})

    def answer(self, code: int, fields: dict) -> None:
        body = json.dumps(fields).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args) -> None:
        pass


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cloud(monkeypatch, tmp_path):
    with Cloud() as server:
        monkeypatch.setenv("TPU_API_DISCOVERY_URL", f"{server.url}/discovery")
        user = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r"}
        (tmp_path / "user.json").write_text(json.dumps(user))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "user.json"))

        def refresh(self, http) -> None:
            self.access_token = "token"

        client = pytest.importorskip("oauth2client.client")
        monkeypatch.setattr(client.GoogleCredentials, "_do_refresh_request", refresh)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def silent():
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


MINE = Tpu("mine", "us-central1-b", "project")
NODE = "projects/project/locations/us-central1-b/nodes/mine"
quiet = pytest.mark.filterwarnings("ignore")  # googleapiclient's and oauth2client's own


@quiet
def test_a_tpu_is_found_by_name_zone_and_project(cloud, listening):
    endpoints = [{"ipAddress": "127.0.0.1", "port": listening}]
    cloud.nodes[NODE] = {"state": "READY", "health": "HEALTHY", "networkEndpoints": endpoints}
    assert MINE.connect().master() == f"grpc://127.0.0.1:{listening}"


@quiet
def test_a_preempted_tpu_is_away_and_an_unknown_one_an_error(cloud):
    cloud.nodes[NODE] = {"state": "PREEMPTED"}
    with pytest.raises(Unreachable, match='TPU "mine" is not yet ready; state: "PREEMPTED"'):
        MINE.connect()
    with pytest.raises(ValueError, match=r"cannot find the TPU 'other': Could not lookup TPU metadata .* 404"):
        Tpu("other", "us-central1-b", "project").connect()


def test_without_its_client_the_extra_is_named(monkeypatch):
    from tensorflow.python.tpu.client import client

    monkeypatch.setattr(client, "_GOOGLE_API_CLIENT_INSTALLED", False)
    with pytest.raises(
        ValueError, match=r"needs the Google API client; install it with: pip install 'jpeg2tpu\[tpu\]'"
    ):
        MINE.connect()


@pytest.mark.parametrize("name", ["TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"])
def test_a_tpu_is_found_in_the_environment(monkeypatch, listening, name):
    monkeypatch.setenv(name, f"grpc://127.0.0.1:{listening}")
    assert Tpu().connect().master() == f"grpc://127.0.0.1:{listening}"


def test_a_silent_address_is_away(silent):
    with pytest.raises(Unreachable, match=f"127.0.0.1:{silent} does not answer: .*refused"):
        Tpu(f"grpc://127.0.0.1:{silent}").connect()


def test_only_a_tpu_in_this_machine_reads_its_files(monkeypatch):
    assert Tpu("mine").is_remote
    assert not Tpu("local").is_remote
    monkeypatch.setenv("TPU_NAME", "local")
    assert not Tpu().is_remote
    assert Tpu().connect().master() == ""


def test_waits_grow_to_a_limit_and_half_of_each_is_drawn():
    backoff = Backoff(first=10, most=40, total=200)
    assert list(backoff.delays(lambda: 1.0)) == [10, 20, 40, 40, 40, 40, 10]
    assert list(backoff.delays(lambda: 0.0))[:4] == [5, 10, 20, 20]
    assert sum(backoff.delays()) == pytest.approx(200)


def test_a_lost_tpu_is_waited_for_and_progress_begins_the_waiting_anew():
    errors = [Unreachable("away"), tf.errors.UnavailableError(None, None, "Socket closed"), Unreachable("away")]
    steps, waited, lines = iter([0, 0, 100, 100, 100]), list[float](), list[str]()

    def attempt() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    result = retry_while_unavailable(attempt, lambda: next(steps), waited.append, lines.append, Backoff(10, 40, 1000))
    assert result == "done"
    assert [5 <= waited[0] <= 10, 5 <= waited[1] <= 10, 10 <= waited[2] <= 20] == [True] * 3
    assert lines[1].startswith("TPU unavailable (Socket closed); retrying from step 100 in ")


def test_waiting_ends_and_says_that_the_command_goes_on():
    def attempt() -> None:
        raise tf.errors.AbortedError(None, None, "Session is gone")

    waited: list[float] = []
    with pytest.raises(
        ValueError, match=r"TPU unavailable for 100 s \(Session is gone\); rerun the same command to resume from step 7"
    ):
        retry_while_unavailable(attempt, lambda: 7, waited.append, lambda line: None, Backoff(10, 40, 100))
    assert sum(waited) == pytest.approx(100)
