"""Blobs and the cache: time to the first result when compiling, importing, and with a cache hit.

``python -m benchmarks.cache [--json]``. Each case runs in a new process whose devices are started,
from the call to the first result. Also measured: opening and verifying a blob of 200 MB, and the
memory of two processes that share one blob. Models: light:densenet121, and a transformer of 200 MB.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import hetero
from benchmarks.networks import bert
from benchmarks.processes import Child, in_fresh
from benchmarks.tables import print_rows
from hetero.devices.model.light_models import light_model_path
from hetero.devices.model.reader import read_model
from hetero.scheduler.formats.blob_file import BlobFile

DEVICES = "HETERO:ORT,CPU"
#: The models placed by priority, and split into many subgraphs by pins.
PINS: dict[str, dict[str, str]] = {
    "densenet121": {},
    "transformer": {},
    "densenet121, cut": {"op:Concat": "CPU"},
    "transformer, cut": {"op:Softmax": "CPU"},
}
REPEATS = 5


def answer(compiled: hetero.CompiledModel) -> None:
    """Run once on inputs of ones."""
    inputs = {
        port.name: np.ones([d if isinstance(d, int) else 1 for d in port.shape], port.dtype)
        for port in compiled.inputs
    }
    compiled(inputs)


def measure(kind: str, name: str, model: str, blob: str, cache: str) -> dict[str, float]:
    """Load a model; return the seconds until it is loaded and until its first result."""
    with hetero.Core(executor="inprocess") as core:
        _ = core.available_devices
        began = time.perf_counter()
        if kind == "import":
            compiled = core.import_model(blob)
        else:
            folder = {"CACHE_DIR": cache} if kind == "cached" else {}
            compiled = core.compile_model(model, DEVICES, folder, affinity=PINS[name])
        loaded = time.perf_counter()
        answer(compiled)
        first = time.perf_counter()
        if kind == "cached" and not compiled.get_property("LOADED_FROM_CACHE"):
            raise RuntimeError("the cache had nothing")
    return {"load_s": loaded - began, "first_answer_s": first - began}


def hold(blob: str) -> None:
    """Import a blob if there is one, run it, print a line, and wait until stdin closes."""
    with hetero.Core(executor="inprocess") as core:
        _ = core.available_devices
        if blob:
            compiled = core.import_model(blob)
            answer(compiled)
        print("ready", flush=True)
        sys.stdin.readline()


def resident_nbytes(blob: str, count: int = 2) -> dict[str, int]:
    """Return the total proportional set size, by kind, of `count` processes that share a blob."""
    total = {"Pss_File:": 0, "Pss_Anon:": 0}
    with ExitStack() as stack:
        command = ("-m", "benchmarks.cache", "--hold", blob)
        children = [stack.enter_context(Child(*command)) for _ in range(count)]
        for process in children:
            process.read()  # wait until the process is ready
        for process in children:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            for line in rollup.splitlines():
                kind, *value = line.split()
                if kind in total:
                    total[kind] += int(value[0]) * 1024
    return total


def open_and_verify(path: Path) -> dict[str, float]:
    """Open a blob and check every checksum; the fastest of five."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        BlobFile(path).verify()
        times.append(time.perf_counter() - began)
    tracemalloc.start()
    BlobFile(path).verify()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"open_and_verify_s": min(times), "open_and_verify_nbytes": peak}


def row(name: str, model: str, folder: Path, repeats: int) -> dict[str, Any]:
    """Measure one model."""
    blob, cache = str(folder / f"{name}.hetero"), str(folder / f"{name}.cache")
    config = {"CACHE_DIR": cache}
    source = read_model(model)
    with (
        hetero.Core(executor="inprocess") as core,
        core.compile_model(source, DEVICES, config, affinity=PINS[name]) as compiled,
    ):
        compiled.export_model(blob)
        subgraphs = len(compiled.subgraphs)
    # The cases alternate, so that other work on the machine affects all of them alike.
    runs = [
        {kind: in_fresh(measure, kind, name, model, blob, cache) for kind in KINDS}
        for _ in range(repeats)
    ]
    result: dict[str, Any] = {"model": name, "weight_nbytes": source.weight_nbytes}
    result |= {"subgraphs": subgraphs, "blob_nbytes": Path(blob).stat().st_size}
    for kind in KINDS:
        for what in ("load_s", "first_answer_s"):
            result[f"{kind}_{what}"] = statistics.median(run[kind][what] for run in runs)
    for kind in ("import", "cached"):
        result[f"{kind}_speedup"] = (
            result["compile_first_answer_s"] / result[f"{kind}_first_answer_s"]
        )
    # Two processes with the blob, minus two processes without it.
    idle, busy = resident_nbytes(""), resident_nbytes(blob)
    result["mapped_nbytes"] = busy["Pss_File:"] - idle["Pss_File:"]
    result["private_nbytes"] = busy["Pss_Anon:"] - idle["Pss_Anon:"]
    return result | open_and_verify(Path(blob))


KINDS = ("compile", "import", "cached")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; with hidden options, run as one of the measured processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.hold is not None:
        hold(options.hold)
        return
    with tempfile.TemporaryDirectory(prefix="hetero-bench-") as folder:
        path = Path(folder) / "transformer.onnx"
        path.write_bytes(bert(layers=7, width=768, length=64).SerializeToString())
        light = str(light_model_path("light:densenet121"))
        rows = [
            row(name, light if "densenet" in name else str(path), Path(folder), options.repeats)
            for name in PINS
        ]
    print_rows(rows, options.json)


if __name__ == "__main__":
    main()
