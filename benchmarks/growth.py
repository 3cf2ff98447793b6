"""Scalability of the client: processor time of its operations with 10, 100 and 1,000 devices.

The client and the devices run in the simulator, with ten requests in flight for each device.
Heartbeats are measured against another process that has the channels of all devices. `--ray`
measures real actors by the clock instead.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

import hetero
from benchmarks.null_models import chain, compile_chain, submit_to
from benchmarks.processes import MEMORY, Child, device_processes, held
from benchmarks.tables import numbers, print_rows
from benchmarks.timing import Timing, measure
from hetero.devices.model.reader import read_model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.observe.metrics_server import write_text
from hetero.scheduler.channels.direct import DirectChannel
from hetero.scheduler.client.liveness import Liveness
from hetero.scheduler.inprocess import InProcessExecutor
from hetero.scheduler.observe.load import DeviceLoad, Load
from hetero.scheduler.observe.metrics import Metrics
from hetero.scheduler.simulation.client import SimulatedClient
from hetero.scheduler.simulation.device import SimulatedCluster, Workload
from hetero.scheduler.simulation.network import Link, Network
from hetero.scheduler.simulation.simulator import Simulator
from hetero.scheduler.types.events import DeviceLost
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.placement import share
from hetero.scheduler.types.plan import Plan, Stage

X: Final = np.ones(1, np.float32)
_STATUS: Final = {"tasks": 1.0, "running": 1.0, "streams": 1.0, "kept_nbytes": 0.0}
_HEARTBEATS_S: Final = 3.0
#: Limit of one process, because each channel has its own threads and sockets.
_MAX_CHANNELS: Final = 300
Row = tuple[str, float, str]


def processor_us(work: Callable[[], object]) -> float:
    """Return the processor time of a call in microseconds."""
    start_s = time.process_time()
    work()
    return (time.process_time() - start_s) * 1e6


class _Nothing(Workload):
    def run_s(self, device: str, stage: Stage, inputs: Sequence[Any]) -> float:
        return 1e-3

    def outputs(self, device: str, stage: Stage, inputs: Sequence[Any]) -> Sequence[Any]:
        return inputs


def measure_requests(count: int) -> Iterator[Row]:
    """Measure requests to a model with a replica on each device, with ten devices per node."""
    simulator, nodes = Simulator(), {f"D{i}": f"n{i // 10}" for i in range(count)}
    network = Network(simulator, lambda sender, receiver: Link(1e-4))
    load = Load(devices={name: DeviceLoad(node, _STATUS, 0.1) for name, node in nodes.items()})
    metrics = Metrics(lambda: load)
    client = SimulatedClient(
        SimulatedCluster(simulator, network, _Nothing(), nodes), "client", "n0", [metrics]
    )
    x, y = (TensorSpec(name, "f32", (1,)) for name in "xy")
    plans = [Plan("m", (x,), (y,), (Stage(0, name, ("x",), ("y",), ("n",)),)) for name in nodes]
    placement, limits = share(plans, [1.0] * count), Limits(requests=10 * count, nbytes=2**62)
    deployments: list[Any] = []
    results: list[Any] = []

    def submit(number: int) -> None:
        for _ in range(number):
            deployments[0].submit({"x": X}).future.add_done_callback(results.append)

    def run_with_consequences(work: Callable[[], object], for_s: float = 1.0) -> float:
        """Return the processor time of a call and of the events that it causes."""
        return processor_us(work) + processor_us(lambda: simulator.run(simulator.now + for_s))

    deploy = run_with_consequences(lambda: deployments.append(client.deploy(placement, limits)))
    yield "deploy", deploy / count, "us a device"
    alone = [run_with_consequences(lambda: submit(1), 0.01) for _ in range(1000)]
    yield "request, alone", sum(alone) / 1000, "us"
    flood = run_with_consequences(lambda: submit(10 * count))
    yield "request, 10 a device in flight", flood / (10 * count), "us"
    submit(10 * count)
    simulator.run(simulator.now + 5e-4)
    loss = DeviceLost(simulator.now, "D0", "n0", "it is gone")
    yield "loss of a device: others wait", processor_us(lambda: deployments[0].notify(loss)), "us"
    yield (
        "loss of a device: all after it",
        run_with_consequences(lambda: None) / (10 * count),
        "us a request",
    )
    if len(results) != 1000 + 20 * count or any(future.exception() for future in results):
        raise RuntimeError(f"{len(results)} requests of {1000 + 20 * count} ended, or some failed")
    yield (
        "metrics, read",
        processor_us(lambda: write_text(metrics.families())) / count,
        "us a device",
    )
    yield "close", run_with_consequences(deployments[0].close) / count, "us a device"
    simulator.close()


def measure_supervision(count: int) -> Iterator[Row]:
    """Measure the supervisor's state machine."""
    liveness, names = Liveness(), [f"D{i}" for i in range(count)]
    for name in names:
        liveness.observe_start(0.0, name, "n", name)
    yield "supervisor, one check", processor_us(lambda: liveness.tick(1.0)), "us"

    def suspect_all() -> None:
        for name in names:
            liveness.observe_silence(2.0, name, 2.0)
            liveness.tick(2.0)

    yield "supervisor, all devices suspected", processor_us(suspect_all) / count, "us a device"


