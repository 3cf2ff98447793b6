"""What serving costs: ``python -m benchmarks.serve [--json] [--mlserver PATH]``.

The same bytes to each server in turns, over raw sockets from another process: ours, a bare ASGI
echo on the same uvicorn, and MLServer where the path of its command is given. x + 1 on 32 floats as
JSON at 1 and 16 connections; light:squeezenet and a tensor of 10 MB as raw bytes, beside the same
requests as calls in the server's own process.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import hetero

DEVICES = "HETERO:ORT,CPU"
LARGE = 2_500_000
ROUNDS = 3
ROUND_S = 1.0


def plus_one(size: int | str, operator: str = "Add") -> onnx.ModelProto:
    """Return y = x + 1."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in "xy"]
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    node = helper.make_node(operator, ["x", "one"], ["y"], name="add")
    graph = helper.make_graph([node], "plus", ports[:1], ports[1:], [one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def post(path: str, body: bytes, **headers: str) -> bytes:
    """Return a request as it is sent."""
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}"]
    lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def json_request(count: int) -> bytes:
    tensor = {"name": "x", "shape": [count], "datatype": "FP32", "data": [0.5] * count}
    body = json.dumps({"inputs": [tensor]}).encode()
    return post("/v2/models/plus/infer", body, content_type="application/json")


def raw_request(model: str, name: str, array: np.ndarray) -> bytes:
    tensor = {
        "name": name, "shape": array.shape, "datatype": "FP32",
        "parameters": {"binary_data_size": array.nbytes},
    }  # fmt: skip
    told = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    head = json.dumps(told).encode()
    path = f"/v2/models/{model}/infer"
    body = head + array.tobytes()
    return post(path, body, inference_header_content_length=str(len(head)))


def load(port: int, request: bytes, connections: int, seconds: float) -> list[float]:
    """Send a request over and over on so many connections; return each one's seconds."""
    selector = selectors.DefaultSelector()
    took: list[float] = []
    for _ in range(connections):
        made = socket.create_connection(("127.0.0.1", port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(made, selectors.EVENT_READ, [time.perf_counter(), bytearray(), 0])
        made.sendall(request)
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        for key, _ in selector.select(1.0):
            state, made = key.data, key.fileobj
            state[1] += made.recv(1 << 20)
            if not state[2] and (head := state[1].find(b"\r\n\r\n")) >= 0:
                lines = bytes(state[1][:head]).lower()
                if b" 200 " not in lines.split(b"\r\n")[0]:
                    raise RuntimeError(bytes(state[1][:500]))
                length = int(lines.split(b"content-length:")[1].split(b"\r\n")[0])
                state[2] = head + 4 + length
            if state[2] and len(state[1]) >= state[2]:
                now = time.perf_counter()
                took.append(now - state[0])
                key.data[:] = [now, bytearray(), 0]
                made.sendall(request)
    for key in list(selector.get_map().values()):
        key.fileobj.close()
    return took


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Read a body, and answer with it: what any application on this server costs at least."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


def run_server(kind: str) -> None:
    """Serve until stdin ends, and say where; be asked for calls in this process on the way."""
    if kind == "echo":
        import uvicorn

        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # its connections have it
        config = uvicorn.Config(
            echo, http="httptools", lifespan="off", log_level="warning", access_log=False
        )
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(config).run([listener])
        return
    with hetero.Core("inprocess") as core:
        compiled = {
            "plus": core.compile_model(plus_one("n").SerializeToString(), DEVICES),
            "large": core.compile_model(plus_one(LARGE).SerializeToString(), DEVICES),
            "squeezenet": core.compile_model("light:squeezenet", DEVICES),
        }
        with hetero.serve(compiled, 0) as server:
            print(server.port, flush=True)
            for line in sys.stdin:
                model, array = compiled[line.strip()], inputs()[line.strip()][1]
                took = []
                end = time.perf_counter() + ROUND_S
                while time.perf_counter() < end:
                    began = time.perf_counter()
                    model([array])
                    took.append(time.perf_counter() - began)
                print(json.dumps(took), flush=True)


def inputs() -> dict[str, tuple[str, np.ndarray]]:
    """Return the input of each model."""
    return {
        "plus": ("x", np.full(32, 0.5, np.float32)),
        "large": ("x", np.full(LARGE, 0.5, np.float32)),
        "squeezenet": ("data_0", np.full((1, 3, 224, 224), 0.5, np.float32)),
    }


@contextmanager
def started(*command: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a server of this module, and end it."""
    line = [sys.executable, "-m", "benchmarks.serve", *command]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def mlserver(command: str) -> Iterator[int]:
    """Start MLServer with x + 1 on numpy."""
    port = 18321
    settings = {
        "http_port": port, "grpc_port": port + 1, "metrics_port": port + 2,
        "parallel_workers": 0, "host": "127.0.0.1",
    }  # fmt: skip
    text = (
        "from mlserver import MLModel\nfrom mlserver.codecs import NumpyCodec\n"
        "from mlserver.types import InferenceResponse\n\n\nclass Plus(MLModel):\n"
        "    async def predict(self, payload):\n"
        "        x = NumpyCodec.decode_input(payload.inputs[0])\n"
        "        out = NumpyCodec.encode_output('y', x + 1)\n"
        "        return InferenceResponse(model_name=self.name, outputs=[out])\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "settings.json").write_text(json.dumps(settings))
        model = {"name": "plus", "implementation": "plus.Plus"}
        Path(folder, "model-settings.json").write_text(json.dumps(model))
        Path(folder, "plus.py").write_text(text)
        process = subprocess.Popen(
            [command, "start", folder], cwd=folder, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                with suppress(OSError, RuntimeError, IndexError):
                    load(port, json_request(32), 1, 0.2)
                    break
                time.sleep(0.5)
            yield port
        finally:
            process.terminate()
            process.wait(30)


def row(what: str, connections: int, took: Sequence[float], seconds: float) -> dict[str, Any]:
    ordered = sorted(took)
    return {
        "what": what,
        "connections": connections,
        "requests_per_s": round(len(took) / seconds, 1),
        "p50_ms": round(statistics.median(ordered) * 1e3, 3),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1e3, 3),
    }


def measure(command: str) -> list[dict[str, Any]]:
    """Return the rows: each server has a turn in each round."""
    found: dict[tuple[str, int], list[float]] = {}
    with started("--server", "ours") as (ours, port), started("--server", "echo") as (_, echo_port):
        assert ours.stdin is not None
        assert ours.stdout is not None
        small = json_request(32)
        turns = [("x + 1: hetero", port, small), ("x + 1: bare ASGI echo", echo_port, small)]
        with mlserver(command) if command else nullcontext() as other:
            if other:
                turns.append(("x + 1: MLServer", other, small))
            for _ in range(ROUNDS):
                for connections in (1, 16):
                    for name, where, request in turns:
                        took = load(where, request, connections, ROUND_S)
                        found.setdefault((name, connections), []).extend(took)
        for model in ("squeezenet", "large"):
            name, array = inputs()[model]
            request = raw_request(model, name, array)
            for _ in range(ROUNDS):
                took = load(port, request, 1, ROUND_S)
                found.setdefault((f"{model}: hetero", 1), []).extend(took)
                ours.stdin.write(f"{model}\n")
                ours.stdin.flush()
                took = json.loads(ours.stdout.readline())
                found.setdefault((f"{model}: a call in process", 1), []).extend(took)
    return [row(*key, took, ROUNDS * ROUND_S) for key, took in found.items()]


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--json", action="store_true")
    reader.add_argument("--mlserver", default="", help="the path of MLServer's command")
    reader.add_argument("--server", choices=("ours", "echo"), help=argparse.SUPPRESS)
    given = reader.parse_args()
    if given.server:
        run_server(given.server)
        return
    rows = measure(given.mlserver)
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    for line in rows:
        print("  ".join(f"{key} {value}" for key, value in line.items()))


if __name__ == "__main__":
    main()
