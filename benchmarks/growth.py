"""Whether what the scheduler does costs more with 10, 100 and 1,000 devices.

Processor time: of the real client and devices in a world without processes, ten requests in flight
for each device; of heartbeats, beside a process that has all the devices' channels. `--ray`: real
actors instead, by the clock.
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
from hetero.scheduler.universe.client import PlayedClient
from hetero.scheduler.universe.device import PlayedCluster, Work
from hetero.scheduler.universe.network import Link, Network
from hetero.scheduler.universe.world import World
from hetero.scheduler.vocabulary.events import DeviceLost
from hetero.scheduler.vocabulary.limits import Limits
from hetero.scheduler.vocabulary.placement import share
from hetero.scheduler.vocabulary.plan import Plan, Stage

X: Final = np.ones(1, np.float32)
_STATUS: Final = {"tasks": 1.0, "running": 1.0, "streams": 1.0, "kept_nbytes": 0.0}
_HEARTBEATS_S: Final = 3.0
#: One process hardly has more: each has threads and sockets of its own.
_MOST_CHANNELS: Final = 300
Row = tuple[str, float, str]


def took(work: Callable[[], object]) -> float:
    """Return the processor time of something, in microseconds."""
    begun_s = time.process_time()
    work()
    return (time.process_time() - begun_s) * 1e6


class _Nothing(Work):
    def run_s(self, device: str, stage: Stage, inputs: Sequence[Any]) -> float:
        return 1e-3

    def outputs(self, device: str, stage: Stage, inputs: Sequence[Any]) -> Sequence[Any]:
        return inputs


def served(count: int) -> Iterator[Row]:
    """Measure what becomes of requests: a model that each device has whole, ten on a node."""
    world, nodes = World(), {f"D{i}": f"n{i // 10}" for i in range(count)}
    network = Network(world, lambda sender, receiver: Link(1e-4))
    load = Load(devices={name: DeviceLoad(node, _STATUS, 0.1) for name, node in nodes.items()})
    metrics = Metrics(lambda: load)
    client = PlayedClient(
        PlayedCluster(world, network, _Nothing(), nodes), "client", "n0", [metrics]
    )
    x, y = (TensorSpec(name, "f32", (1,)) for name in "xy")
    plans = [Plan("m", (x,), (y,), (Stage(0, name, ("x",), ("y",), ("n",)),)) for name in nodes]
    placement, limits = share(plans, [1.0] * count), Limits(requests=10 * count, nbytes=2**62)
    made: list[Any] = []
    ended: list[Any] = []

    def submit(number: int) -> None:
        for _ in range(number):
            made[0].submit({"x": X}).future.add_done_callback(ended.append)

    def go_on(work: Callable[[], object], for_s: float = 1.0) -> float:
        """Return what something takes, with all that it leads to."""
        return took(work) + took(lambda: world.run(world.now + for_s))

    deploy = go_on(lambda: made.append(client.deploy(placement, limits)))
    yield "deploy", deploy / count, "us a device"
    alone = [go_on(lambda: submit(1), 0.01) for _ in range(1000)]
    yield "request, alone", sum(alone) / 1000, "us"
    flood = go_on(lambda: submit(10 * count))
    yield "request, 10 a device in flight", flood / (10 * count), "us"
    submit(10 * count)
    world.run(world.now + 5e-4)
    lost = DeviceLost(world.now, "D0", "n0", "it is gone")
    yield "loss of a device: others wait", took(lambda: made[0].tell(lost)), "us"
    yield "loss of a device: all after it", go_on(lambda: None) / (10 * count), "us a request"
    if len(ended) != 1000 + 20 * count or any(future.exception() for future in ended):
        raise RuntimeError(f"{len(ended)} requests of {1000 + 20 * count} ended, or some failed")
    yield "metrics, read", took(lambda: write_text(metrics.families())) / count, "us a device"
    yield "close", go_on(made[0].close) / count, "us a device"
    world.close()


def kept(count: int) -> Iterator[Row]:
    """Measure the keeper's machine."""
    liveness, names = Liveness(), [f"D{i}" for i in range(count)]
    for name in names:
        liveness.started(0.0, name, "n", name)
    yield "keeper, a look", took(lambda: liveness.tick(1.0)), "us"

    def fall_silent() -> None:
        for name in names:
            liveness.suspected(2.0, name, 2.0)
            liveness.tick(2.0)

    yield "keeper, all fall silent at once", took(fall_silent) / count, "us a device"


