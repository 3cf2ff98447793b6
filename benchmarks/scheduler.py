"""Overhead of the scheduler: chains of NULL stages against baselines written by hand.

The devices compute nothing, so only admission, transport and delivery are measured, through the
public API. All variants alternate, in process and on the same Ray cluster; ratios are relative to
the first peer. A short run: ``--stages 3 --sizes 1k,1M --windows 1,8 --peers zmq --executors
inprocess``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

import hetero
from benchmarks.null_models import call, compile_chain, submit_to
from benchmarks.peers import ON_RAY, PEERS, missing
from benchmarks.tables import names, numbers, print_rows
from benchmarks.timing import Submit, by_turns

EXECUTORS = ("inprocess", "ray")


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure each chain, size and window on each requested executor and peer."""
    stages, windows = numbers(options.stages), numbers(options.windows)
    peers = [peer for peer in names(options.peers) if not missing(peer)]
    executors = names(options.executors)
    with ExitStack() as stack:
        on_ray = any(peer in ON_RAY for peer in peers)
        cores = {
            kind: stack.enter_context(hetero.Core(kind, devices={"NULL": max(stages)}))
            for kind in EXECUTORS
            if kind in executors or (kind == "ray" and on_ray)
        }
        if "ray" in cores:
            cores["ray"].resolve_devices("NULL.0")  # starts the Ray cluster that the peers use
        limits = {"MAX_REQUESTS_IN_FLIGHT": max(windows), "MAX_BYTES_IN_FLIGHT": 2**34}
        for count in stages:
            for nbytes in numbers(options.sizes):
                x = np.ones(nbytes // 4, np.float32)
                with ExitStack() as ways:
                    submits: dict[str, Submit] = {}
                    for peer in peers:
                        submits[peer] = ways.enter_context(PEERS[peer](count, x))
                    compiled = {
                        kind: ways.enter_context(compile_chain(core, count, nbytes, config=limits))
                        for kind, core in cores.items()
                        if kind in executors
                    }
                    for window in windows:
                        ask = call if window == 1 else submit_to
                        submits |= {kind: ask(model, x) for kind, model in compiled.items()}
                        for row in _rows(submits, window, options.seconds):
                            yield {"stages": count, "nbytes": nbytes, **row}


def _rows(submits: dict[str, Submit], window: int, seconds: float) -> Iterator[dict[str, Any]]:
    timings = by_turns(submits, window, seconds)
    first = next(iter(timings.values()))
    for name, timing in timings.items():
        yield {
            "window": window,
            "way": name,
            "p50_ms": round(timing.p50_ms, 4),
            "requests_per_s": round(timing.rate, 1),
            "p50_ratio": round(timing.p50_ms / first.p50_ms, 3),
            "rate_ratio": round(timing.rate / first.rate, 3),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", default="1,3,8", help="lengths of chains")
    parser.add_argument("--sizes", default="1k,128k,1M,10M", help="bytes of a tensor")
    parser.add_argument("--windows", default="1,8,64", help="requests in flight")
    parser.add_argument("--executors", default=",".join(EXECUTORS), help="executors of hetero")
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="peers; ratios are relative to the first"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="per variant and case")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    unknown = {*names(options.executors)} - {*EXECUTORS} | {*names(options.peers)} - {*PEERS}
    if unknown:
        parser.error(f"no such executor or peer: {', '.join(sorted(unknown))}")
    notes = {peer: reason for peer in names(options.peers) if (reason := missing(peer))}
    print_rows(list(run(options)), options.json, **notes)


if __name__ == "__main__":
    main()
