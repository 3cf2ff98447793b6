"""What blobs and the cache are worth: ``python -m benchmarks.cache [--json]``.

Compiling against importing, each in processes of its own that have started their devices, from the
call to the first answer; opening and verifying 200 MB; and how often the weights are in memory when
two processes run one blob. Models: light:densenet121, and a transformer of 200 MB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hetero
from benchmarks.networks import bert
from devices.model.light import light_model_path
from devices.model.reader import read_model
from scheduler.formats.blob_file import BlobFile

DEVICES = "HETERO:ORT,CPU"
#: The models as the devices' order has them, and cut into many subgraphs by pins.
PINS: dict[str, dict[str, str]] = {
    "densenet121": {},
    "transformer": {},
    "densenet121, cut": {"op:Concat": "CPU"},
    "transformer, cut": {"op:Softmax": "CPU"},
}
REPEATS = 5


def answer(core: hetero.Core, compiled: Any) -> None:
    """Run once, on ones."""
    inputs = {
        port.name: np.ones([d if isinstance(d, int) else 1 for d in port.shape], port.dtype)
        for port in compiled.inputs
    }
    compiled(inputs)


def measure(kind: str, name: str, model: str, blob: str, cache: str) -> dict[str, float]:
    """Load a model in one way; return seconds until it is there and until the first answer."""
    with hetero.Core(executor="inprocess") as core:
        _ = core.available_devices
        began = time.perf_counter()
        if kind == "import":
            compiled = core.import_model(blob)
        else:
            folder = {"CACHE_DIR": cache} if kind == "cached" else {}
            compiled = core.compile_model(model, DEVICES, folder, affinity=PINS[name])
        loaded = time.perf_counter()
        answer(core, compiled)
        first = time.perf_counter()
        if kind == "cached" and not compiled.get_property("LOADED_FROM_CACHE"):
            raise RuntimeError("the cache had nothing")
    return {"load_s": loaded - began, "first_answer_s": first - began}


def hold(blob: str) -> None:
    """Import a blob (or, without one, nothing), run it, say so, and wait to be told to end."""
    with hetero.Core(executor="inprocess") as core:
        _ = core.available_devices
        if blob:
            compiled = core.import_model(blob)
            answer(core, compiled)
        print("ready", flush=True)
        sys.stdin.readline()


def in_process(*arguments: str) -> dict[str, float]:
    """Call this module in a process of its own; return what it measured."""
    command = [sys.executable, "-m", "benchmarks.cache", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def resident_nbytes(blob: str, count: int = 2) -> dict[str, int]:
    """Return the proportional set size of `count` processes that hold a blob, together, by kind."""
    command = [sys.executable, "-m", "benchmarks.cache", "--hold", blob]
    held = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    total = {"Pss_File:": 0, "Pss_Anon:": 0}
    try:
        for process in held:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a process that holds a blob has ended")
        for process in held:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            for line in rollup.splitlines():
                kind, *value = line.split()
                if kind in total:
                    total[kind] += int(value[0]) * 1024
    finally:
        for process in held:
            process.communicate("\n")
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
    return {"seconds": min(times), "allocated_nbytes": peak}


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
    # In turn, so that other work on the machine troubles all alike.
    runs = [
        {kind: in_process("--measure", kind, name, model, blob, cache) for kind in KINDS}
        for _ in range(repeats)
    ]
    found: dict[str, Any] = {"model": name, "weight_nbytes": source.weight_nbytes}
    found |= {"subgraphs": subgraphs, "blob_nbytes": Path(blob).stat().st_size}
    for kind in KINDS:
        for what in ("load_s", "first_answer_s"):
            found[f"{kind}_{what}"] = statistics.median(run[kind][what] for run in runs)
    for kind in ("import", "cached"):
        found[f"{kind}_speedup"] = found["compile_first_answer_s"] / found[f"{kind}_first_answer_s"]
    # Two processes that run a blob, over two that run none.
    idle, busy = resident_nbytes(""), resident_nbytes(blob)
    found["mapped_nbytes"] = busy["Pss_File:"] - idle["Pss_File:"]
    found["private_nbytes"] = busy["Pss_Anon:"] - idle["Pss_Anon:"]
    found["open_and_verify"] = open_and_verify(Path(blob))
    return found


KINDS = ("compile", "import", "cached")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; with other options, be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return 0
    if options.hold is not None:
        hold(options.hold)
        return 0
    with tempfile.TemporaryDirectory(prefix="hetero-bench-") as folder:
        path = Path(folder) / "transformer.onnx"
        path.write_bytes(bert(layers=7, width=768, length=64).SerializeToString())
        light = str(light_model_path("light:densenet121"))
        rows = [
            row(name, light if "densenet" in name else str(path), Path(folder), options.repeats)
            for name in PINS
        ]
    if options.json:
        print(json.dumps({"rows": rows}, indent=2))
        return 0
    for found in rows:
        print(
            f"{found['model']}: {found['weight_nbytes'] / 1e6:.0f} MB of weights, "
            f"{found['subgraphs']} subgraphs, blob {found['blob_nbytes'] / 1e6:.0f} MB"
        )
        for kind in KINDS:
            load, first = found[f"{kind}_load_s"], found[f"{kind}_first_answer_s"]
            speed = f"  {found[f'{kind}_speedup']:.1f} times faster" if kind != "compile" else ""
            print(f"  {kind:8s} {load * 1e3:8.1f} ms, first answer {first * 1e3:8.1f} ms{speed}")
        opened = found["open_and_verify"]
        print(
            f"  opened and verified in {opened['seconds'] * 1e3:.1f} ms, "
            f"{opened['allocated_nbytes'] / 1e3:.0f} kB allocated; two processes hold "
            f"together {found['mapped_nbytes'] / 1e6:.0f} MB of files, "
            f"{found['private_nbytes'] / 1e6:.0f} MB of their own"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
