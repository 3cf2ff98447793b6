"""Replicas that follow the load: requests per second grow to ten times as many, and shrink again.

``python -m benchmarks.autoscaling [--executor ray] [--svg FILE] [--json]`` takes a minute. A NULL
device takes 100 ms per request, so one replica can serve 10 requests per second. The model has one
to four replicas. Requests arrive at a fixed rate, whether or not earlier ones have ended. A lost
request is one without a result.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

import hetero
from benchmarks.null_models import chain

#: Seconds, and requests per second, of each phase.
PHASES: Final = ((8.0, 3.0), (16.0, 30.0), (30.0, 3.0))
#: Most replicas, and microseconds that a device takes per request.
MAX_REPLICAS: Final = 4
NODE_TIME_US: Final = 100_000
#: Seconds to wait for the results of the last requests.
_END_S: Final = 60.0
#: Size of the plot and of its margins in pixels.
_WIDTH, _HEIGHT, _LEFT, _TOP = 720, 220, 50, 24
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#5d6878}.load{stroke:#d9690d}.replicas{stroke:#2f6fde}"
    "path{fill:none;stroke-width:2}line{stroke:#a3adba;stroke-opacity:.5}"
    "text.load{fill:#d9690d;stroke:none}text.replicas{fill:#2f6fde;stroke:none}"
    "@media(prefers-color-scheme:dark){text{fill:#aab4c2}}"
)


@dataclass(frozen=True)
class Outcome:
    """Requests of a run, their latencies, and the number of replicas over time."""

    requests: int
    lost: int
    p50_ms: float
    p99_ms: float
    #: (seconds since the start, number of replicas) after each change.
    replicas: list[tuple[float, int]]


def measure(
    executor: Any, phases: Sequence[tuple[float, float]] = PHASES, node_time_us: int = NODE_TIME_US
) -> Outcome:
    """Send requests in phases of (seconds, requests per second)."""
    config = {"REPLICAS": f"1..{MAX_REPLICAS}", "NULL_NODE_TIME_US": node_time_us, "VERIFY": "NO"}
    device = "HETERO:" + ",".join(f"NULL.{i}" for i in range(MAX_REPLICAS))
    latencies_s: list[float] = []
    requests = []
    with hetero.Core(executor, devices={"NULL": MAX_REPLICAS}) as core:
        compiled = core.compile_model(chain(1, 4), device, config)
        x = {"x": np.zeros(1, np.float32)}
        start_s = phase_s = time.monotonic()
        for seconds, rate_per_s in phases:
            for number in range(round(seconds * rate_per_s)):
                time.sleep(max(0.0, phase_s + number / rate_per_s - time.monotonic()))
                request = compiled.create_infer_request()
                request.set_callback(partial(_append_latency, latencies_s, time.monotonic()))
                request.start_async(x)
                requests.append(request)
            phase_s += seconds
        results = sum(_has_result(request) for request in requests)
        scaler = compiled.target.autoscaler
        assert scaler is not None
        replicas = [(max(0.0, at_s - start_s), count) for at_s, count in scaler.history]
        p50_s, p99_s = np.percentile(latencies_s, (50, 99))
    return Outcome(len(requests), len(requests) - results, p50_s * 1e3, p99_s * 1e3, replicas)


def _append_latency(latencies_s: list[float], sent_s: float, _: object) -> None:
    latencies_s.append(time.monotonic() - sent_s)


def _has_result(request: hetero.InferRequest) -> bool:
    try:
        return request.wait_for(int(_END_S * 1e3)) and len(request.results) == 1
    except hetero.HeteroError:
        return False


def draw(outcome: Outcome, phases: Sequence[tuple[float, float]] = PHASES) -> str:
    """Return an SVG of the load and the number of replicas over time."""
    total_s = sum(seconds for seconds, _ in phases)
    top_rate = max(rate for _, rate in phases)
    load, at_s = [], 0.0
    for seconds, rate in phases:
        load.append((at_s, rate / top_rate * MAX_REPLICAS))
        at_s += seconds
    scale = range(MAX_REPLICAS + 1)
    body = [
        f"<line x1='{_LEFT}' x2='{_LEFT + _WIDTH}' y1='{_y(n):.1f}' y2='{_y(n):.1f}'/>"
        f"<text class='replicas' x='{_LEFT - 10}' y='{_y(n) + 4:.1f}' text-anchor='end'>{n}</text>"
        f"<text class='load' x='{_LEFT + _WIDTH + 10}' y='{_y(n) + 4:.1f}'>"
        f"{top_rate * n / MAX_REPLICAS:g}</text>"
        for n in scale
    ]
    body += [
        f"<text x='{_x(s, total_s):.1f}' y='{_TOP + _HEIGHT + 20}' text-anchor='middle'>{s}</text>"
        for s in range(0, int(total_s) + 1, 10)
    ]
    steps = (("load", load), ("replicas", outcome.replicas))
    body += [f"<path class='{name}' d='{_steps(points, total_s)}'/>" for name, points in steps]
    width, height = _LEFT + _WIDTH + 50, _TOP + _HEIGHT + 44
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img'>"
        f"<title>Replicas and requests per second over time</title><style>{_STYLE}</style>"
        f"<text class='replicas' x='8' y='14'>replicas</text>"
        f"<text class='load' x='{width - 8}' y='14' text-anchor='end'>requests per second</text>"
        f"{''.join(body)}<text x='{width / 2}' y='{height - 6}' text-anchor='middle'>seconds</text>"
        "</svg>\n"
    )


def _x(seconds: float, total_s: float) -> float:
    return _LEFT + seconds / total_s * _WIDTH


def _y(value: float) -> float:
    return _TOP + _HEIGHT * (1 - value / MAX_REPLICAS)


def _steps(points: Sequence[tuple[float, float | int]], total_s: float) -> str:
    first = points[0]
    path = [f"M{_x(first[0], total_s):.1f},{_y(first[1]):.1f}"]
    path += [f"H{_x(s, total_s):.1f}V{_y(value):.1f}" for s, value in points[1:] if s <= total_s]
    return "".join(path) + f"H{_x(total_s, total_s):.1f}"


def main() -> None:
    """Measure, print the outcome and write the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executor", choices=["inprocess", "ray"], default="inprocess")
    parser.add_argument("--svg", type=Path, help="write a plot of load and replicas")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    outcome = measure(arguments.executor)
    if arguments.svg:
        arguments.svg.write_text(draw(outcome))
    if arguments.json:
        print(json.dumps(asdict(outcome)))
        return
    print(
        f"{outcome.requests} requests, {outcome.lost} lost; latency p50 {outcome.p50_ms:.0f} ms, "
        f"p99 {outcome.p99_ms:.0f} ms"
    )
    for at_s, count in outcome.replicas:
        print(f"{at_s:6.1f} s: {count} replicas")


if __name__ == "__main__":
    main()
