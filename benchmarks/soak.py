"""Soak: a good client alongside one attack after the other on a server, for some minutes.

``python -m benchmarks.soak [--minutes M] [--only ATTACK ...] [--json]`` runs a server and a good
client, each in a process of its own. The client sends x + 1 over REST on one connection, over REST
on new connections, and over gRPC, and checks every result. Every attack runs for some seconds, in
turns with none, until the time is over. The rows show the client's times alone and alongside each
attack, and the server's memory and descriptors after it.

The exit code is 1 if a result was wrong or missing, the server has ended, or the memory that it
uses has grown from the first round to the last by more than a limit. Freed memory that it keeps for
the next requests is in the rows, but not in the growth.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import random
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc

from benchmarks.processes import Child, held
from benchmarks.serve import json_request, post, started
from benchmarks.tables import print_rows
from hetero.apps.serve.proto_file import proto_file

#: Seconds of each attack, and of the time without one between two of them.
ATTACK_S = 4.0
#: Growth in bytes that is no leak: caches of Python and of libraries.
MAX_GROWTH_NBYTES = 2**24
FILE = proto_file("open_inference.proto")
Stop = threading.Event
#: An attack: sends to the ports for HTTP and gRPC until the event is set.
Attack = Callable[[int, int, Stop], None]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__.replace("_", " ")] = function
    return function


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 20)


def repeat(port: int, data: bytes, stop: Stop, pause_s: float = 0.0) -> None:
    """Send bytes on new connections, and read the responses until the server closes or pauses."""
    while not stop.wait(pause_s):
        with suppress(OSError), connect(port) as client:
            client.settimeout(1.0)
            client.sendall(data)
            client.recv(65536)


def endless(port: int, start: bytes, part: bytes, stop: Stop) -> None:
    """Send a request that does not end; begin another when the server closes the connection."""
    while not stop.is_set():
        with suppress(OSError), connect(port) as client:
            client.sendall(start)
            while not stop.is_set():
                client.sendall(part)


CHUNKED = (
    b"POST /v2/models/plus/infer HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
)


@attack
def busy_process(_: int, __: int, stop: Stop) -> None:
    """No attack: the processor time of one, for comparison."""
    while not stop.is_set():
        pass


@attack
def churn(port: int, grpc_port: int, stop: Stop) -> None:
    """Connections that are opened and reset at once, for both ports."""
    linger = struct.pack("ii", 1, 0)
    while not stop.is_set():
        for target in (port, grpc_port):
            with suppress(OSError), connect(target) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                client.sendall(b"POST /v2/mod")


@attack
def idle_connections(port: int, _: int, stop: Stop) -> None:
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(connect(port))
        stop.wait()


@attack
def slow_heads(port: int, _: int, stop: Stop) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(port)) for _ in range(100)]
        for byte in b"GET /v2 HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 1000:
            for client in clients:
                with suppress(OSError):
                    client.send(bytes([byte]))
            if stop.wait(0.2):
                return


@attack
def tiny_chunks(port: int, _: int, stop: Stop) -> None:
    endless(port, CHUNKED, b"2\r\naa\r\n" * 30_000, stop)


@attack
def trailers(port: int, _: int, stop: Stop) -> None:
    endless(port, CHUNKED + b"0\r\n", b"x: %s\r\n" % (b"v" * 1000) * 100, stop)


@attack
def endless_trailer(port: int, _: int, stop: Stop) -> None:
    endless(port, CHUNKED + b"0\r\nx: ", b"v" * 100_000, stop)


@attack
def pipelines(port: int, _: int, stop: Stop) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(port)) for _ in range(4)]
        for client in clients:
            client.setblocking(False)
        while not stop.wait(0.01):
            for client in clients:
                with suppress(OSError):
                    client.send(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 5000)


@attack
def large_json(port: int, _: int, stop: Stop) -> None:
    repeat(port, json_request(3_000_000), stop)


@attack
def packed_json(port: int, _: int, stop: Stop) -> None:
    body = gzip.compress(json_request(10_000_000).partition(b"\r\n\r\n")[2])
    repeat(port, post("/v2/models/plus/infer", body, content_encoding="gzip"), stop)


@attack
def held_bodies(port: int, _: int, stop: Stop) -> None:
    head = post("/v2/models/plus/infer", b"").replace(b"length: 0", b"length: 60000000")
    with ExitStack() as stack:
        for _ in range(6):
            client = stack.enter_context(connect(port))
            with suppress(OSError):
                client.sendall(head + bytes(2**25))
        stop.wait()


@attack
def wrong_requests(port: int, _: int, stop: Stop) -> None:
    """Requests that are refused, for other reasons each time."""
    bodies = [
        b"{",
        b"[" * 10**5,
        b'{"inputs": []}',
        b'{"inputs": [{"shape": [0, 1e400]}]}',
        b"\xff",
    ]
    draw = random.Random(1)
    while not stop.is_set():
        path = draw.choice(["/v2/models/plus/infer", f"/v2/models/{'a' * 2000}/infer", "/v2/%00"])
        with suppress(OSError), connect(port) as client:
            client.sendall(post(path, draw.choice(bodies)) * 20)
            client.recv(65536)


@attack
def abandoned_requests(port: int, _: int, stop: Stop) -> None:
    while not stop.is_set():
        with suppress(OSError), connect(port) as client:
            client.sendall(json_request(32) * 10)


def grpc_channel(port: int) -> grpc.Channel:
    """Return a channel with a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    return grpc.insecure_channel(f"127.0.0.1:{port}", options)


