"""Predicted memory of device processes, compared with the memory that the kernel reports.

``python -m benchmarks.memory_prediction [--models NAMES] [--devices NAMES] [--json]``. Each model
runs whole, in two halves and in three thirds. A new process loads the part of one device and runs
it; its peak is the largest resident memory (VmHWM). The process without a model is measured in the
same process and replaces the runtime of the prediction. The summary reports the models to which the
prediction was fitted, and others that check it. `ratio` is the predicted peak divided by
the measured one; `model_ratio` leaves out the process without a model.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime

import hetero
from benchmarks import networks, small_networks
from benchmarks.processes import in_fresh
from benchmarks.tables import names, print_rows
from hetero.affinity.request_dependence import request_dependent_positions
from hetero.devices.model.light_models import light_model_names
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.program import RunContext
from hetero.devices.plugin.registry import find_plugin, load_plugins
from hetero.measure.sample_inputs import sample_inputs, sample_shapes
from hetero.partition.partition import Subgraph, partition
from hetero.planning.cost.estimation import with_input_shapes
from hetero.planning.memory.device_memory import MemoryModel
from hetero.planning.memory.predict_memory import predict_memory
from hetero.scheduler.processes.memory_use import resident_memory

#: Numbers of equal parts into which a model is split.
SPLITS: Final = (1, 2, 3)
DEVICES: Final = ("ORT", "OV", "CPU")
#: Runs of each part; the peak does not grow afterwards.
RUNS: Final = 3
#: The largest relative error that counts as a correct prediction.
TOLERANCE: Final = 0.1
#: Models to which the constants of the prediction were fitted.
FITTED: Final[Mapping[str, Callable[[], onnx.ModelProto | str]]] = {
    **{f"light:{name}": partial(str, f"light:{name}") for name in light_model_names()},
    "bert": networks.bert,
    "bert-12-layers": partial(networks.bert, layers=12, width=768),
    "bert-length-512": partial(networks.bert, layers=4, width=512, length=512),
    "vit": networks.vit,
    "vit-8-layers": partial(networks.vit, layers=8, width=768),
    "lstm": networks.lstm,
    "lstm-width-1024": partial(networks.lstm, width=1024),
    "gpt": partial(small_networks.gpt, layers=6, width=512, heads=8),
    "mobilenet": partial(small_networks.mobilenet, image=224),
    "unet": partial(small_networks.unet, image=256, width=16),
    "unet-width-64": partial(small_networks.unet, image=128, width=64),
    "bert-quantized": small_networks.bert_qdq,
    "mobilenet-quantized": small_networks.mobilenet_qdq,
}
#: Models that check the prediction; no constant was fitted to them.
CHECKS: Final[Mapping[str, Callable[[], onnx.ModelProto | str]]] = {
    "mobilenet-image-128": partial(small_networks.mobilenet, image=128),
    "mobilenet-float16": partial(small_networks.mobilenet, image=160, dtype=np.float16),
    "unet-width-32": partial(small_networks.unet, image=128, width=32),
    "unet-levels-2": partial(small_networks.unet, image=192, width=24, levels=2),
    "vit-image-384": partial(networks.vit, layers=3, width=256, image=384),
    "bert-width-768": partial(networks.bert, layers=2, width=768, length=256),
    "lstm-width-512": partial(networks.lstm, width=512, length=100),
    "lstm-small": small_networks.lstm,
    "gpt-width-384": partial(small_networks.gpt, layers=3, width=384, heads=6),
}
SOURCES: Final = {**FITTED, **CHECKS}


def compare(name: str, devices: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the predicted and the measured memory of the largest part of each split."""
    with hetero.Core("inprocess") as core:
        model = core.read_model(SOURCES[name]())
        traits = {d.plugin: d.memory_traits for d in core.device_descriptors}
    open_ids = (p.name for p in model.inputs if p.name == "ids" and not p.is_static)
    shapes = sample_shapes(model, dict.fromkeys(open_ids, (1, 64)))
    model = with_input_shapes(model, shapes)
    values = sample_inputs(model)
    for count in SPLITS:
        split = partition(model, _in_parts(model, count))
        captured = values | _crossing_values(model, split.subgraphs, values)
        for device in devices:
            memory = MemoryModel({f"part {i}": traits[device] for i in range(count)}, {})
            predictions = predict_memory(model, split.subgraphs, memory)
            part = max(predictions.values(), key=lambda p: p.peak_nbytes)
            stages = [s for s in split.subgraphs if s.device == part.device]
            row = {"model": name, "parts": count, "device": device}
            with tempfile.TemporaryDirectory(prefix="hetero-memory-") as folder:
                paths = [_save(s, captured, Path(folder)) for s in stages]
                try:
                    base, peak = in_fresh(measure, device, paths)
                except Exception as error:
                    yield row | {"refused": " ".join(str(error).split())[:120]}
                    continue
            own = part.peak_nbytes - traits[device].runtime_nbytes
            yield row | {
                "base_mb": round(base / 1e6, 1),
                "measured_mb": round(peak / 1e6, 1),
                "predicted_mb": round((base + own) / 1e6, 1),
                "ratio": (base + own) / peak,
                "model_ratio": own / (peak - base),
                "weights_mb": round(part.weights_nbytes / 1e6, 1),
                "values_mb": round(part.values_nbytes / 1e6, 1),
            }


