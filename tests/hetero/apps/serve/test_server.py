"""A server under load and at its end; slow, disconnecting and unauthorised clients."""

from __future__ import annotations

import json
import logging
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.apps.serve.server import Server
from hetero.errors import ArgumentError, HeteroError
from tests.support.gated_plugin import GatedPlugin
from tests.support.serving import (
    INFER,
    PATIENCE_S,
    Response,
    ask,
    connected,
    infer_with_traceparent,
    plus_one,
    posted,
    serving,
    tensor,
    until,
)

pytest.importorskip("uvicorn")
pytest.importorskip("google.protobuf")
from hetero.apps.serve.options import ServerOptions
from hetero.apps.serve.repository import ModelSource, Repository

BODY = {"inputs": [tensor("x", "FP32", [1.0, 2.0])]}


@pytest.fixture
def gated():
    """A model that runs one request at a time while its gate is open; two more may wait."""
    config = {"MAX_REQUESTS_IN_FLIGHT": 1, "MAX_REQUESTS_WAITING": 2}
    with (
        serving("GATED", config=config, plugins=(GatedPlugin,), plus=plus_one()) as server,
        GatedPlugin.closed(),
    ):
        yield server


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def begun(
    pool: ThreadPoolExecutor, server: Server, rows: int = 2, **parameters: Any
) -> Future[Response]:
    """Begin a request with this number of rows."""
    body = {"inputs": [tensor("x", "FP32", np.ones(rows))], "parameters": parameters}
    return pool.submit(ask, server, INFER, body)


def waiting(server: Server) -> int:
    """Return the number of waiting requests."""
    text = ask(server, "/metrics").body.decode()
    match = re.search(r"^hetero_serve_requests_in_flight\{.*\} (\d+)", text, re.MULTILINE)
    assert match
    return int(match[1]) - 1


def test_request_beyond_the_waiting_limit_is_answered_503(gated, pool):
    first = begun(pool, gated)
    assert GatedPlugin.began.wait(PATIENCE_S)
    others = [begun(pool, gated) for _ in range(2)]
    until(lambda: waiting(gated) == 2)
    response = ask(gated, INFER, BODY)
    assert response.status == 503
    assert int(response.headers["retry-after"]) >= 1
    assert ask(gated, "/v2/health/ready").status == 200
    GatedPlugin.gate.set()
    assert [f.result(PATIENCE_S).status for f in (first, *others)] == [200] * 3


def test_waiting_request_of_the_first_level_runs_first(gated, pool):
    first = begun(pool, gated, rows=2)
    assert GatedPlugin.began.wait(PATIENCE_S)
    normal = begun(pool, gated, rows=3)
    until(lambda: waiting(gated) == 1)
    urgent = begun(pool, gated, rows=4, priority=1)
    until(lambda: waiting(gated) == 2)
    GatedPlugin.gate.set()
    assert [f.result(PATIENCE_S).status for f in (first, normal, urgent)] == [200] * 3
    assert GatedPlugin.runs == [2, 4, 3]


def test_deadline_ends_running_and_waiting_requests(gated, pool):
    running = begun(pool, gated)
    assert GatedPlugin.began.wait(PATIENCE_S)
    assert begun(pool, gated, timeout=100_000).result(PATIENCE_S).status == 504
    GatedPlugin.gate.set()
    assert running.result(PATIENCE_S).status == 200
    GatedPlugin.gate.clear()
    assert begun(pool, gated, timeout=100_000).result(PATIENCE_S).status == 504


def test_disconnect_cancels_a_waiting_request(gated, pool):
    running = begun(pool, gated)
    assert GatedPlugin.began.wait(PATIENCE_S)
    with connected(gated) as disconnecting_client:
        disconnecting_client.sendall(posted(json.dumps(BODY).encode()))
        until(lambda: waiting(gated) == 1)
    until(lambda: waiting(gated) == 0)
    GatedPlugin.gate.set()
    assert running.result(PATIENCE_S).status == 200
    assert GatedPlugin.runs == [2]


def test_close_answers_running_requests(gated, pool):
    running = begun(pool, gated)
    assert GatedPlugin.began.wait(PATIENCE_S)
    ending = threading.Thread(target=gated.close)
    ending.start()
    until(lambda: _refuses(gated))
    assert not running.done()
    GatedPlugin.gate.set()
    assert running.result(PATIENCE_S).status == 200
    ending.join(PATIENCE_S)
    assert not ending.is_alive()


