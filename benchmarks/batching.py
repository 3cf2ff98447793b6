"""Dynamic batching: throughput of many callers with and without AUTO_BATCH_SIZE.

Variants alternate in the same run, each with all cores: a plain onnxruntime session that runs one
request at a time; the same session with full batches joined and split by hand; and a compiled model
without and with AUTO_BATCH_SIZE, on one device and split over two.

`ratio` is the rate relative to the plain session, `by_hand` relative to the session with batches.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime

import hetero
from benchmarks.null_models import submit_to
from benchmarks.sessions import bare_session, parsed
from benchmarks.tables import names, numbers, print_rows
from benchmarks.timing import Submit, at_once, by_turns

_WIDTH, _TOKENS = 256, 8


def mlp() -> onnx.ModelProto:
    """Return four layers of width 1024: a single row reads 16 MB of weights."""
    layers = ["h0 = Identity(x)"]
    layers += [f"m{i} = MatMul(h{i}, w{i}) h{i + 1} = Relu(m{i})" for i in range(3)]
    body = " ".join([*layers, "y = MatMul(h3, w3)"])
    return _model(
        f"mlp (float[N, 1024] x) => (float[N, 1024] y) {{ {body} }}",
        {f"w{i}": (1024, 1024) for i in range(4)},
    )


def block() -> onnx.ModelProto:
    """Return a transformer block over 8 tokens of 256, one head."""
    size = f"N, {_TOKENS}, {_WIDTH}"
    return _model(
        f"""block (float[{size}] x) => (float[{size}] y) {{
            q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)
            t = Transpose <perm = [0, 2, 1]> (k) s = MatMul(q, t) p = Softmax(s)
            a = MatMul(p, v) o = MatMul(a, wo) r = Add(x, o) n = LayerNormalization(r, g)
            u = MatMul(n, w1) f = Relu(u) d = MatMul(f, w2) y = Add(n, d) }}""",
        {
            **dict.fromkeys(("wq", "wk", "wv", "wo"), (_WIDTH, _WIDTH)),
            "g": (_WIDTH,),
            "w1": (_WIDTH, 4 * _WIDTH),
            "w2": (4 * _WIDTH, _WIDTH),
        },
    )


def _model(text: str, weights: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = parsed(text)
    for name, shape in weights.items():
        array = (rng.standard_normal(shape) / 32).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[int, ...], str]] = {
    "mlp": (mlp, (1, 1024), "m2"),
    "block": (block, (1, _TOKENS, _WIDTH), "u"),
}


class ByHand:
    """A plain session whose callers are joined by hand into full batches."""

    def __init__(self, session: onnxruntime.InferenceSession, x: np.ndarray, size: int) -> None:
        self._session = session
        self._x = x
        self._size = size
        self._waiting: list[list[np.ndarray]] = []

    def submit(self) -> Callable[[], np.ndarray]:
        """Add a request; the request that fills the batch runs it."""
        mine: list[np.ndarray] = []
        self._waiting.append(mine)
        if len(self._waiting) == self._size:
            self._run()

        def wait() -> np.ndarray:
            if not mine:
                self._run()
            return mine[0]

        return wait

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []
        (y,) = self._session.run(None, {"x": np.concatenate([self._x] * len(waiting))})
        for row, answer in enumerate(waiting):
            answer.append(y[row : row + 1].copy())


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure each model on each executor with each number of callers."""
    with ExitStack() as stack:
        cores = {
            kind: stack.enter_context(hetero.Core(cast(Any, kind), devices={"ORT": 2}))
            for kind in names(options.executors)
        }
        for name in names(options.models):
            for kind, core in cores.items():
                for callers in numbers(options.callers):
                    yield from _measure(name, kind, core, callers, options)


def _measure(
    name: str, kind: str, core: hetero.Core, callers: int, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    make, shape, middle = MODELS[name]
    model, x = make(), np.ones(shape, np.float32)
    session = bare_session(model, len(os.sched_getaffinity(0)))
    ways: dict[str, Submit] = {
        "session": at_once(lambda: session.run(None, {"x": x})),
        "session by hand": ByHand(session, x, options.size).submit,
    }
    with ExitStack() as stack:
        for device, pins in (("ORT.0", {}), ("HETERO:ORT.0,ORT.1", {middle: "ORT.1"})):
            for size in (0, options.size):
                config = {"AUTO_BATCH_SIZE": size, "MAX_REQUESTS_IN_FLIGHT": max(32, callers)}
                compiled = core.compile_model(model, device, config, affinity=pins)
                way = ("cut in two" if pins else "one device") + (", batched" if size else "")
                ways[way] = submit_to(stack.enter_context(compiled), x)
        timings = by_turns(ways, callers, options.seconds, options.rounds)
    for way, timing in timings.items():
        yield {
            "model": name,
            "executor": kind,
            "callers": callers,
            "size": options.size,
            "way": way,
            "requests_per_s": round(timing.rate, 1),
            "p50_ms": round(timing.p50_ms, 3),
            "ratio": round(timing.rate / timings["session"].rate, 3),
            "by_hand": round(timing.rate / timings["session by hand"].rate, 3),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--executors", default="inprocess", help="executors of hetero")
    parser.add_argument("--callers", default="1,16,64", help="requests in flight")
    parser.add_argument("--size", type=int, default=16, help="rows of a batch")
    parser.add_argument("--seconds", type=float, default=3.0, help="per variant and case")
    parser.add_argument("--rounds", type=int, default=3, help="number of turns")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    print_rows(list(run(options)), options.json)


if __name__ == "__main__":
    main()
