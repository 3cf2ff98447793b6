"""Device GPU against ONNX Runtime on all cores of the CPU, one request at a time.

``python -m benchmarks.gpu [--json] [--models a,b] [--plugin MODULE:CLASS]``. Times are medians in
milliseconds and include the copies of inputs and outputs. `first` is the first run, which compiles
kernels that CuPy's cache lacks; `error` is the largest difference to ONNX Runtime, relative to the
largest value of the output.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime

from benchmarks.kernels import inputs_of, load
from benchmarks.networks import NETWORKS
from benchmarks.tables import names, print_rows
from hetero.devices.model.light_models import light_model_names
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.plugin import Plugin

#: Runs before the measurement: the second one records a CUDA graph.
_WARM_RUNS: Final = 3
#: A measurement lasts for this number of runs, and at least for this time.
_RUNS, _SECONDS = 15, 0.3


def row(plugin: Plugin, name: str) -> dict[str, Any]:
    """Measure one model."""
    proto = load(name)
    model = read_model(proto)
    inputs = inputs_of(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # warnings about unused initializers fill pages
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, inputs)
    cpu_ms = _median_ms(partial(session.run, None, inputs))
    without_graphs = _measure(plugin, model, inputs, expected, has_graphs=False)
    with_graphs = _measure(plugin, model, inputs, expected, has_graphs=True)
    return {
        "model": name,
        "ONNX Runtime, CPU, ms": cpu_ms,
        "GPU, without graphs, ms": without_graphs["ms"],
        "GPU, ms": with_graphs["ms"],
        "times as fast": cpu_ms / with_graphs["ms"],
        "first, ms": without_graphs["first"],
        "error": max(without_graphs["error"], with_graphs["error"]),
    }


def _measure(
    plugin: Plugin,
    model: Model,
    inputs: Mapping[str, np.ndarray],
    expected: list[np.ndarray],
    has_graphs: bool,
) -> dict[str, float]:
    compiled = plugin.compile_model(model, {"CUDA_GRAPHS": has_graphs})
    start_s = time.perf_counter()
    compiled(inputs)
    first_s = time.perf_counter() - start_s
    for _ in range(_WARM_RUNS):
        outputs = compiled(inputs).to_tuple()
    errors = [
        float(np.abs(a.astype(np.float32) - b.astype(np.float32)).max() / np.abs(b).max())
        for a, b in zip(outputs, expected, strict=True)
    ]
    ms = _median_ms(lambda: compiled(inputs))
    compiled.close()
    return {"first": first_s * 1e3, "ms": ms, "error": max(errors)}


def _median_ms(run: Callable[[], Any]) -> float:
    """Return the median duration of a run."""
    durations_s: list[float] = []
    while len(durations_s) < _RUNS or sum(durations_s) < _SECONDS:
        start_s = time.perf_counter()
        run()
        durations_s.append(time.perf_counter() - start_s)
    return float(np.median(durations_s)) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=names, default=[*light_model_names(), *NETWORKS])
    parser.add_argument("--plugin", default="hetero.devices.gpu.plugin:GPUPlugin")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    module, _, attribute = options.plugin.partition(":")
    plugin = getattr(import_module(module), attribute)()
    print_rows(
        [row(plugin, name) for name in options.models],
        options.json,
        device=plugin.full_name(plugin.device_ids()[0]),
        versions=f"{plugin.fingerprint(plugin.device_ids()[0])}, numpy {np.__version__}, "
        f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}",
    )


if __name__ == "__main__":
    main()