def send_grpc(port: int, data: bytes, stop: Stop) -> None:
    with grpc_channel(port) as channel:
        infer = channel.unary_unary(f"/{FILE.service}/ModelInfer")
        while not stop.is_set():
            with suppress(grpc.RpcError):
                infer(data, timeout=60)


@attack
def endless_varint(_: int, grpc_port: int, stop: Stop) -> None:
    send_grpc(grpc_port, b"\xff" * 300_000, stop)


@attack
def empty_fields(_: int, grpc_port: int, stop: Stop) -> None:
    send_grpc(grpc_port, b"\x3a\x00" * 10_000_000, stop)


@attack
def silent_calls(_: int, grpc_port: int, stop: Stop) -> None:
    def wait() -> Iterator[bytes]:
        stop.wait()
        yield from ()

    with grpc_channel(grpc_port) as channel:
        methods = ("ModelInfer", "ModelStreamInfer")
        calls = [
            channel.stream_stream(f"/{FILE.service}/{method}")(wait())
            for method in methods
            for _ in range(60)
        ]
        stop.wait()
        for call in calls:
            call.cancel()


@attack
def cancelled_calls(_: int, grpc_port: int, stop: Stop) -> None:
    with grpc_channel(grpc_port) as channel:
        infer = channel.unary_unary(f"/{FILE.service}/ModelInfer")
        while not stop.wait(0.001):
            infer.future(b"\x0a\x04plus").cancel()