def _refuses(server: Server) -> bool:
    try:
        socket.create_connection((server.host, server.port), 1).close()
    except OSError:
        return True
    return False


def test_large_and_slow_bodies_are_refused():
    options = {"body_nbytes": 1000, "body_s": 0.2}
    with serving(options=options, plus=plus_one()) as server:
        assert ask(server, INFER, b" " * 1001).status == 413
        with connected(server) as slow:
            slow.sendall(posted(b"{" + b" " * 49)[:-49])
            assert slow.recv(4096).startswith(b"HTTP/1.1 408")
        chunked = {"Transfer-Encoding": "chunked"}
        parts = b"3e8\r\n" + b" " * 1000 + b"\r\n1\r\n{\r\n0\r\n\r\n"
        assert ask(server, INFER, parts, headers=chunked).status == 413
        assert ask(server, INFER, BODY).status == 200


def test_endless_headers_are_refused():
    with (
        serving(plus=plus_one()) as server,
        connected(server) as flood,
    ):
        flood.sendall(b"GET /v2 HTTP/1.1\r\n")
        flood.sendall(b"".join(b"x-%d: %s\r\n" % (n, b"y" * 100) for n in range(700)))
        assert b"431" in flood.recv(4096).split(b"\r\n")[0]
        assert ask(server, "/v2").status == 200


def test_requests_need_a_token_except_health_checks():
    with serving(options={"tokens": ("sesame", "two")}, plus=plus_one()) as server:
        response = ask(server, INFER, BODY)
        assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
        assert ask(server, INFER, BODY, headers={"Authorization": "Bearer wrong"}).status == 401
        assert ask(server, INFER, BODY, headers={"Authorization": "Bearer two"}).status == 200
        assert ask(server, "/v2/health/live").status == 200


def test_access_log_has_proxied_client_and_disconnect(
    caplog,
):
    with (
        serving(
            "GATED", options={"access_log": True}, plugins=(GatedPlugin,), plus=plus_one()
        ) as server,
        GatedPlugin.closed(),
        caplog.at_level(logging.INFO, "hetero.serve.access"),
    ):
        with connected(server) as disconnecting_client:
            forwarded = "x-forwarded-for: 192.0.2.1, 192.0.2.7\r\n"
            disconnecting_client.sendall(posted(json.dumps(BODY).encode(), more=forwarded))
            assert GatedPlugin.began.wait(PATIENCE_S)
        until(lambda: bool(caplog.records))
    line = json.loads(caplog.records[0].message)
    assert (line["client"], line["status"]) == ("192.0.2.7", 499)


def test_access_log_has_the_trace(caplog):
    with (
        serving(options={"access_log": True}, plus=plus_one()) as server,
        caplog.at_level(logging.INFO, "hetero.serve.access"),
    ):
        parent = f"00-{'a' * 32}-{'b' * 16}-01"
        ask(server, INFER, BODY, headers={"traceparent": parent})
        until(lambda: bool(caplog.records))
    [record] = caplog.records
    line = json.loads(record.message)
    assert (line["path"], line["status"], line["trace_id"]) == (INFER, 200, "a" * 32)
    assert line["received_nbytes"] == len(json.dumps(BODY))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_trace_file_has_the_clients_trace(protocol, tmp_path):
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    with hetero.Core("inprocess") as core, core.trace(tmp_path / "trace.json"):
        model = core.read_model(plus_one().SerializeToString())
        with hetero.serve(core.compile_model(model, "CPU"), 0, grpc_port=0) as server:
            infer_with_traceparent(server, protocol, parent)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    traces = [event["args"]["traceparent"] for event in events if "state" in event.get("args", {})]
    assert traces == [parent]


@pytest.mark.parametrize(
    ("header_ms", "timeout", "status"),
    [
        ("50", None, 504),
        ("50", 60_000_000, 504),
        ("60000", 50_000, 504),
        ("soon", None, 200),
    ],
)
def test_deadline_of_a_proxy_is_kept(gated, pool, header_ms, timeout, status):
    body = {**BODY, "parameters": {"timeout": timeout} if timeout else {}}
    headers = {"x-envoy-expected-rq-timeout-ms": header_ms}
    future = pool.submit(ask, gated, INFER, body, headers=headers)
    if status == 200:  # others may be late before they begin
        assert GatedPlugin.began.wait(PATIENCE_S)
        GatedPlugin.gate.set()
    assert future.result(PATIENCE_S).status == status


