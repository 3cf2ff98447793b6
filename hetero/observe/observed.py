"""What a Core lets be seen of its requests: a trace of them, and figures about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from devices.errors import HeteroError
from hetero.observe.metrics_server import MetricsServer
from hetero.observe.trace import Trace
from scheduler.executor import Executor
from scheduler.observe.load import Load
from scheduler.observe.observer import ObservedRequest, Observer


class Observed:
    """A Core's side that is looked at; its executor tells the observers of requests."""

    #: Set once the first device is needed.
    _executor: Executor | None = None

    def __init__(self) -> None:
        self._observers: Final[list[Observer]] = []

    def trace(self, path: str | Path, *, requests: int = 10_000) -> Trace:
        """Return a block whose requests are traced: ``with core.trace("trace.json"): ...``.

        The file shows, on one clock, each request's wait for admission and its time in flight, each
        stage's run and its time in its device's queue, and the wires between stages. Requests that
        ``AUTO_BATCH_SIZE`` joins have their stages in common.

        Parameters
        ----------
        path : path
            The file, for https://ui.perfetto.dev or ``chrome://tracing``; it appears when the block
            ends, also by an error or Ctrl-C.
        requests : int
            How many are kept: the last to end, and those that have not ended with the block. Each
            takes about a kilobyte for each stage.

        Raises
        ------
        ArgumentError
            `requests` is not positive.
        """
        return Trace(path, self._observers, self._nodes, self._in_flight, requests)

    def serve_metrics(self, port: int = 0, *, host: str = "127.0.0.1") -> MetricsServer:
        """Return a block whose requests are counted: ``with core.serve_metrics(9100): ...``.

        Prometheus and ``hetero top`` read the figures at the block's `MetricsServer.url`: requests
        by the state they ended in, their latencies, what waits and is in flight, each stage's runs
        and busy time, each device's queue, heartbeats and losses. Requests that
        ``AUTO_BATCH_SIZE`` joins count one by one; their stages run once.

        Parameters
        ----------
        port : int
            Where to listen; 0 takes a port that is free.
        host : str
            The address to listen on: whoever reaches it can read the figures.

        Raises
        ------
        ArgumentError
            On entering the block: it cannot listen there.
        """
        return MetricsServer(self._observers, self._load, host, port)

    def _nodes(self) -> Mapping[str, str]:
        try:
            rows = () if self._executor is None else self._executor.devices()
        except HeteroError:  # the cluster is lost: the rest goes without the nodes' names
            rows = ()
        return {device.name: device.node for device in rows}

    def _in_flight(self) -> Sequence[ObservedRequest]:
        executor = self._executor
        return () if executor is None else executor.requests_in_flight()

    def _load(self) -> Load:
        executor = self._executor
        return Load() if executor is None else executor.load()
