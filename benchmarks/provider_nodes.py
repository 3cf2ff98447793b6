"""Nodes on a plug-in execution provider: ONNX Runtime alone, and hetero, in one table.

`onnxruntime` counts the nodes that ONNX Runtime assigns to the provider in one session of the
whole model, and `onnxruntime_total` all of its nodes: it decomposes operators that the provider
lacks. `hetero` counts the model's nodes on the device, in `subgraphs` subgraphs; `error` is the
largest difference to ONNX Runtime's CPU provider, relative to the largest value of the output.

ONNX Runtime runs in its own process, because a provider may end it: `onnxruntime` is then empty.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import onnx

import hetero
from benchmarks.published_models import corpus, trial
from benchmarks.small_networks import SMALL_NETWORKS
from benchmarks.tables import names, print_rows
from hetero.devices.model.light_models import (
    PREFIX,
    light_model_inputs,
    light_model_names,
    light_model_path,
)
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.measure.sample_inputs import sample_inputs

#: Counts the nodes of the model on stdin; arguments: the wheel's package, options as JSON.
_COUNT: Final = """
import importlib, json, os, sys
import onnxruntime
output = os.dup(1)
os.dup2(2, 1)  # libraries print to stdout
package = importlib.import_module(sys.argv[1])
path = getattr(package, "get_library_path", None) or package.library_path
provider = getattr(package, "EP_NAME", "") or package.get_ep_name()
onnxruntime.register_execution_provider_library(provider, path())
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
options.add_provider_for_devices(devices[:1], json.loads(sys.argv[2]))
session = onnxruntime.InferenceSession(sys.stdin.buffer.read(), options)
groups = session.get_provider_graph_assignment_info()
counts = [(group.ep_name == provider, len(group.get_nodes())) for group in groups]
text = json.dumps([sum(n for own, n in counts if own), sum(n for _, n in counts)])
os.write(output, text.encode())
os._exit(0)  # some libraries crash in their destructors
"""
_TIMEOUT_S: Final = 300
#: Device -> options with which ONNX Runtime gets most nodes on it.
_BEST_OPTIONS: Final = {"ORT_GGML": {"partial": "1"}, "ORT_QNN": {"backend_type": "htp"}}


def mlp_with_mish(num_blocks: int = 6) -> onnx.ModelProto:
    """Return a perceptron of six nodes per block; ggml supports all of them except Mish."""
    text, value = "", "x"
    for i in range(num_blocks):
        text += f"""
            n{i} = LayerNormalization <axis = -1> ({value}, scale, zero)
            m{i} = MatMul(n{i}, wide)
            a{i} = Add(m{i}, bias)
            s{i} = Mish(a{i})
            p{i} = MatMul(s{i}, narrow)
            x{i} = Add(p{i}, {value})"""
        value = f"x{i}"
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> mlp (float[4,64] x) => (float[4,64] {value})'
        f"{{{text}}}"
    )
    random = np.random.default_rng(0)
    weights = {
        "scale": np.ones(64),
        "zero": np.zeros(64),
        "wide": random.normal(size=(64, 256)) / 8,
        "bias": random.normal(size=256) / 8,
        "narrow": random.normal(size=(256, 64)) / 16,
    }
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(array), name))
    return model


def count_by_onnxruntime(
    package: str, model: onnx.ModelProto, options: Mapping[str, str]
) -> tuple[int, int] | None:
    """Return the nodes that ONNX Runtime gives a provider, and all nodes; None if it crashes."""
    process = subprocess.run(
        [sys.executable, "-c", _COUNT, package, json.dumps(options)],
        input=model.SerializeToString(),
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if process.returncode:
        sys.stderr.write(process.stderr.decode(errors="replace")[-500:])
        return None
    own, total = json.loads(process.stdout)
    return own, total


def _models() -> dict[str, Callable[[], onnx.ModelProto]]:
    light = {
        name: lambda name=name: onnx.load(light_model_path(PREFIX + name))
        for name in light_model_names()
    }
    return {"mlp_with_mish": mlp_with_mish, **light, **SMALL_NETWORKS}


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Count the nodes of each model, and compare results."""
    models = _models() | {
        path: partial(onnx.load, path) for path in names(options.models) if path.endswith(".onnx")
    }
    device = options.device
    with hetero.Core(executor="inprocess") as core:
        (row,) = [row for row in core.device_descriptors if row.plugin == device]
        if row.error:
            raise SystemExit(f"{device}: {row.error}")
        for name in names(options.models) or models:
            proto = models[name]()
            model = read_model(proto)
            inputs = _inputs(name, model)
            alone = count_by_onnxruntime(options.package, proto, _BEST_OPTIONS.get(device, {}))
            with core.compile_model(model, f"HETERO:{device},ORT,CPU") as compiled:
                results = compiled(dict(inputs)).to_tuple()
                subgraphs = compiled.subgraphs
            with core.compile_model(model, "ORT") as reference:
                expected = reference(dict(inputs)).to_tuple()
            yield {
                "model": name,
                "onnxruntime": alone and alone[0],
                "onnxruntime_total": alone and alone[1],
                "hetero": sum(len(s.node_names) for s in subgraphs if s.device == device),
                "total": len(model.nodes),
                "subgraphs": len(subgraphs),
                "error": max(map(_relative_error, results, expected)),
            }