def test_requests_of_several_clients_are_batched(pool):
    config = {"AUTO_BATCH_SIZE": 64, "MAX_REQUESTS_IN_FLIGHT": 1}
    with (
        serving("GATED", config=config, plugins=(GatedPlugin,), plus=plus_one()) as server,
        GatedPlugin.closed(),
    ):
        first = begun(pool, server)
        assert GatedPlugin.began.wait(PATIENCE_S)
        others = [begun(pool, server) for _ in range(4)]
        until(lambda: waiting(server) == 4)
        GatedPlugin.gate.set()
        answers = [f.result(PATIENCE_S) for f in (first, *others)]
    assert [a.json["outputs"][0]["data"] for a in answers] == [[2.0, 2.0]] * 5
    assert max(GatedPlugin.runs) > 2


def test_unknown_option_and_used_port_are_errors():
    with hetero.Core("inprocess") as core:
        compiled = core.compile_model(core.read_model(plus_one().SerializeToString()), "CPU")
        with pytest.raises(ArgumentError, match="no_such"):
            hetero.serve(compiled, 0, no_such=1)
        with (
            hetero.serve(compiled, 0) as server,
            pytest.raises(ArgumentError, match=str(server.port)),
        ):
            hetero.serve(compiled, server.port)


def test_changes_of_a_model_folder_are_loaded(tmp_path):
    from hetero.apps.serve.model_folder import ModelOptions, folder_sources

    data = plus_one().SerializeToString()
    (tmp_path / "first.onnx").write_bytes(data)
    versions = tmp_path / "second"
    for version in ("1", "2", "10"):
        (versions / version).mkdir(parents=True)
        (versions / version / "model.onnx").write_bytes(data)
    with hetero.Core("inprocess") as core:
        seen: list[tuple[str, ModelOptions]] = []

        def load(path: Path, options: ModelOptions) -> Any:
            seen.append((str(path.relative_to(tmp_path)), options))
            return core.compile_model(path, options.device or "CPU", options.config)

        repository = Repository(lambda: folder_sources(tmp_path, ModelOptions(), load))
        repository.refresh()
        assert repository.versions("second") == ["1", "2", "10"]
        assert repository.find("second").version == "10"
        seen.clear()
        repository.refresh()
        assert seen == []
        (versions / "hetero.yaml").write_text("versions: [2]\nconfig: {PERF_COUNT: true}\n")
        repository.refresh()
        assert [path for path, _ in seen] == ["second/2/model.onnx"]
        assert repository.versions("second") == ["2"]
        model = repository.find("first")
        (tmp_path / "first.onnx").write_bytes(b"no model")
        repository.refresh()
        assert repository.find("first") is model
        (versions / "hetero.yaml").write_text("version: [2]\n")
        repository.refresh()
        assert "version" in next(
            row["reason"] for row in repository.index() if row["name"] == "second"
        )
        (tmp_path / "first.onnx").unlink()
        repository.refresh()
        with pytest.raises(HeteroError, match="no model 'first'"):
            repository.find("first")


@pytest.mark.slow
def test_tls_serves_http_and_grpc(tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "1",
            "-keyout",
            key,
            "-out",
            certificate,
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )
    options = {"tls_key": key, "tls_certificate": certificate}
    with serving(options=options, grpc_port=0, plus=plus_one()) as server:
        trusted = ssl.create_default_context(cafile=str(certificate))
        url = f"{server.url}/v2/health/ready"
        assert url.startswith("https://")
        with urllib.request.urlopen(url, context=trusted, timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        grpc = pytest.importorskip("grpc")
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
            grpc.channel_ready_future(channel).result(PATIENCE_S)
    invalid_server = serving(options={**options, "tls_key": certificate}, plus=plus_one())
    with pytest.raises(ArgumentError, match="TLS"), invalid_server:
        pass


def test_folder_that_cannot_be_searched_is_logged_once(caplog):
    searches = []

    def fail() -> list[ModelSource]:
        searches.append(1)
        raise OSError("too many open files")

    repository = Repository(fail)
    with Server(repository, ServerOptions(port=0, watch_s=0.01)):
        until(lambda: len(searches) > 3)
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_command_lets_the_event_loop_wait_less_for_other_threads(shell, monkeypatch, tmp_path):
    intervals_s: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", intervals_s.append)
    model = tmp_path / "plus.onnx"
    model.write_bytes(plus_one().SerializeToString())
    assert shell("serve --check -d CPU", model).code == 0
    (interval_s,) = intervals_s
    assert interval_s < 0.005  # Python's default: an earlier test may have changed the present one
