"""Server: latency and throughput against an ASGI echo server, plain sockets, MLServer and KServe.

``python -m benchmarks.serve [--json] [--mlserver PATH] [--kserve PYTHON]`` sends the same bytes to
each server in turns, over plain sockets from another process: to hetero, to an ASGI echo server on
the same uvicorn, to MLServer if the path of its command is set, and to KServe's model server if an
interpreter that has it is set. The requests are x + 1 on 32 floats as JSON over 1 and 16
connections, and light:squeezenet and a tensor of 10 MB as raw bytes, compared with calls in the
server's process. The 10 MB are also sent over gRPC, in shared memory, and through an echo of two
plain sockets, the lower bound of any server. Ratios compare medians.

``--soak SECONDS`` prints the server's resources ten times during a load; ``--loadgen QPS`` runs
MLPerf LoadGen's Server and Offline scenarios with the server, and with the device alone.
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
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc
import numpy as np

import hetero
from benchmarks.processes import Child, held
from benchmarks.sessions import parsed
from benchmarks.tables import print_rows
from hetero.apps.serve.proto_file import proto_file
from hetero.apps.serve.server import prepare_process
from hetero.devices.plugin.heap import release_free_memory

DEVICES = "HETERO:ORT,CPU"
LARGE = 2_500_000
ROUNDS = 3
ROUND_S = 1.0


def plus_one(size: int | str) -> bytes:
    """Return a model that computes y = x + 1."""
    port = f"float[{size}]"
    return parsed(
        f"plus ({port} x) => ({port} y) <float one = {{1}}> {{ [add] y = Add(x, one) }}"
    ).SerializeToString()


def post(path: str, body: bytes, **headers: str) -> bytes:
    """Return the bytes of a POST request."""
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def json_request(count: int) -> bytes:
    tensor = {"name": "x", "shape": [count], "datatype": "FP32", "data": [0.5] * count}
    body = json.dumps({"inputs": [tensor]}).encode()
    return post("/v2/models/plus/infer", body, content_type="application/json")


def raw_request(model: str, name: str, array: np.ndarray) -> bytes:
    tensor = {
        "name": name,
        "shape": array.shape,
        "datatype": "FP32",
        "parameters": {"binary_data_size": array.nbytes},
    }
    header = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    head = json.dumps(header).encode()
    path = f"/v2/models/{model}/infer"
    body = head + array.tobytes()
    return post(path, body, inference_header_content_length=str(len(head)))


def load(
    port: int, request: bytes, connections: int, seconds: float, rate: float = np.inf
) -> list[float]:
    """Send a request repeatedly over several connections; return the seconds of each.

    With `rate`, requests are due at that many per second, and their times count from then.
    """
    took: list[float] = []
    waiting: deque[selectors.SelectorKey] = deque()
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(connections):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            memory = bytearray(
                2 * len(request) + 65536
            )  # allocated once: the client's own time should not count
            selector.register(connection, selectors.EVENT_READ, [time.perf_counter(), 0, 0, memory])
            connection.sendall(request)
        start_s = time.perf_counter()
        due_s, step_s, end = start_s, 1 / rate, start_s + seconds
        while (now := time.perf_counter()) < end:
            while waiting and due_s <= now:
                (key := waiting.popleft()).data[0] = due_s
                due_s += step_s
                key.fileobj.sendall(request)
            for key, _ in selector.select(max(0.0, due_s - now) if waiting else 1.0):
                began_s, at, whole, memory = key.data
                at += key.fileobj.recv_into(memoryview(memory)[at:])
                if not whole and (head := memory.find(b"\r\n\r\n", 0, at)) >= 0:
                    lines = bytes(memory[:head]).lower()
                    if b" 200 " not in lines.split(b"\r\n")[0]:
                        raise RuntimeError(bytes(memory[:500]))
                    length = int(lines.split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
                    whole = head + 4 + length
                if whole and at >= whole:
                    now = time.perf_counter()
                    took.append(now - began_s)
                    began_s, at, whole = now, 0, 0
                    if step_s:
                        waiting.append(key)
                    else:
                        key.fileobj.sendall(request)
                key.data[:3] = began_s, at, whole
    return took


def load_grpc(port: int, array: np.ndarray, seconds: float) -> list[float]:
    """Send a tensor repeatedly over gRPC as raw bytes; return the seconds of each request."""
    file = proto_file("open_inference.proto")
    request = file.messages["ModelInferRequest"](model_name="large")
    request.inputs.add(name="x", datatype="FP32", shape=array.shape)
    request.raw_input_contents.append(array.tobytes())
    sizes = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    took: list[float] = []
    data, end = request.SerializeToString(), time.perf_counter() + seconds
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=sizes) as channel:
        call = channel.unary_unary(f"/{file.service}/ModelInfer", bytes, bytes)
        while (began_s := time.perf_counter()) < end:
            call(data, timeout=60)
            took.append(time.perf_counter() - began_s)
    return took


@contextmanager
def shared_request(port: int, array: np.ndarray) -> Iterator[bytes]:
    """Register shared memory for a tensor and its result, and yield the request that uses it."""
    memory = shared_memory.SharedMemory(create=True, size=2 * array.nbytes)
    try:
        np.frombuffer(memory.buf, array.dtype, array.size)[:] = array
        body = json.dumps({"key": memory.name, "offset": 0, "byte_size": memory.size}).encode()
        url = f"http://127.0.0.1:{port}/v2/systemsharedmemory/region/bench/register"
        urlopen(Request(url, body), timeout=10).close()
        region = {"shared_memory_region": "bench", "shared_memory_byte_size": array.nbytes}
        x = {"name": "x", "shape": array.shape, "datatype": "FP32", "parameters": region}
        result_region = {**region, "shared_memory_offset": array.nbytes}
        body = {"inputs": [x], "outputs": [{"name": "y", "parameters": result_region}]}
        yield post("/v2/models/large/infer", json.dumps(body).encode())
    finally:
        memory.close()
        memory.unlink()


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Respond with the request's body: the lower bound of any application on this server."""
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"".join(parts)
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


