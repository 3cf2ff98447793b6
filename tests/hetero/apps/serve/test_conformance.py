"""Our own suite: this server keeps every rule, and one that breaks them is found out."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from onnx import TensorProto

from hetero.apps.serve.server import Server
from tests.support.serving import identity, plus_one, serving

pytest.importorskip("uvicorn")
pytest.importorskip("grpc")
from tests.oip_conformance.__main__ import verdicts
from tests.oip_conformance.subject import Subject


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(grpc_port=0, plus=plus_one(), text=identity(TensorProto.STRING)) as made:
        yield made


@pytest.mark.parametrize("model", ["plus", "text"])
def test_we_keep_every_rule(server: Server, model: str) -> None:
    found = list(verdicts(Subject(server.url, model, f"127.0.0.1:{server.grpc_port}")))
    assert [row for row in found if row.verdict != "kept"] == []
    assert len(found) > 40


class _Careless(BaseHTTPRequestHandler):
    """Says yes to everything."""

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


def test_a_careless_server_is_found_out() -> None:
    careless = ThreadingHTTPServer(("127.0.0.1", 0), _Careless)
    threading.Thread(target=careless.serve_forever, args=(0.02,), daemon=True).start()
    try:
        found = verdicts(Subject(f"http://127.0.0.1:{careless.server_port}", "plus"))
        by_name = {row.name: row.verdict for row in found}
    finally:
        careless.shutdown()
        careless.server_close()
    assert by_name["live"] == "kept"
    for name in ("infer", "id", "unknown model", "no JSON", "negative size", "raw output"):
        assert by_name[name] == "broken", name
    assert by_name["statistics"] == by_name["gRPC: raw"] == "not here"