def _in_parts(model: Model, count: int) -> dict[str, str]:
    """Return an affinity of equal numbers of consecutive nodes."""
    positions = request_dependent_positions(model)
    part_of = {p: i * count // len(positions) for i, p in enumerate(positions)}
    affinity: dict[str, str] = {}
    for p in reversed(range(len(model.nodes))):
        node = model.nodes[p]
        readers = [affinity[r.name] for r in model.readers(node)]
        own = f"part {part_of[p]}" if p in part_of else next(iter(readers), "part 0")
        affinity[node.name] = own
    return affinity


def _crossing_values(
    model: Model, subgraphs: Sequence[Subgraph], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values that cross between subgraphs, computed by a plain session."""
    crossing = sorted({v for s in subgraphs for v in s.inputs} - values.keys())
    if not crossing:
        return {}
    proto = model.to_proto()
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in crossing)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    used = {port.name for port in session.get_inputs()}
    results = session.run(crossing, {n: v for n, v in values.items() if n in used})
    return dict(zip(crossing, results, strict=True))


def _save(subgraph: Subgraph, values: Mapping[str, Any], folder: Path) -> Path:
    """Write a subgraph with its weights in a file to map, and its inputs; return the model."""
    path = folder / f"{subgraph.index}.onnx"
    networks.save_with_mapped_weights(subgraph.model.to_proto(), path)
    inputs = {f"input {i}": values[port.name] for i, port in enumerate(subgraph.model.inputs)}
    np.savez(path.with_suffix(".npz"), **inputs)
    return path


def measure(device: str, paths: Sequence[Path]) -> tuple[int, int]:
    """Load and run models on a device; return the resident memory before, and the peak."""
    plugin = find_plugin(load_plugins((), only=device), device)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    base, _ = resident_memory() or (0, 0)
    programs = []
    for path in paths:
        model = read_model(path)
        programs.append((plugin.compile_model(model, {"INFERENCE_NUM_THREADS": 1}), path))
    for program, path in programs:
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as file:
            inputs = [file[f"input {i}"] for i in range(len(program.inputs))]
        for _ in range(RUNS):
            program.run(inputs, RunContext())
    _, peak = resident_memory() or (0, 0)
    return base, peak


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the share of correct predictions and the worst ones, for both groups of models."""
    return {
        f"{group}, {name}": value
        for group, models in (("fitted models", FITTED), ("check models", CHECKS))
        for name, value in _group_summary([r for r in rows if r["model"] in models]).items()
    }


def _group_summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    measured = [row for row in rows if "ratio" in row]
    if not measured:
        return {}
    within = sum(abs(row["ratio"] - 1) <= TOLERANCE for row in measured)
    lowest, highest = (pick(measured, key=lambda row: float(row["ratio"])) for pick in (min, max))
    return {
        "cases": len(measured),
        "within 10 %": within / len(measured),
        "lowest ratio": f"{lowest['ratio']:.2f} ({lowest['model']}, {lowest['device']})",
        "highest ratio": f"{highest['ratio']:.2f} ({highest['model']}, {highest['device']})",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=names, default=list(SOURCES), help="default: all")
    parser.add_argument("--devices", type=names, default=DEVICES)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    rows = [row for name in options.models for row in compare(name, options.devices)]
    print_rows(rows, options.json, **summary(rows))


if __name__ == "__main__":
    main()