def echo_bytes(nbytes: int) -> None:
    """Respond to every `nbytes` bytes with as many: the cost of the sockets alone."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % nbytes
    memory = memoryview(bytearray(answer + bytes(nbytes)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            at = 0
            with (
                connection,
                suppress(ConnectionError),
            ):  # the client disconnects at the end of its time
                while received := connection.recv_into(memory[len(answer) + at :]):
                    if (at := at + received) == nbytes:
                        connection.sendall(memory)
                        at = 0


def run_server(kind: str) -> None:
    """Run a server until stdin closes; print its ports, and run direct calls on request.

    The line ``release`` returns its freed memory to the system.
    """
    if kind.isdigit():
        echo_bytes(int(kind))
    if kind == "echo":
        import uvicorn

        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # inherited by its connections
        config = uvicorn.Config(
            echo, http="httptools", lifespan="off", log_level="warning", access_log=False
        )
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(config).run([listener])
        return
    prepare_process()
    with hetero.Core("inprocess") as core:
        compiled = {
            "plus": core.compile_model(plus_one("n"), DEVICES),
            "large": core.compile_model(plus_one(LARGE), DEVICES),
            "squeezenet": core.compile_model("light:squeezenet", DEVICES),
        }
        options = {"shared_memory": True, "body_nbytes": 2**26}
        with hetero.serve(compiled, 0, grpc_port=0, **options) as server:
            print(server.port, server.grpc_port, flush=True)
            for line in sys.stdin:
                if line.strip() == "release":
                    release_free_memory()
                    print("released", flush=True)
                    continue
                model, array = compiled[line.strip()], inputs()[line.strip()][1]
                took = []
                end = time.perf_counter() + ROUND_S
                while time.perf_counter() < end:
                    began = time.perf_counter()
                    model([array])
                    took.append(time.perf_counter() - began)
                print(json.dumps(took), flush=True)


def inputs() -> dict[str, tuple[str, np.ndarray]]:
    """Return the input name and value of each model."""
    return {
        "plus": ("x", np.full(32, 0.5, np.float32)),
        "large": ("x", np.full(LARGE, 0.5, np.float32)),
        "squeezenet": ("data_0", np.full((1, 3, 224, 224), 0.5, np.float32)),
    }


@contextmanager
def started(kind: str) -> Iterator[tuple[Child, list[int]]]:
    """Run a server of this module; yield its process and its ports."""
    with Child("-m", "benchmarks.serve", "--server", kind) as process:
        yield process, [*map(int, process.read().split())]


@contextmanager
def peer(port: int, files: Mapping[str, str], *command: str) -> Iterator[int]:
    """Run another server of x + 1 in a folder with these files; yield its port once it responds."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
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


