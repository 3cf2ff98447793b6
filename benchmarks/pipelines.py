"""Pipeline parallelism: throughput relative to the rate of the slowest device.

NULL stages of a few milliseconds, with each device used once (contiguous) or several times
(A-B-A-B), against sleeps of the same length and a chain of plain ZeroMQ processes that sleep.
`share` is relative to 1/bottleneck. `--models` measures networks on ORT.0 and ORT.1 with one thread
each, against one plain session. `--joined` connects networks one after another, one on each device
of `--joined-devices` with one thread; the bottleneck is the slowest network alone on its device.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

import hetero
from benchmarks.null_models import compile_chain, submit_to
from benchmarks.peers import zmq_chain
from benchmarks.sessions import bare_session, light_inputs, parsed, source
from benchmarks.tables import names, numbers, print_rows
from benchmarks.timing import at_once, by_turns
from hetero.devices.model.joining import join_models
from hetero.devices.model.light_models import light_model_inputs
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.program import RunContext

#: Visits of a request to each device of a re-entrant chain.
VISITS = 2
#: Windows that are measured, between one that fills the pipeline and one that drains it.
_WINDOWS = 6


def null_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure chains of NULL stages with each time and each number of devices."""
    devices = numbers(options.devices)
    x = np.ones(options.nbytes // 4, np.float32)
    with ExitStack() as stack:
        cores = {
            kind: stack.enter_context(hetero.Core(kind, devices={"NULL": max(devices)}))
            for kind in names(options.executors)
        }
        for milliseconds in map(float, names(options.times)):
            for count in devices:
                for visits in (1, VISITS):
                    yield from _chain_rows(options, cores, milliseconds, count, visits, x)


def _chain_rows(
    options: argparse.Namespace,
    cores: dict[str, hetero.Core],
    milliseconds: float,
    count: int,
    visits: int,
    x: np.ndarray,
) -> Iterator[dict[str, Any]]:
    config = {"NULL_NODE_TIME_US": milliseconds * 1e3, "MAX_REQUESTS_IN_FLIGHT": 1024}
    with ExitStack() as stack:
        submits = {}
        windows = []
        for kind, core in cores.items():
            compiled = stack.enter_context(
                compile_chain(core, visits * count, x.nbytes, devices=count, config=config)
            )
            submits[kind] = submit_to(compiled, x)
            windows.append(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        window = options.window or max(windows)
        if visits == 1:
            submits["zmq"] = stack.enter_context(zmq_chain(count, x, milliseconds / 1e3))
        # One device alone, for the machine's own error.
        submits["sleep"] = at_once(lambda: RunContext().sleep(milliseconds / 1e3))
        timings = by_turns(submits, window, options.seconds, 1, _WINDOWS)
        for name, timing in timings.items():
            rate = timing.steady_rate
            bottleneck_s = milliseconds / 1e3 * (1 if name == "sleep" else visits)
            yield {
                "stage_ms": milliseconds,
                "devices": count,
                "visits": visits,
                "window": window,
                "way": name,
                "requests_per_s": round(rate, 1),
                "share": round(rate * bottleneck_s, 3),
            }


def model_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure networks planned for THROUGHPUT over two ORT devices of one thread each."""
    config = {
        "INFERENCE_NUM_THREADS": 1,
        "MODEL_DISTRIBUTION_POLICY": "AUTO",
        "PERFORMANCE_HINT": "THROUGHPUT",
        "PLAN_SECONDS": 1.0,
    }
    for name in names(options.models):
        with ExitStack() as stack:
            inputs = light_inputs(name)
            run = bare_session(source(name), 1).run
            submits = {"bare session": at_once(partial(run, None, inputs))}
            for kind in names(options.executors):
                core = stack.enter_context(hetero.Core(kind, devices={"ORT": 2}))
                compiled = core.compile_model(f"light:{name}", "HETERO:ORT.0,ORT.1", config)
                submits[kind] = submit_to(compiled, inputs)
            window = options.window or compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
            timings = by_turns(submits, window, 3 * options.seconds)
            bare = timings["bare session"].rate
            for way, timing in timings.items():
                yield {
                    "model": name,
                    "window": window,
                    "way": way,
                    "requests_per_s": round(timing.rate, 2),
                    "over_bare": round(timing.rate / bare, 3),
                }


def joined_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure light models that are joined to one, and each of them alone on its device."""
    models = [read_model(f"light:{name}") for name in names(options.joined)]
    devices = names(options.joined_devices)
    if len({model.name for model in models}) != len(devices):
        raise SystemExit(f"--joined: expected {len(devices)} different models, one for each device")
    joined, affinity = _joined_model(models, devices)
    config = {"INFERENCE_NUM_THREADS": 1, "MAX_REQUESTS_IN_FLIGHT": 1024}
    kind: Any
    for kind in names(options.executors):
        with hetero.Core(kind) as core:
            compiled = core.compile_model(
                joined, "HETERO:" + ",".join(devices), config, affinity=affinity
            )
            if [subgraph.device for subgraph in compiled.subgraphs] != [
                core.resolve_devices(device)[0] for device in devices
            ]:
                raise RuntimeError(f"expected one subgraph for each device: {compiled.subgraphs}")
            submits = {"joined": submit_to(compiled, light_model_inputs(models[0]))}
            for model, device in zip(models, devices, strict=True):
                alone = core.compile_model(model, device, config)
                submits[f"{model.name} alone on {device}"] = submit_to(
                    alone, light_model_inputs(model)
                )
            window = options.window or compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
            timings = by_turns(submits, window, 3 * options.seconds, windows=_WINDOWS)
        rates = {way: timing.steady_rate for way, timing in timings.items()}
        bottleneck = min(rate for way, rate in rates.items() if way != "joined")
        for way, rate in rates.items():
            yield {
                "executor": kind,
                "way": way,
                "window": window,
                "requests_per_s": round(rate, 2),
                "share": round(rate / bottleneck, 3),
            }


def _joined_model(models: Sequence[Model], devices: Sequence[str]) -> tuple[Model, dict[str, str]]:
    """Return one model that runs `models` one after another, and the device of each node.

    The images of all but the first have the mean of the previous model's output as each pixel.
    """
    parts, wires = [models[0]], dict[str, str]()
    affinity = {f"{models[0].name}/*": devices[0]}
    for before, model, device in zip(models, models[1:], devices[1:], strict=False):
        (output,), ((image_name, image),) = before.outputs, light_model_inputs(model).items()
        name, shape = f"to_{model.name}", ", ".join(map(str, image.shape))
        output_shape = ", ".join(map(str, output.shape or ()))
        bridge = parsed(
            f"{name} (float[{output_shape}] {name}_in) => (float[{shape}] {name}_out) "
            f"<int64[{image.ndim}] shape = {{{shape}}}, int64[1] one = {{1}}> "
            f"{{ mean = ReduceMean<keepdims = 0>({name}_in) scalar = Reshape(mean, one) "
            f"{name}_out = Expand(scalar, shape) }}"
        )
        parts += [read_model(bridge), model]
        wires |= {f"{before.name}/{output.name}": f"{name}/{name}_in"}
        wires |= {f"{name}/{name}_out": f"{model.name}/{image_name}"}
        affinity |= {f"{name}/*": device, f"{model.name}/*": device}
    return join_models(parts, wires), affinity


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", default="2,5,20", help="milliseconds of a stage")
    parser.add_argument("--devices", default="4,8", help="NULL devices")
    parser.add_argument("--models", default="", help="light models instead of NULL stages")
    parser.add_argument("--joined", default="", help="light models to join, instead of NULL stages")
    parser.add_argument("--joined-devices", default="OV,ORT,CPU", help="their devices")
    parser.add_argument("--executors", default="inprocess,ray", help="executors of hetero")
    parser.add_argument(
        "--window", type=int, default=0, help="requests in flight; 0: the model's optimal number"
    )
    parser.add_argument("--nbytes", type=int, default=1000, help="bytes of a tensor")
    parser.add_argument("--seconds", type=float, default=2.0, help="per variant and case")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    measure_rows = joined_rows if options.joined else model_rows if options.models else null_rows
    print_rows(list(measure_rows(options)), options.json)


if __name__ == "__main__":
    main()
