"""Overhead over vendors' runtimes: each used directly, and as a device, in the same run.

Pairs of a direct call and a device: openvino and `OV`, onnxruntime and `ORT`, OpenVINO's own
`HETERO:CPU` and our `HETERO:OV`. `ratio` is the median latency of the direct call over the
device's, one request at a time; 1 means no overhead. Both have the same number of threads, OpenVINO
computes in float32, and their turns alternate. Runtimes that are not installed are skipped with a
message.

Then two devices share the cores, each with half of a model's nodes and several requests in flight:
once with the thread budget that hetero assigns, and once with all threads for each. `ratio` is the
rate of the former over the latter.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import onnx

import hetero
from benchmarks.networks import NETWORKS
from benchmarks.null_models import call
from benchmarks.sessions import bare_session
from benchmarks.tables import names, print_rows
from benchmarks.timing import Submit, Timing, at_once, by_turns
from hetero.devices.model.light_models import light_model_inputs, light_model_path
from hetero.devices.model.reader import read_model
from hetero.measure.sample_inputs import sample_inputs

Inputs = Mapping[str, Any]
#: Makes a direct call from a model, its inputs and a number of threads.
Make = Callable[[onnx.ModelProto, Inputs, int], Submit]


def _openvino(model: onnx.ModelProto, inputs: Inputs, threads: int, device: str = "CPU") -> Submit:
    import openvino

    core = openvino.Core()
    source = core.read_model(io.BytesIO(model.SerializeToString()))
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"})
    compiled = core.compile_model(source, device)
    infer = compiled.create_infer_request().infer
    return at_once(lambda: infer(dict(inputs), share_inputs=True, share_outputs=True))


def _onnxruntime(model: onnx.ModelProto, inputs: Inputs, threads: int) -> Submit:
    return at_once(partial(bare_session(model, threads).run, None, dict(inputs)))


#: Direct call -> the package that it needs, the function that makes it, and our device.
PAIRS: Final[dict[str, tuple[str, Make, str]]] = {
    "onnxruntime": ("onnxruntime", _onnxruntime, "ORT"),
    "openvino": ("openvino", _openvino, "OV"),
    "openvino HETERO:CPU": ("openvino", partial(_openvino, device="HETERO:CPU"), "HETERO:OV"),
}
#: Two devices that share the cores.
SHARING: Final = "HETERO:OV,ORT"


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure each pair on each model."""
    with hetero.Core(executor="inprocess") as core:
        for name in names(options.models):
            model = NETWORKS[name]() if name in NETWORKS else onnx.load(light_model_path(name))
            read = read_model(model)
            inputs = sample_inputs(read) if name in NETWORKS else light_model_inputs(read)
            for bare, (package, make, device) in PAIRS.items():
                if importlib.util.find_spec(package) is None:
                    sys.stderr.write(f"{name}, {bare}: not measured, {package} is not installed\n")
                    continue
                config = {"INFERENCE_NUM_THREADS": options.threads}
                bare_way = make(model, inputs, options.threads)
                with core.compile_model(read, device, config) as compiled:
                    ways = {bare: bare_way, device: call(compiled, inputs)}
                    timings = by_turns(ways, 1, options.seconds, options.rounds)
                for way, timing in timings.items():
                    yield _row(name, way, timing, timings[bare].p50_ms / timing.p50_ms)
        if {"OV", "ORT"} <= {name.partition(".")[0] for name in core.available_devices}:
            yield from _compare_sharing(core, options)


def _compare_sharing(core: hetero.Core, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure models split over two vendors' devices, with a thread budget and with all threads."""
    for name in names(options.shared):
        model = core.read_model(f"light:{name}")
        inputs = light_model_inputs(model)
        half = model.node_names[len(model.node_names) // 2 :]
        compiled_models = [
            core.compile_model(model, SHARING, config, affinity=dict.fromkeys(half, "ORT"))
            for config in ({"INFERENCE_NUM_THREADS": options.threads}, {})
        ]
        ways = {
            f"{SHARING}, {what}": call(compiled, inputs)
            for what, compiled in zip(("all threads", "shares"), compiled_models, strict=True)
        }
        timings = by_turns(ways, 4, options.seconds, options.rounds)
        every = next(iter(timings.values()))
        for way, timing in timings.items():
            yield _row(name, way, timing, timing.rate / every.rate)
        for compiled in compiled_models:
            compiled.close()


def _row(model: str, way: str, timing: Timing, ratio: float) -> dict[str, Any]:
    return {
        "model": model,
        "way": way,
        "p50_ms": round(timing.p50_ms, 3),
        "requests_per_s": round(timing.rate, 2),
        "ratio": round(ratio, 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="resnet50,squeezenet,bert")
    parser.add_argument("--shared", default="resnet50", help="models to split over two devices")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--threads", type=int, default=cores, help="threads of each variant; default: all cores"
    )
    parser.add_argument("--seconds", type=float, default=2.5, help="per variant and model")
    parser.add_argument("--rounds", type=int, default=20, help="number of turns")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    print_rows(list(run(options)), options.json)


if __name__ == "__main__":
    main()
