"""Benchmark: the CPU device of another checkout against this one's, two processes by turns.

``python -m benchmarks.paired CHECKOUT [--models a,b] [--suite N] [--turns N] [--seconds S]
[--json]``: processor time of a run, one thread, the models of `kernels` or the N cases of ONNX's
suite that take longest. A turn's figure is the best of its runs; a row's ratio, this checkout's
time over the other's, that of the best turns, and the median of the turns' own.
"""

from __future__ import annotations

import argparse
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a side has another checkout's benchmarks
    from benchmarks.processes import Child

#: Runs before the first that counts: they fill the caches of numpy and of the processor.
_WARM_RUNS = 3


def work() -> None:
    """Serve one side: read a case's file and seconds, print the least seconds that a run took."""
    from hetero.devices.cpu.plugin import CPUPlugin
    from hetero.devices.model.reader import read_model

    path, run = "", None
    for line in sys.stdin:
        wanted, seconds = line.rsplit(maxsplit=1)
        if wanted != path:
            path = wanted
            model, inputs = pickle.loads(Path(path).read_bytes())
            run = CPUPlugin().compile_model(read_model(model), {"INFERENCE_NUM_THREADS": 1}).run
            for _ in range(_WARM_RUNS):
                run(inputs)
        assert run is not None
        end_s, least = time.process_time() + float(seconds), float("inf")
        while time.process_time() < end_s:
            least = min(least, _seconds(run, inputs))
        print(least, flush=True)


def _seconds(run: Callable[[list[Any]], Any], inputs: list[Any]) -> float:
    begin_s = time.process_time()
    run(inputs)
    return time.process_time() - begin_s


def side(checkout: Path) -> Child:
    """Start a process that serves with a checkout's code."""
    from benchmarks.processes import Child

    environment = os.environ | {"PYTHONPATH": str(checkout), "OPENBLAS_NUM_THREADS": "1"}
    return Child("-P", __file__, "--serve", env=environment, cwd=checkout)


def cases(models: Sequence[str], slowest: int) -> Iterator[tuple[str, bytes, list[Any]]]:
    """Yield names, models and inputs."""
    from benchmarks.kernels import inputs_of, load
    from hetero.devices.cpu.plugin import CPUPlugin
    from hetero.devices.model.reader import read_model

    for name in models:
        proto = load(name)
        yield name, proto.SerializeToString(), list(inputs_of(read_model(proto)).values())
    if not slowest:
        return
    from hetero.devices.conformance.onnx_suite import backend_cases, outcome

    took: dict[float, tuple[str, bytes, list[Any]]] = {}
    for case in backend_cases():
        if case.kind == "real" or outcome(CPUPlugin(), case, {}) != "passed":
            continue
        proto = case.model()
        inputs = case.data_sets(proto)[0][0]
        compiled = CPUPlugin().compile_model(read_model(proto))
        if len(inputs) == len(compiled.inputs):  # some cases give data for the initializers too
            seconds = [_seconds(compiled.run, inputs) for _ in range(_WARM_RUNS)]
            took[seconds[-1]] = case.name, proto.SerializeToString(), inputs
        compiled.close()
    yield from (took[seconds] for seconds in sorted(took)[-slowest:])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    from benchmarks.kernels import geometric_mean, model_names
    from benchmarks.tables import names, print_rows

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="folder of the other checkout")
    parser.add_argument("--models", default=",".join(model_names()))
    parser.add_argument("--suite", type=int, default=0, help="cases of ONNX's suite")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.3, help="of one turn of one side")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    here = Path(__file__).parents[1]
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        side(options.checkout.resolve()) as other,
        side(here) as this,
    ):
        path = Path(folder, "case")
        for number, (name, *case) in enumerate(cases(names(options.models), options.suite)):
            path = Path(folder, f"{number}.pickle")
            path.write_bytes(pickle.dumps(case))
            turns = [
                [float(process.ask(f"{path} {options.seconds}")) for process in (other, this)]
                for _ in range(options.turns)
            ]
            path.unlink()
            before, after = (min(turn[i] for turn in turns) for i in range(2))
            rows.append(
                {
                    "model": name,
                    "other_ms": before * 1e3,
                    "this_ms": after * 1e3,
                    "ratio": after / before,
                    "median_ratio": statistics.median(b / a for a, b in turns),
                }
            )
            print(name, f"{rows[-1]['ratio']:.3f}", file=sys.stderr, flush=True)
    mean = geometric_mean([row["ratio"] for row in rows])
    print_rows(rows, options.json, geometric_mean=mean)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        work()
    else:
        main()