class GoodClient:
    """Sends requests in turns and checks their results; `report` returns the times since."""

    def __init__(self, port: int, grpc_port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._times_ms: list[float] = []
        self._errors: list[str] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        message = FILE.messages["ModelInferRequest"](model_name="plus")
        message.inputs.add(name="x", datatype="FP32", shape=[3]).contents.fp32_contents.extend(
            [1, 2, 3]
        )
        self._message = message.SerializeToString()
        self._infer = grpc_channel(grpc_port).unary_unary(
            f"/{FILE.service}/ModelInfer",
            response_deserializer=FILE.messages["ModelInferResponse"].FromString,
        )

    def run(self) -> None:
        """Send requests for ever."""
        for way in self._ways():
            start_s = time.perf_counter()
            try:
                result = way()
                error = "" if result == [2.0, 3.0, 4.0] else f"wrong result {result}"
            except Exception as failure:
                error = repr(failure)[:200]
                self._connection.close()
            took_ms = (time.perf_counter() - start_s) * 1e3
            with self._lock:
                self._times_ms.append(took_ms)
                self._errors += [error] if error else []
            time.sleep(0.003)

    def report(self) -> str:
        """Return the times in milliseconds and the errors since the last report, as JSON."""
        with self._lock:
            times_ms, self._times_ms = self._times_ms, []
            errors, self._errors = self._errors, []
        return json.dumps([times_ms, errors])

    def _ways(self) -> Iterator[Callable[[], list[float]]]:
        while True:
            yield lambda: self._rest(self._connection)
            yield self._rest_on_new_connection
            yield lambda: list(
                self._infer(self._message, timeout=20).outputs[0].contents.fp32_contents
            )

    def _rest(self, connection: http.client.HTTPConnection) -> list[float]:
        x = {"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}
        connection.request("POST", "/v2/models/plus/infer", json.dumps({"inputs": [x]}))
        document = json.loads(connection.getresponse().read())
        values: list[float] = document["outputs"][0]["data"]
        return values

    def _rest_on_new_connection(self) -> list[float]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        try:
            return self._rest(connection)
        finally:
            connection.close()


def run_client(port: int, grpc_port: int) -> None:
    """Run the good client until stdin closes; report for each line."""
    client = GoodClient(port, grpc_port)
    threading.Thread(target=client.run, daemon=True).start()
    for _ in sys.stdin:
        print(client.report(), flush=True)


def soak(minutes: float, names: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for each attack, and the list of failures."""
    times_ms: dict[str, list[float]] = {}
    resources: dict[str, dict[str, int]] = {}
    problems: list[str] = []
    totals: list[int] = []
    with started("ours") as (server, (port, grpc_port)):
        arguments = ("-m", "benchmarks.soak", "--client", f"{port}", f"{grpc_port}")
        with Child(*arguments) as client:
            time.sleep(3.0)  # until it has connected
            client.ask("report")
            end_s, is_first = time.monotonic() + 60 * minutes, True
            while is_first or time.monotonic() < end_s:
                is_first = False
                for name in names:
                    for step in ("alone", name):
                        _run_step(ATTACKS.get(step), port, grpc_port)
                        step_ms, errors = json.loads(client.ask("report"))
                        times_ms.setdefault(step, []).extend(step_ms)
                        problems += [f"{step}: {error}" for error in errors]
                        if not Path(f"/proc/{server.pid}").exists():
                            return [], [f"the server has ended during {step}"]
                    resources[name] = held([f"{server.pid}"])
                server.ask("release")
                totals.append(held([f"{server.pid}"])["RssAnon"])
                print(f"round {len(totals)}: {totals[-1]:,} bytes in use", file=sys.stderr)
    if (growth := totals[-1] - totals[0]) > MAX_GROWTH_NBYTES:
        problems.append(f"memory has grown by {growth} bytes in {len(totals)} rounds")
    alone_p99_ms = percentile(times_ms["alone"], 0.99)
    rows = [
        {
            "attack": name,
            "requests": len(times),
            "p50_ms": round(statistics.median(times), 2),
            "p99_ms": round(percentile(times, 0.99), 2),
            "max_ms": round(max(times), 1),
            "p99_ratio": round(percentile(times, 0.99) / alone_p99_ms, 2),
            **resources.get(name, {}),
        }
        for name, times in times_ms.items()
    ]
    return rows, problems


def _run_step(function: Attack | None, port: int, grpc_port: int) -> None:
    if function is None:
        time.sleep(ATTACK_S)
        return
    stop = Stop()
    thread = threading.Thread(target=function, args=(port, grpc_port, stop), daemon=True)
    thread.start()
    time.sleep(ATTACK_S)
    stop.set()
    thread.join(60)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--minutes", type=float, default=10.0)
    reader.add_argument("--only", nargs="+", choices=ATTACKS, metavar="ATTACK")
    reader.add_argument("--json", action="store_true")
    reader.add_argument("--client", nargs=2, type=int, help=argparse.SUPPRESS)
    options = reader.parse_args()
    if options.client:
        run_client(*options.client)
        return
    rows, problems = soak(options.minutes, options.only or [*ATTACKS])
    print_rows(rows, options.json)
    for problem in dict.fromkeys(problems):
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