def mlserver(command: str) -> AbstractContextManager[int]:
    """Run MLServer with x + 1 on numpy."""
    port = 18321
    settings = {
        "http_port": port,
        "grpc_port": port + 1,
        "metrics_port": port + 2,
        "parallel_workers": 0,
        "host": "127.0.0.1",
    }
    text = (
        "from mlserver import MLModel\nfrom mlserver.codecs import NumpyCodec\n"
        "from mlserver.types import InferenceResponse\n\n\nclass Plus(MLModel):\n"
        "    async def predict(self, payload):\n"
        "        x = NumpyCodec.decode_input(payload.inputs[0])\n"
        "        out = NumpyCodec.encode_output('y', x + 1)\n"
        "        return InferenceResponse(model_name=self.name, outputs=[out])\n"
    )
    model = {"name": "plus", "implementation": "plus.Plus"}
    files = {
        "settings.json": json.dumps(settings),
        "model-settings.json": json.dumps(model),
        "plus.py": text,
    }
    return peer(port, files, command, "start", ".")


def kserve(python: str) -> AbstractContextManager[int]:
    """Run KServe's model server with x + 1 on numpy."""
    port = 18331
    text = (
        "from kserve import InferOutput, InferResponse, Model, ModelServer\n\n\n"
        "class Plus(Model):\n"
        "    def predict(self, payload, headers=None):\n"
        "        y = payload.inputs[0].as_numpy() + 1\n"
        "        out = InferOutput('y', list(y.shape), 'FP32')\n"
        "        out.set_data_from_numpy(y, binary_data=False)\n"
        "        return InferResponse(payload.id or '1', self.name, [out])\n\n\n"
        "plus = Plus('plus')\nplus.ready = True\n"
        f"ModelServer(http_port={port}, enable_grpc=False, workers=1).start([plus])\n"
    )
    return peer(port, {"plus.py": text}, python, "plus.py")


def row(what: str, connections: int, took: Sequence[float], seconds: float) -> dict[str, Any]:
    ordered = sorted(took)
    return {
        "what": what,
        "connections": connections,
        "requests_per_s": round(len(took) / seconds, 1),
        "p50_ms": round(statistics.median(ordered) * 1e3, 3),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1e3, 3),
    }


Found = dict[tuple[str, int], list[float]]


def measure_small(others: Mapping[str, AbstractContextManager[int]], timings: Found) -> None:
    """Measure x + 1 on 32 floats; each round measures every server."""
    request = json_request(32)
    with started("ours") as (_, ports), started("echo") as (_, echo_ports):
        turns = [("x + 1: hetero", ports[0]), ("x + 1: bare ASGI echo", echo_ports[0])]
        with ExitStack() as stack:
            for name, other in others.items():
                turns.append((f"x + 1: {name}", stack.enter_context(other)))
            for _ in range(ROUNDS):
                for connections in (1, 16):
                    for name, where in turns:
                        took = load(where, request, connections, ROUND_S)
                        timings.setdefault((name, connections), []).extend(took)
                        paced = load(where, request, connections, ROUND_S, 0.8 * len(took))
                        key = f"{name}, at 80 % of that", connections
                        timings.setdefault(key, []).extend(paced)


