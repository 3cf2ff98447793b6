"""CPU device of this checkout against another checkout's, in two processes that alternate.

``python -m benchmarks.paired CHECKOUT [--models a,b] [--suite N] [--turns N] [--seconds S]
[--json]`` measures the processor time of a run on one thread, for the models of `kernels` or the N
slowest cases of ONNX's test suite. A turn counts its best run. A row has the ratio of this
checkout's time to the other's for the best turns, and the median ratio over the turns.
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

if TYPE_CHECKING:  # at run time, each process imports its own checkout's modules
    from benchmarks.processes import Child

#: Warm-up runs, which fill the caches of numpy and of the processor.
_WARM_RUNS = 3


def work() -> None:
    """Serve one checkout: read a case's file and a time limit, print the time of the best run."""
    from hetero.devices.cpu.plugin import CPUPlugin
    from hetero.devices.model.reader import read_model

    path, run = "", None
    for line in sys.stdin:
        case_file, seconds = line.rsplit(maxsplit=1)
        if case_file != path:
            path = case_file
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
    """Start a process that runs a checkout's code."""
    from benchmarks.processes import Child

    environment = os.environ | {"PYTHONPATH": str(checkout), "OPENBLAS_NUM_THREADS": "1"}
    return Child("-P", __file__, "--serve", env=environment, cwd=checkout)


def cases(models: Sequence[str], slowest: int) -> Iterator[tuple[str, bytes, list[Any]]]:
    """Yield the name, model and inputs of each case."""
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
        if len(inputs) == len(compiled.inputs):  # some cases have data for initializers too
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
    parser.add_argument(
        "--suite", type=int, default=0, help="number of slowest cases of ONNX's test suite"
    )
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.3, help="duration of a turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    own_checkout = Path(__file__).parents[1]
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        side(options.checkout.resolve()) as other,
        side(own_checkout) as this,
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
