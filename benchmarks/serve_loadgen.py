"""MLPerf LoadGen's Server and Offline scenarios on squeezenet, with and without a server."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlperf_loadgen as loadgen

import hetero
from benchmarks.serve import DEVICES, inputs, load, raw_request, started

#: Concurrent requests, and least duration of each scenario.
CONNECTIONS = 8
SCENARIO_S = 20
#: Least number of queries in the Server scenario, for stable percentiles.
QUERIES = 1000
#: Latency limit of the Server scenario for 99 % of the queries.
LATENCY_MS = 250


class Workers:
    """Threads that process samples, each with its own function."""

    def __init__(self, make: Callable[[], Callable[[], object]]) -> None:
        self._samples: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(make(),)) for _ in range(CONNECTIONS)
        ]
        for thread in self._threads:
            thread.start()

    def issue(self, samples: list[Any]) -> None:
        for sample in samples:
            self._samples.put(sample.id)

    def end(self) -> None:
        for _ in self._threads:
            self._samples.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, answer: Callable[[], object]) -> None:
        while (number := self._samples.get()) is not None:
            answer()
            loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(number, 0, 0)])


def scenarios(target_qps: float) -> Iterator[dict[str, Any]]:
    """Yield LoadGen's summary of each scenario at a target number of queries per second."""
    name, array = inputs()["squeezenet"]
    request = raw_request("squeezenet", name, array)
    with started("ours") as (_, ports):
        load(ports[0], request, CONNECTIONS, 1.0)
        yield from _both("hetero.serve", lambda: _connection(ports[0], request), target_qps)
    with hetero.Core("inprocess") as core:
        compiled = core.compile_model("light:squeezenet", DEVICES)
        yield from _both("a call in process", lambda: lambda: compiled([array]), target_qps)


def _connection(port: int, request: bytes) -> Callable[[], object]:
    """Return a function that sends a request and reads its response on a new connection."""
    import socket

    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    read = connection.makefile("rb")

    def answer() -> None:
        connection.sendall(request)
        status, length = read.readline(), 0
        while line := read.readline().strip():
            key, _, value = line.partition(b": ")
            length = int(value) if key == b"content-length" else length
        read.read(length)
        if b" 200 " not in status:
            raise RuntimeError(status)

    return answer


def _both(
    what: str, make: Callable[[], Callable[[], object]], target_qps: float
) -> Iterator[dict[str, Any]]:
    for scenario in ("Server", "Offline"):
        settings = loadgen.TestSettings()
        settings.scenario = getattr(loadgen.TestScenario, scenario)
        settings.mode = loadgen.TestMode.PerformanceOnly
        settings.min_duration_ms = SCENARIO_S * 1000
        settings.min_query_count = QUERIES if scenario == "Server" else 1
        settings.server_target_qps = target_qps
        settings.offline_expected_qps = (
            3 * target_qps
        )  # so that the run lasts for the least duration
        settings.server_target_latency_ns = LATENCY_MS * 1_000_000
        workers = Workers(make)
        with tempfile.TemporaryDirectory() as folder:
            outputs = loadgen.LogOutputSettings()
            outputs.outdir, outputs.copy_summary_to_stdout = folder, False
            logs = loadgen.LogSettings()
            logs.log_output = outputs
            system = loadgen.ConstructSUT(workers.issue, lambda: None)
            library = loadgen.ConstructQSL(1, 1, lambda _: None, lambda _: None)
            loadgen.StartTestWithLogSettings(system, library, settings, logs)
            loadgen.DestroyQSL(library)
            loadgen.DestroySUT(system)
            workers.end()
            text = Path(folder, "mlperf_log_summary.txt").read_text()
        summary = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        summary = {key.strip(): value.strip() for key, value in summary.items()}
        speeds = ("Completed samples per second", "Samples per second")
        yield {
            "what": what,
            "scenario": scenario,
            "result": summary["Result is"],
            "samples_per_s": next(summary[key] for key in speeds if key in summary),
            "p99_ms": int(summary["99.00 percentile latency (ns)"]) / 1e6,
        }