def measure_models(timings: Found) -> None:
    """Measure squeezenet and a tensor of 10 MB against calls in the server's process."""
    requests = {m: raw_request(m, *inputs()[m]) for m in ("squeezenet", "large")}
    nbytes = f"{len(requests['large'])}"
    with (
        started("ours") as (ours, (port, grpc_port)),
        started("echo") as (_, echo_ports),
        started(nbytes) as (_, bare_ports),
        shared_request(port, inputs()["large"][1]) as shared,
    ):
        large = requests["large"]
        for _ in range(ROUNDS):
            for model, request in requests.items():
                took = load(port, request, 1, ROUND_S)
                timings.setdefault((f"{model}: hetero", 1), []).extend(took)
                took = json.loads(ours.ask(model))
                timings.setdefault((f"{model}: a call in process", 1), []).extend(took)
            for name, took in (
                ("hetero, by gRPC", load_grpc(grpc_port, inputs()["large"][1], ROUND_S)),
                ("hetero, shared memory", load(port, shared, 1, ROUND_S)),
                ("bare ASGI echo", load(echo_ports[0], large, 1, ROUND_S)),
                ("bare socket echo", load(bare_ports[0], large, 1, ROUND_S)),
            ):
                timings.setdefault((f"large: {name}", 1), []).extend(took)


#: Row -> the row that its requests per second are compared with.
RATIOS = {
    "x + 1: hetero": ("x + 1: bare ASGI echo", "x + 1: MLServer", "x + 1: KServe"),
    "squeezenet: hetero": ("squeezenet: a call in process",),
    "large: hetero": (
        "large: a call in process",
        "large: bare ASGI echo",
        "large: bare socket echo",
    ),
    "large: hetero, by gRPC": ("large: bare socket echo",),
    "large: hetero, shared memory": ("large: a call in process",),
}


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the ratios of our speed to each peer's."""
    medians = {(row["what"], row["connections"]): row["p50_ms"] for row in rows}
    return [
        {
            "what": f"{what} / {other.partition(': ')[2]}",
            "connections": connections,
            "ratio": round(medians[other, connections] / median_ms, 3),
        }
        for (what, connections), median_ms in medians.items()
        for other in RATIOS.get(what, ())
        if (other, connections) in medians
    ]


def soak(seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the server's resources ten times while clients send, fail and disconnect."""
    requests = json_request(32), raw_request("large", *inputs()["large"])
    bad = post("/v2/models/plus/infer", b"{")
    with started("ours") as (ours, (port, grpc_port)):
        total = 0
        for _ in range(10):
            end = time.monotonic() + seconds / 10
            while time.monotonic() < end:
                total += len(load(port, requests[0], 16, 1.0)) + len(
                    load(port, requests[1], 2, 1.0)
                )
                total += len(load_grpc(grpc_port, inputs()["large"][1], 0.5))
                with suppress(RuntimeError):
                    load(port, bad, 1, 0.1)
                with socket.create_connection(("127.0.0.1", port)) as leaver:
                    leaver.sendall(requests[1][: len(requests[1]) // 2])
            time.sleep(1.0)  # until the last connections are closed
            files = [str(f.readlink()) for f in Path(f"/proc/{ours.pid}/fd").iterdir()]
            yield {
                "requests": total,
                **held([str(ours.pid)]),
                "sockets": sum(name.startswith("socket:") for name in files),
            }


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--json", action="store_true")
    reader.add_argument("--mlserver", default="", help="path of MLServer's command")
    reader.add_argument("--kserve", default="", help="Python interpreter with kserve")
    reader.add_argument(
        "--soak", type=float, metavar="SECONDS", help="only measure resources under load"
    )
    reader.add_argument(
        "--loadgen",
        type=float,
        metavar="QPS",
        help="only run MLPerf LoadGen's scenarios on squeezenet (pip install mlcommons-loadgen)",
    )
    reader.add_argument("--server", help=argparse.SUPPRESS)
    options = reader.parse_args()
    if options.server:
        run_server(options.server)
        return
    if options.soak:
        rows = soak(options.soak)
    elif options.loadgen:
        from benchmarks.serve_loadgen import scenarios

        rows = scenarios(options.loadgen)
    else:
        timings: Found = {}
        others = {}
        if options.mlserver:
            others["MLServer"] = mlserver(options.mlserver)
        if options.kserve:
            others["KServe"] = kserve(options.kserve)
        measure_small(others, timings)
        measure_models(timings)
        measured = [row(*key, took, ROUNDS * ROUND_S) for key, took in timings.items()]
        rows = iter([*measured, *ratios(measured)])
    print_rows([*rows], options.json)


if __name__ == "__main__":
    main()
