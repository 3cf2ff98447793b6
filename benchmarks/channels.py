"""Channels: latency and rate of messages through three relays, compared with plain ZeroMQ.

A message goes from a client through three processes and back. Each process allocates an array of
its input's size, as a device would. The baseline is minimal code by hand: PUSH and PULL over ipc, a
number and the raw array. All channels take turns in each round; compare ratios, not times.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zmq

from benchmarks import zmq_relay
from benchmarks.processes import Child
from benchmarks.tables import names, numbers, print_rows
from hetero.devices.request.request import Request
from hetero.scheduler.channels import addresses
from hetero.scheduler.channels.direct import DirectChannel
from hetero.scheduler.types.messages import Message, Task, Values

RELAYS = 3
TASK = Task(Request(deployment="bench/chain:0", id=1), 0)
#: Channel -> its options, and whether the relays behave like separate nodes.
DIRECT: dict[str, tuple[dict[str, Any], bool]] = {
    "direct": ({}, False),
    "frames": ({"shared_nbytes": None}, False),
    "shared": ({"shared_nbytes": 1}, False),
    "tcp": ({"host": "127.0.0.1", "curve": False}, True),
    "curve": ({"host": "127.0.0.1", "curve": True}, True),
}


class Party(Protocol):
    """Endpoint that sends and receives arrays."""

    address: str

    def send(self, address: str, array: np.ndarray) -> None: ...

    def receive(self) -> np.ndarray: ...


class Bare:
    """Endpoint with plain ZeroMQ sockets."""

    def __init__(self, folder: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._pushes: dict[str, zmq.Socket[bytes]] = {}
        self.address = f"ipc://{folder}/{os.getpid()}.bare"
        self._pull.set_hwm(0)
        self._pull.bind(self.address)

    def send(self, address: str, array: np.ndarray) -> None:
        push = self._pushes.get(address)
        if push is None:
            push = self._pushes[address] = self._context.socket(zmq.PUSH)
            push.set_hwm(0)
            push.connect(address)
        zmq_relay.send(push, b"01234567", array)

    def receive(self) -> np.ndarray:
        return zmq_relay.receive(self._pull)[1]


class Direct:
    """Endpoint with the scheduler's channel."""

    def __init__(self, folder: Path, way: str) -> None:
        options, _ = DIRECT[way]
        self._came: deque[Message] = deque()
        self._channel = DirectChannel(self._came.append, folder=folder, **options)
        self.address = self._channel.address

    def send(self, address: str, array: np.ndarray) -> None:
        self._channel.send(address, Values(TASK, {"x": array}))

    def receive(self) -> np.ndarray:
        while not self._came:
            self._channel.pump()
        message = self._came.popleft()
        assert isinstance(message, Values)
        array: np.ndarray = message.tensors["x"]
        return array


def party(way: str, folder: Path) -> Party:
    return Bare(folder) if way == "zmq" else Direct(folder, way)


def relay(way: str, folder: Path) -> None:
    """Run as one of the relays until killed."""
    if way in DIRECT and DIRECT[way][1]:
        addresses.this_node = lambda: str(os.getpid())  # type: ignore[assignment]
    mine = party(way, folder)
    print(mine.address, flush=True)
    target = sys.stdin.readline().strip()
    while True:
        mine.send(target, np.zeros_like(mine.receive()))


def chain(way: str, folder: Path, stack: ExitStack) -> tuple[Party, str]:
    """Start relays; return the client and the address of the first relay."""
    command = ("-m", "benchmarks.channels", "--relay", way, "--folder", str(folder))
    relays = [stack.enter_context(Child(*command)) for _ in range(RELAYS)]
    client = party(way, folder)
    addresses = [relay.read() for relay in relays]
    for process, target in zip(relays, [*addresses[1:], client.address], strict=True):
        process.write(target)
    return client, addresses[0]


def measure(
    client: Party, first: str, array: np.ndarray, window: int, seconds: float
) -> tuple[float, float]:
    """Return the median latency in ms and the messages per second with `window` in flight."""
    for _ in range(2 * window + 4):
        client.send(first, array)
        client.receive()
    send_times_s: deque[float] = deque()
    latencies = []
    start = now = time.perf_counter()
    while now - start < seconds or send_times_s:
        while now - start < seconds and len(send_times_s) < window:
            send_times_s.append(time.perf_counter())
            client.send(first, array)
        client.receive()
        now = time.perf_counter()
        latencies.append(now - send_times_s.popleft())
    return statistics.median(latencies) * 1e3, len(latencies) / (now - start)


def run(ways: list[str], sizes: list[int], seconds: float, rounds: int) -> Iterator[dict[str, Any]]:
    """Measure each channel at each size and window; the best round counts."""
    with tempfile.TemporaryDirectory(prefix="het") as name, ExitStack() as stack:
        chains = {way: chain(way, Path(name), stack) for way in ways}
        for nbytes in sizes:
            array = np.ones(nbytes // 4, np.float32)
            for window in (1, 8):
                timings: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
                for _ in range(rounds):
                    for way, (client, first) in chains.items():
                        timings[way].append(measure(client, first, array, window, seconds))
                best = {
                    way: (min(ms for ms, _ in each), max(rate for _, rate in each))
                    for way, each in timings.items()
                }
                peer_ms, peer_rate = best[ways[0]]
                for way, (p50_ms, rate) in best.items():
                    yield {
                        "way": way,
                        "nbytes": nbytes,
                        "window": window,
                        "p50_ms": round(p50_ms, 4),
                        "messages_per_s": round(rate, 1),
                        "p50_ratio": round(p50_ms / peer_ms, 3),
                        "rate_ratio": round(rate / peer_rate, 3),
                    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--ways", default="zmq,direct", help=f"channels, the baseline first; {list(DIRECT)}"
    )
    parser.add_argument("--sizes", default="1000,128000,1000000,10000000", help="bytes")
    parser.add_argument("--relay", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.relay:
        relay(options.relay, options.folder)
        return
    rows = run(names(options.ways), numbers(options.sizes), options.seconds, options.rounds)
    print_rows(list(rows), options.json)


if __name__ == "__main__":
    main()
