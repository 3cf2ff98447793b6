"""States: a small decoder with its KV cache on the devices, or passed as inputs and outputs.

All variants generate the same tokens in turns, starting with an empty KV cache: a plain onnxruntime
session that is passed its KV cache, and a compiled model on one device and split over two, without
and with states. Bytes per token are those that cross between the client and the devices, counted in
process; resident tensors do not cross. `ratio` is relative to the rate without states in the same
turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

import hetero
from benchmarks.sessions import bare_session
from benchmarks.tables import names, numbers, print_rows
from tests.support.remote_cores import Counting, core_on, crossed
from tests.support.stateful_models import STATES, decoder

#: Runs one decode step on the token, and the KV cache unless it is a state; returns all outputs.
Step = Callable[[Mapping[str, Any]], Mapping[str, np.ndarray]]


class Generator:
    """Variant of the decode loop; without `caches`, `step` keeps the KV cache itself."""

    def __init__(self, step: Step, begin: Callable[[], Any], caches: Mapping[str, np.ndarray]):
        self._step = step
        self._begin = begin
        self._caches = caches

    def tokens(self, count: int) -> list[int]:
        """Generate tokens from the beginning of a sequence."""
        self._begin()
        caches, token, generated = self._caches, 1, []
        for _ in range(count):
            outputs = self._step({"ids": np.int64([[token]]), **caches})
            caches = {name: outputs[name.replace("past", "present")] for name in caches}
            token = int(np.argmax(outputs["logits"]))
            generated.append(token)
        return generated


def bare(model: onnx.ModelProto, caches: Mapping[str, np.ndarray]) -> Generator:
    """Return a session that is passed its KV cache."""
    session = bare_session(model, 1)
    outputs = [port.name for port in session.get_outputs()]

    def step(inputs: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        return dict(zip(outputs, session.run(outputs, dict(inputs)), strict=True))

    return Generator(step, lambda: None, caches)


def compiled(
    core: hetero.Core,
    model: onnx.ModelProto,
    devices: Sequence[str],
    caches: Mapping[str, np.ndarray],
    *,
    state: bool,
) -> Generator:
    """Return a compiled model with the second half of its layers on the second device."""
    layers = len(caches) // 2
    later = [*range(layers // 2, layers)] if len(devices) > 1 else []
    model_compiled = core.compile_model(
        model,
        f"HETERO:{','.join(devices)}",
        dict.fromkeys(["INFERENCE_NUM_THREADS"], 1),
        affinity={f"{i}/*": devices[1] for i in later} | {"logits": devices[-1]},
        states=STATES if state else None,
    )
    request = model_compiled.create_infer_request()
    return Generator(request.infer, request.reset_state, {} if state else caches)


def measure(
    kinds: Sequence[str], num_devices: Sequence[int], tokens: int, turns: int, size: Any
) -> list[dict[str, Any]]:
    """Return a row for each executor, number of devices and variant."""
    model = decoder(size.layers, width=size.width, heads=size.heads)
    shape = (1, size.heads, 0, size.width // size.heads)
    caches = {
        port.name: np.zeros(shape, np.float32)
        for port in model.graph.input
        if port.name.startswith("past")
    }
    rows = []
    for kind in kinds:
        with hetero.Core(kind, devices={size.device: 2}) as core:  # type: ignore[arg-type]
            for count in num_devices:
                devices = [f"{size.device}.{i}" for i in range(count)]
                ways = {"onnxruntime": bare(model, caches)}
                ways |= {
                    way: compiled(core, model, devices, caches, state=way == "state")
                    for way in ("handed", "state")
                }
                nbytes = {way: _nbytes(model, devices, caches, way, tokens) for way in ways}
                seconds = _seconds(ways, tokens, turns)
                for way, mine in seconds.items():
                    pairs = zip(seconds["handed"], mine, strict=True)
                    rows.append(
                        {
                            "executor": kind,
                            "devices": count,
                            "way": way,
                            "tokens_per_s": tokens / statistics.median(mine),
                            "ratio": statistics.median(handed / own for handed, own in pairs),
                            "bytes_per_token": nbytes[way],
                        }
                    )
    return rows


def _seconds(ways: Mapping[str, Generator], tokens: int, turns: int) -> dict[str, list[float]]:
    """Return the seconds of each turn after the first."""
    times_s: dict[str, list[float]] = {way: [] for way in ways}
    output_tokens = {}
    for turn in range(turns + 1):
        for way, generator in ways.items():
            start_s = time.perf_counter()
            output_tokens[way] = generator.tokens(tokens)
            if turn:
                times_s[way].append(time.perf_counter() - start_s)
    if len({tuple(words) for words in output_tokens.values()}) > 1:
        raise AssertionError(f"ways do not generate the same tokens: {output_tokens}")
    return times_s


def _nbytes(
    model: onnx.ModelProto,
    devices: Sequence[str],
    caches: Mapping[str, np.ndarray],
    way: str,
    tokens: int,
) -> float | None:
    """Return the mean bytes of tensors that cross for one token."""
    if way == "onnxruntime":
        return None
    plugin = devices[0].partition(".")[0]
    with core_on(Counting, {plugin: 2}) as core:
        compiled(core, model, devices, caches, state=way == "state").tokens(tokens)
        return sum(nbytes for *_, nbytes in crossed()) / tokens


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executors", type=names, default=["inprocess", "ray"])
    parser.add_argument("--devices", type=numbers, default=[1, 2])
    parser.add_argument("--device", default="ORT", help="plugin of the devices")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = measure(options.executors, options.devices, options.tokens, options.turns, options)
    print_rows(rows, options.json)


if __name__ == "__main__":
    main()
