"""Scalability of the scheduler: many devices and stages, many requests in flight, long runs.

The NULL devices compute nothing. A `flat` row has the microseconds per stage of a request; a `soak`
row has the growth of the client and its devices after a very large number of requests.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import hetero
from benchmarks.null_models import compile_chain, submit_to
from benchmarks.processes import device_processes, held
from benchmarks.tables import names, numbers, print_rows
from benchmarks.timing import Timing, measure

X = np.ones(1, np.float32)
_MANY = {"MAX_REQUESTS_IN_FLIGHT": 2**16}


def flat_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure the cost of a stage for each chain length and number of requests in flight."""
    for kind in names(options.executors):
        with hetero.Core(kind, devices={"NULL": options.devices}) as core:
            for stages in numbers(options.stages):
                devices = min(stages, options.devices)
                with compile_chain(core, stages, devices=devices, config=_MANY) as compiled:
                    submit = submit_to(compiled, X)
                    for window in numbers(options.windows):
                        measure(submit, window, 0, Timing())
                        timing = Timing()
                        measure(submit, window, options.seconds, timing)
                        yield {
                            "executor": kind,
                            "devices": devices,
                            "stages": stages,
                            "window": window,
                            "requests": len(timing.latencies_s),
                            "us_per_request": round(1e6 / timing.rate, 1),
                            "us_per_stage": round(1e6 / timing.rate / stages, 2),
                        }


def soak_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run a very large number of requests, eight in flight, through three stages."""
    for kind in names(options.executors):
        with (
            hetero.Core(kind, devices={"NULL": 3}) as core,
            compile_chain(core, 3, 1000, config=_MANY) as compiled,
        ):
            submit = submit_to(compiled, np.ones(250, np.float32))
            _send(submit, options.requests // 10)
            pids = ["self", *map(str, device_processes())]
            before = held(pids)
            _send(submit, options.requests)
            after = held(pids)
            grown = {f"{name}_growth": after[name] - before[name] for name in before}
            yield {"executor": kind, "requests": options.requests, **grown}


def _send(submit: Any, requests: int) -> None:
    for start in range(0, requests, 8):
        for wait in [submit() for _ in range(min(8, requests - start))]:
            wait()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("flat", "soak"), nargs="?", default="flat")
    parser.add_argument("--devices", type=int, default=64, help="flat: NULL devices")
    parser.add_argument("--stages", default="10,50,200", help="flat: lengths of chains")
    parser.add_argument("--windows", default="1,10,100,1000", help="flat: requests in flight")
    parser.add_argument("--seconds", type=float, default=1.0, help="flat: per case")
    parser.add_argument("--requests", type=int, default=100_000, help="soak: number of requests")
    parser.add_argument(
        "--executors", default="inprocess", help="executors of hetero: inprocess,ray"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    rows = flat_rows(options) if options.part == "flat" else soak_rows(options)
    print_rows(list(rows), options.json)


if __name__ == "__main__":
    main()