def measure_devices(count: int) -> Iterator[Row]:
    """Measure node discovery, and a query of each device."""
    model = read_model(chain(3, 4))
    executors: list[InProcessExecutor] = []
    survey = processor_us(lambda: executors.append(InProcessExecutor(devices={"NULL": count})))
    (executor,) = executors
    names = [row.name for row in executor.devices() if row.plugin == "NULL"]
    yield "survey", (survey + processor_us(executor.devices)) / count, "us a device"
    query_us = processor_us(lambda: [executor.query(name, model) for name in names])
    yield "query", query_us / count, "us a device"
    executor.close()


def measure_heartbeats(count: int) -> Iterator[Row]:
    """Measure heartbeats in the client."""
    if count > _MAX_CHANNELS:
        return
    with Child("-m", __spec__.name, "--channels", str(count)) as devices:
        channel = DirectChannel(lambda message: None)
        for _ in range(count):
            channel.watch(devices.read())
        time.sleep(_HEARTBEATS_S)  # until the channels are connected
        heartbeats = processor_us(lambda: time.sleep(_HEARTBEATS_S)) / _HEARTBEATS_S
        yield "heartbeats, the client's side", heartbeats / count, "us a device and second"
        channel.close()


def _channels(count: int) -> None:
    """Open the channels of `count` devices until stdin closes."""
    for channel in [DirectChannel(lambda message: None) for _ in range(count)]:
        print(channel.address, flush=True)
    sys.stdin.read()


def on_ray(count: int, requests: int) -> Iterator[Row]:
    """Measure real actors, each with one stage of a chain."""
    cores: list[Any] = []
    yield "Ray", elapsed_s(lambda: cores.append(hetero.Core(devices={"NULL": count}))), "s"
    yield (
        "actors, query, deploy",
        elapsed_s(lambda: cores.append(compile_chain(cores[0], count))),
        "s",
    )
    core, compiled = cores
    timing = Timing()
    while len(timing.latencies_s) < requests:
        measure(submit_to(compiled, X), 8, 1.0, timing)
    yield "request, 8 in flight", 1e6 / timing.rate / count, "us a stage"
    resources = held([str(pid) for pid in device_processes()])
    nbytes = sum(resources[kind] for kind in MEMORY)
    yield "memory without files", nbytes / count / 2**20, "MB a device"
    yield "close", elapsed_s(compiled.close), "s"
    yield "leave", elapsed_s(core.close), "s"


def elapsed_s(work: Callable[[], object]) -> float:
    """Return the elapsed seconds of a call."""
    start_s = time.monotonic()
    work()
    return time.monotonic() - start_s


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="10,100,1000", help="numbers of devices")
    parser.add_argument("--ray", action="store_true", help="measure real actors")
    parser.add_argument(
        "--requests", type=int, default=1000, help="least number of requests with --ray"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--channels", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.channels:
        _channels(options.channels)
    table: dict[str, dict[str, Any]] = {}
    parts = (measure_requests, measure_supervision, measure_devices, measure_heartbeats)
    for count in numbers(options.devices):
        for part in (partial(on_ray, requests=options.requests),) if options.ray else parts:
            for what, value, unit in part(count):
                empty = dict.fromkeys(map(str, numbers(options.devices)))
                row = table.setdefault(what, {"what": what, **empty, "unit": unit})
                row[str(count)] = round(value, 2)
    print_rows(list(table.values()), options.json)


if __name__ == "__main__":
    main()
