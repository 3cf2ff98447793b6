"""Overhead on a single device: ORT against a plain onnxruntime session.

`extra_us` is the additional time of a request (medians, one at a time). `share` is the rate
relative to the session, one at a time and with the model's optimal number of requests in flight.
Calls of the session and of hetero alternate, both with all cores.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import hetero
from benchmarks.null_models import call, submit_to
from benchmarks.sessions import TINY, bare_session, light_inputs, source
from benchmarks.tables import names, print_rows
from benchmarks.timing import Submit, at_once, by_turns


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure each model on each executor."""
    with ExitStack() as stack:
        cores = {
            kind: stack.enter_context(hetero.Core(kind, devices={"ORT": 1}))
            for kind in names(options.executors)
        }
        for name in names(options.models):
            inputs = light_inputs(name)
            session = bare_session(source(name), len(os.sched_getaffinity(0)))
            bare = at_once(partial(session.run, None, inputs))
            for kind, core in cores.items():
                with core.compile_model(source(name), "ORT") as compiled:
                    optimal_jobs = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
                    for window in (1,) if name in TINY else (1, optimal_jobs):
                        ours = (call if window == 1 else submit_to)(compiled, inputs)
                        yield _row(name, kind, window, bare, ours, options)


def _row(
    name: str, kind: str, window: int, bare: Submit, ours: Submit, options: argparse.Namespace
) -> dict[str, Any]:
    timings = by_turns({"bare": bare, "ours": ours}, window, options.seconds, options.rounds)
    # The plain session runs within the call, so its time follows from its rate.
    bare_us = 1e6 / timings["bare"].rate if window > 1 else 1e3 * timings["bare"].p50_ms
    return {
        "model": name,
        "executor": kind,
        "window": window,
        "bare_us": round(bare_us, 1),
        "extra_us": round(1e3 * timings["ours"].p50_ms - bare_us, 1) if window == 1 else None,
        "share": round(timings["ours"].rate / timings["bare"].rate, 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join([*TINY, "squeezenet", "resnet50"]))
    parser.add_argument("--executors", default="inprocess,ray", help="executors of hetero")
    parser.add_argument("--seconds", type=float, default=3.0, help="per variant and case")
    parser.add_argument("--rounds", type=int, default=10, help="number of turns")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    print_rows(list(run(options)), options.json)


if __name__ == "__main__":
    main()