def surveyed(count: int) -> Iterator[Row]:
    """Measure the table of devices, and a question to each of them."""
    model = read_model(chain(3, 4))
    made: list[InProcessExecutor] = []
    survey = took(lambda: made.append(InProcessExecutor(devices={"NULL": count})))
    (executor,) = made
    names = [row.name for row in executor.devices() if row.plugin == "NULL"]
    yield "survey", (survey + took(executor.devices)) / count, "us a device"
    asked = took(lambda: [executor.query(name, model) for name in names])
    yield "query", asked / count, "us a device"
    executor.close()


def heard(count: int) -> Iterator[Row]:
    """Measure a client's side of heartbeats."""
    if count > _MOST_CHANNELS:
        return
    with Child("-m", __spec__.name, "--channels", str(count)) as devices:
        channel = DirectChannel(lambda message: None)
        for _ in range(count):
            channel.watch(devices.read())
        time.sleep(_HEARTBEATS_S)  # they have met
        heartbeats = took(lambda: time.sleep(_HEARTBEATS_S)) / _HEARTBEATS_S
        yield "heartbeats, the client's side", heartbeats / count, "us a device and second"
        channel.close()


def _channels(count: int) -> None:
    """Have the channels of so many devices, until the input ends."""
    for channel in [DirectChannel(lambda message: None) for _ in range(count)]:
        print(channel.address, flush=True)
    sys.stdin.read()


def on_ray(count: int, requests: int) -> Iterator[Row]:
    """Measure real actors: a stage of a chain on each."""
    made: list[Any] = []
    yield "Ray", lasts_s(lambda: made.append(hetero.Core(devices={"NULL": count}))), "s"
    yield "actors, query, deploy", lasts_s(lambda: made.append(compile_chain(made[0], count))), "s"
    core, compiled = made
    timing = Timing()
    while len(timing.latencies_s) < requests:
        measure(submit_to(compiled, X), 8, 1.0, timing)
    yield "request, 8 in flight", 1e6 / timing.rate / count, "us a stage"
    found = held([str(pid) for pid in device_processes()])
    nbytes = sum(found[kind] for kind in MEMORY)
    yield "memory, files left out", nbytes / count / 2**20, "MB a device"
    yield "close", lasts_s(compiled.close), "s"
    yield "leave", lasts_s(core.close), "s"


def lasts_s(work: Callable[[], object]) -> float:
    """Return the seconds that something takes."""
    begun_s = time.monotonic()
    work()
    return time.monotonic() - begun_s


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="10,100,1000", help="how many")
    parser.add_argument("--ray", action="store_true", help="so many real actors instead")
    parser.add_argument("--requests", type=int, default=1000, help="to the real ones, at least")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--channels", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.channels:
        _channels(options.channels)
    table: dict[str, dict[str, Any]] = {}
    parts = (served, kept, surveyed, heard)
    for count in numbers(options.devices):
        for part in (partial(on_ray, requests=options.requests),) if options.ray else parts:
            for what, value, unit in part(count):
                empty = dict.fromkeys(map(str, numbers(options.devices)))
                row = table.setdefault(what, {"what": what, **empty, "unit": unit})
                row[str(count)] = round(value, 2)
    print_rows(list(table.values()), options.json)


if __name__ == "__main__":
    main()