def _inputs(name: str, model: Model) -> Mapping[str, np.ndarray]:
    """Return inputs of a light model, a published model (a path), or another one."""
    if name in light_model_names():
        return light_model_inputs(model)
    if not name.endswith(".onnx"):
        return sample_inputs(model)
    reference = trial.reference(name)
    if isinstance(reference, str):
        raise SystemExit(f"ONNX Runtime does not run it: {reference}")
    return reference[0]


def run_published(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Count the nodes of each published model in a process of its own, which may crash."""
    for package in corpus.package_names():
        try:
            paths = list(corpus.models(package))
        except (OSError, subprocess.TimeoutExpired) as error:
            sys.stderr.write(f"unavailable: {package}: {error}\n")
            continue
        for path in paths:
            command = [sys.executable, "-m", "benchmarks.provider_nodes", "--json"]
            command += ["--device", options.device, "--package", options.package]
            try:
                process = subprocess.run(
                    [*command, "--models", str(path)],
                    capture_output=True,
                    text=True,
                    timeout=_TIMEOUT_S,
                    check=True,
                )
                (row,) = json.loads(process.stdout.splitlines()[-1])["rows"]
            except subprocess.TimeoutExpired:
                row = {"failure": f"more than {_TIMEOUT_S} s"}
            except subprocess.CalledProcessError as error:
                last_line = (error.stderr.strip().splitlines() or [""])[-1]
                row = {"failure": f"exit status {error.returncode}: {last_line[:200]}"}
            row |= {"model": f"{package}/{path.name}"}
            sys.stderr.write(f"{row}\n")
            yield row


def _relative_error(result: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference relative to the largest value; NaN equals NaN."""
    result, expected = result.astype(np.float64), expected.astype(np.float64)
    is_nan = np.isnan(expected) & np.isnan(result)
    difference = np.abs(result - expected)[~is_nan].max(initial=0.0)
    return float(difference / max(np.abs(expected[~is_nan]).max(initial=0.0), 1e-30))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="ORT_GGML", help="the provider's device")
    parser.add_argument("--package", default="onnxruntime_ggml", help="the wheel's package")
    parser.add_argument("--models", default="", help="default: light models and small exports")
    parser.add_argument(
        "--published", action="store_true", help="the models of benchmarks.published_models"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    rows = list(run_published(options) if options.published else run(options))
    print_rows(rows, options.json)


if __name__ == "__main__":
    main()
