"""The protocol's conformance suite: this server passes it, and a careless one fails."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from onnx import TensorProto

from tests.support.serving import identity, plus_one, server_fixture

pytest.importorskip("uvicorn")
pytest.importorskip("grpc")
from tests.oip_conformance.__main__ import check_rules, main
from tests.oip_conformance.server_under_test import ServerUnderTest

server = server_fixture(grpc_port=0, plus=plus_one(), text=identity(TensorProto.STRING))


@pytest.mark.parametrize("model", ["plus", "text"])
def test_server_passes_every_rule(server, model):
    subject = ServerUnderTest(server.url, model, f"127.0.0.1:{server.grpc_port}")
    verdicts = list(check_rules(subject))
    assert [verdict for verdict in verdicts if verdict.outcome != "passed"] == []
    assert len(verdicts) > 40


def test_command_takes_the_first_model(server, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["oip_conformance", server.url])
    assert main() == 0
    assert ", 0 failed, " in capsys.readouterr().out


class _CarelessHandler(BaseHTTPRequestHandler):
    """Answers every request with the same document."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer()

    def _answer(self) -> None:
        port = {"name": "x", "datatype": "FP32", "shape": [-1]}
        body = json.dumps(
            {
                "name": "plus",
                "version": "1",
                "platform": "",
                "inputs": [port],
                "outputs": [port],
                "model_name": "plus",
                "extensions": ["binary_tensor_data"],
            }
        ).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_careless_server_fails():
    careless = ThreadingHTTPServer(("127.0.0.1", 0), _CarelessHandler)
    threading.Thread(target=careless.serve_forever, args=(0.02,), daemon=True).start()
    try:
        verdicts = check_rules(ServerUnderTest(f"http://127.0.0.1:{careless.server_port}", "plus"))
        outcomes = {verdict.name: verdict.outcome for verdict in verdicts}
    finally:
        careless.shutdown()
        careless.server_close()
    assert outcomes["live"] == "passed"
    for name in ("infer", "id", "unknown model", "no JSON", "negative size", "raw output"):
        assert outcomes[name] == "failed", name
    assert outcomes["statistics"] == outcomes["gRPC: raw"] == "not supported"
