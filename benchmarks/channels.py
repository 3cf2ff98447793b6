"""What the direct channel costs: a chain of three relays, against bare ZeroMQ in the same run.

A message goes from a client through three processes and back; each makes a fresh array of its
input's size, as a device would. The peer is the least that one would write by hand: PUSH and PULL
over ipc, a number and the raw array. All ways take turns in each round; ratios count, not times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zmq

from devices.request.request import Request
from scheduler.channels import direct_address
from scheduler.channels.direct import DirectChannel
from scheduler.vocabulary.messages import Message, Task, Values

RELAYS = 3
TASK = Task(Request(deployment="bench/chain:0", id=1), 0)
#: Way -> options of its channel, and whether the relays are as if each on a node of its own.
DIRECT: dict[str, tuple[dict[str, Any], bool]] = {
    "direct": ({}, False),
    "frames": ({"shared_nbytes": None}, False),
    "shared": ({"shared_nbytes": 1}, False),
    "tcp": ({"host": "127.0.0.1", "curve": False}, True),
    "curve": ({"host": "127.0.0.1", "curve": True}, True),
}


class Party(Protocol):
    """A way to send arrays and to receive them."""

    address: str

    def send(self, address: str, array: np.ndarray) -> None: ...

    def receive(self) -> np.ndarray: ...


class Bare:
    """ZeroMQ by hand."""

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
        push.send(b"01234567", zmq.SNDMORE)
        push.send(array.data, copy=array.nbytes < zmq.COPY_THRESHOLD)

    def receive(self) -> np.ndarray:
        self._pull.recv()
        return np.frombuffer(self._pull.recv(copy=False).buffer, np.float32)


class Direct:
    """The channel."""

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
    """Be one of the relays, until killed."""
    if way in DIRECT and DIRECT[way][1]:
        direct_address.this_node = lambda: str(os.getpid())  # type: ignore[assignment]
    mine = party(way, folder)
    print(mine.address, flush=True)
    target = sys.stdin.readline().strip()
    while True:
        mine.send(target, np.zeros_like(mine.receive()))


@contextmanager
def chain(way: str, folder: Path) -> Iterator[tuple[Party, str]]:
    """Yield the client and the address of the first relay."""
    command = [sys.executable, "-m", "benchmarks.channels", "--relay", way, "--folder", folder]
    relays = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(RELAYS)
    ]
    try:
        client = party(way, folder)
        addresses = [relay.stdout.readline().strip() for relay in relays if relay.stdout]
        for process, target in zip(relays, [*addresses[1:], client.address], strict=True):
            assert process.stdin is not None
            print(target, file=process.stdin, flush=True)
        yield client, addresses[0]
    finally:
        for process in relays:
            process.kill()
            process.wait()


def measure(
    client: Party, first: str, array: np.ndarray, window: int, seconds: float
) -> tuple[float, float]:
    """Return the median latency in ms, and messages per second, `window` of them in flight."""
    for _ in range(2 * window + 4):
        client.send(first, array)
        client.receive()
    sent: deque[float] = deque()
    latencies = []
    start = now = time.perf_counter()
    while now - start < seconds or sent:
        while now - start < seconds and len(sent) < window:
            sent.append(time.perf_counter())
            client.send(first, array)
        client.receive()
        now = time.perf_counter()
        latencies.append(now - sent.popleft())
    return statistics.median(latencies) * 1e3, len(latencies) / (now - start)


def run(ways: list[str], sizes: list[int], seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Measure each way at each size and window; the best of the rounds counts."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="het") as name:
        chains = [(way, chain(way, Path(name))) for way in ways]
        open_chains: list[tuple[str, Party, str]] = []
        closes: list[Callable[[], Any]] = []
        try:
            for way, context in chains:
                client, first = context.__enter__()
                closes.append(lambda context=context: context.__exit__(None, None, None))  # type: ignore[misc]
                open_chains.append((way, client, first))
            for nbytes in sizes:
                array = np.ones(nbytes // 4, np.float32)
                for window in (1, 8):
                    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
                    for _ in range(rounds):
                        for way, client, first in open_chains:
                            found[way].append(measure(client, first, array, window, seconds))
                    for way in ways:
                        p50_ms = min(ms for ms, _ in found[way])
                        rate = max(rate for _, rate in found[way])
                        peer_ms = min(ms for ms, _ in found[ways[0]])
                        peer_rate = max(rate for _, rate in found[ways[0]])
                        rows.append(
                            {
                                "way": way,
                                "nbytes": nbytes,
                                "window": window,
                                "p50_ms": round(p50_ms, 4),
                                "messages_per_s": round(rate, 1),
                                "p50_ratio": round(p50_ms / peer_ms, 3),
                                "rate_ratio": round(rate / peer_rate, 3),
                            }
                        )
        finally:
            for close in closes:
                close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="zmq,direct", help=f"first the peer; {list(DIRECT)}")
    parser.add_argument("--sizes", default="1000,128000,1000000,10000000", help="bytes")
    parser.add_argument("--relay", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.relay:
        relay(options.relay, options.folder)
        return
    sizes = [int(size) for size in options.sizes.split(",")]
    rows = run(options.ways.split(","), sizes, options.seconds, options.rounds)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'way':8} {'bytes':>10} {'window':>6} {'p50 ms':>9} {'per s':>9}  p50 x  rate x")
    for row in rows:
        print(
            f"{row['way']:8} {row['nbytes']:>10,} {row['window']:>6} {row['p50_ms']:>9.3f} "
            f"{row['messages_per_s']:>9,.0f} {row['p50_ratio']:>6.2f} {row['rate_ratio']:>7.2f}"
        )


if __name__ == "__main__":
    main()
