"""Decoder that fits no single device: limited processes, plans that fit, and the loss of a device.

``python -m benchmarks.fit [--megabytes N] [--limit MB] [--tokens N] [--json]``. A decoder of about
1 GB of float32 weights, with random numbers, is written to a temporary folder. Two devices may take
700 MB each: their processes set RLIMIT_DATA when they load a model, and the peak of their resident
memory is read from the kernel. hetero's own accounting does not take part in either.

RLIMIT_DATA bounds private memory. Address space that the idle process has reserved but not used,
such as the stacks of its threads, does not count; weights that processes of a node share do not
count either, but they are part of the resident memory.

The rows: one device alone; ``FIT_MEMORY`` over both devices, with the rate relative to the same
split on devices without a limit, in turns; and the text while one of the devices is killed.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import onnx
from onnx.parser import parse_model

import hetero
from benchmarks.tables import print_rows
from hetero.apps.generate.decoder_ports import Decoder, step_shapes
from hetero.devices.model.model import Model
from hetero.devices.ort.plugin import ORTPlugin
from hetero.devices.plugin.program import Program
from hetero.devices.plugin.properties import Config, Property, PropertyTable

#: Width, heads and entries of the vocabulary; a layer has 12 * width² weights.
WIDTH: Final = 1024
HEADS: Final = 16
VOCABULARY: Final = 2000
#: Positions for which there are embeddings.
CONTEXT: Final = 512
PROMPT: Final = [3, 14, 15, 9, 2, 6]
#: Rounds in which the limited and the unlimited devices take turns.
ROUNDS: Final = 3
_LIMITED: Final = ("LIMITED.0", "LIMITED.1")

_HEAD: Final = f"""<ir_version: 9, opset_import: ["": 18]>
decoder (int64[batch, length] input_ids, int64[batch, total] attention_mask,
    int64[batch, length] position_ids{{inputs}})
    => (float[batch, length, {VOCABULARY}] logits{{outputs}})
{{{{
    words = Gather (embedding, input_ids)
    places = Gather (positions, position_ids)
    begin = Add (words, places)
    all = Shape <start = 1> (attention_mask)
    new = Shape <start = 1, end = 2> (input_ids)
    square = Concat <axis = 0> (new, all)
    every = ConstantOfShape <value = float[1] {{{{1.0}}}}> (square)
    past = Sub (all, new)
    zero = Constant <value = int64[1] {{{{0}}}}> ()
    diagonal = Squeeze (past, zero)
    causal = Trilu <upper = 0> (every, diagonal)
    given = Cast <to = 1> (attention_mask)
    between = Constant <value = int64[2] {{{{1, 2}}}}> ()
    rows = Unsqueeze (given, between)
    seen = Mul (causal, rows)
    one = Constant <value = float {{{{1.0}}}}> ()
    hidden = Sub (seen, one)
    much = Constant <value = float {{{{1000000000.0}}}}> ()
    bias = Mul (hidden, much)
    split = Constant <value = int64[4] {{{{0, 0, {HEADS}, {WIDTH // HEADS}}}}}> ()
    join = Constant <value = int64[3] {{{{0, 0, {WIDTH}}}}}> ()
    scale = Constant <value = float {{{{{(WIDTH // HEADS) ** -0.5}}}}}> ()
"""
_LAYER: Final = """
    n_{i} = LayerNormalization ({x}, ones)
    q_flat_{i} = MatMul (n_{i}, wq_{i})
    q_rows_{i} = Reshape (q_flat_{i}, split)
    q_turned_{i} = Transpose <perm = [0, 2, 1, 3]> (q_rows_{i})
    q_{i} = Mul (q_turned_{i}, scale)
    k_flat_{i} = MatMul (n_{i}, wk_{i})
    k_rows_{i} = Reshape (k_flat_{i}, split)
    k_{i} = Transpose <perm = [0, 2, 1, 3]> (k_rows_{i})
    v_flat_{i} = MatMul (n_{i}, wv_{i})
    v_rows_{i} = Reshape (v_flat_{i}, split)
    v_{i} = Transpose <perm = [0, 2, 1, 3]> (v_rows_{i})
    present_{i}_key = Concat <axis = 2> (past_key_values_{i}_key, k_{i})
    present_{i}_value = Concat <axis = 2> (past_key_values_{i}_value, v_{i})
    keys_{i} = Transpose <perm = [0, 1, 3, 2]> (present_{i}_key)
    scores_{i} = MatMul (q_{i}, keys_{i})
    masked_{i} = Add (scores_{i}, bias)
    weights_{i} = Softmax <axis = -1> (masked_{i})
    mixed_{i} = MatMul (weights_{i}, present_{i}_value)
    together_{i} = Transpose <perm = [0, 2, 1, 3]> (mixed_{i})
    joined_{i} = Reshape (together_{i}, join)
    out_{i} = MatMul (joined_{i}, wo_{i})
    middle_{i} = Add ({x}, out_{i})
    m_{i} = LayerNormalization (middle_{i}, ones)
    up_{i} = MatMul (m_{i}, wu_{i})
    active_{i} = Relu (up_{i})
    down_{i} = MatMul (active_{i}, wd_{i})
    end_{i} = Add (middle_{i}, down_{i})
"""


class LimitedPlugin(ORTPlugin):
    """ONNX Runtime in a process whose private memory the kernel limits."""

    name: ClassVar[str] = "LIMITED"
    automatic: ClassVar[bool] = False
    properties: ClassVar[PropertyTable] = ORTPlugin.properties.extended(
        Property("LIMIT_NBYTES", int, 0, True, "Largest private memory in bytes; 0: unlimited.")
    )

    def compile(self, model: Model, config: Config) -> Program:
        """Limit this process, then open a session."""
        if config["LIMIT_NBYTES"]:
            limit_private_memory(config["LIMIT_NBYTES"])
        return super().compile(model, config)


def limit_private_memory(nbytes: int) -> None:
    """Limit the private memory that this process may use."""
    fields = _status("self")
    reserved = fields["VmData"] - fields["RssAnon"]
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (reserved + nbytes, hard_limit))


def _status(pid: int | str) -> dict[str, int]:
    """Return the memory of a process in bytes, by the kernel's names."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.startswith(("Vm", "Rss")))
    return {name[:-1]: 1024 * int(size) for name, size, *_ in fields}


def write_decoder(path: Path, megabytes: int) -> None:
    """Write a decoder with random weights of about this size, one weight at a time."""
    layers = max(2, round(megabytes * 1e6 / (4 * 12 * WIDTH**2)))
    kinds = [(i, kind) for i in range(layers) for kind in ("key", "value")]
    cached = f"float[batch, {HEADS}, {{0}}, {WIDTH // HEADS}] {{1}}_{{2}}_{{3}}"
    inputs = [cached.format("past", "past_key_values", *each) for each in kinds]
    outputs = [cached.format("total", "present", *each) for each in kinds]
    text = _HEAD.format(
        inputs="".join(f", {x}" for x in inputs), outputs="".join(f", {x}" for x in outputs)
    )
    text += "".join(_LAYER.format(i=i, x=f"end_{i - 1}" if i else "begin") for i in range(layers))
    text += f"    last = LayerNormalization (end_{layers - 1}, ones)\n"
    text += "    logits = MatMul (last, head)\n}"
    model = parse_model(text)
    for node in model.graph.node:
        node.name = node.output[0]
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (VOCABULARY, WIDTH),
        "positions": (CONTEXT, WIDTH),
        "head": (WIDTH, VOCABULARY),
    }
    for i in range(layers):
        shapes |= {f"w{name}_{i}": (WIDTH, WIDTH) for name in "qkvo"}
        shapes |= {f"wu_{i}": (WIDTH, 4 * WIDTH), f"wd_{i}": (4 * WIDTH, WIDTH)}
    ones = np.ones(WIDTH, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(ones, "ones"))
    rng = np.random.default_rng(5)
    with path.with_suffix(".weights").open("wb") as file:
        for name, shape in shapes.items():
            array = rng.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)
            tensor = onnx.TensorProto(name=name, dims=shape, data_type=onnx.TensorProto.FLOAT)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in {
                "location": path.with_suffix(".weights").name,
                "offset": file.tell(),
                "length": array.nbytes,
            }.items():
                tensor.external_data.add(key=key, value=str(value))
            model.graph.initializer.append(tensor)
            file.write(array.tobytes())
    onnx.save(model, path)


def demonstrate(megabytes: int, limit_nbytes: int, tokens: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of the demonstration."""
    with tempfile.TemporaryDirectory(prefix="hetero-fit-") as folder:
        path = Path(folder) / "model.onnx"
        write_decoder(path, megabytes)
        model = hetero.read_decoder(path)
        size = f"{model.weight_nbytes / 1e6:.0f} MB of weights"
        devices = {"LIMITED": 3, "ORT": 2}
        plugins = ["benchmarks.fit:LimitedPlugin"]
        with hetero.Core("ray", devices=devices, plugins=plugins) as core:
            core.executor.start([*_LIMITED, "LIMITED.2", "ORT.0", "ORT.1"])
            outcome = _alone(core, model, limit_nbytes)
            yield {"case": f"one device alone, {size}", "outcome": outcome}
            yield from _split(core, model, limit_nbytes, tokens)


def _config(limit_nbytes: int) -> dict[str, Any]:
    return {"VERIFY": "NO", "LIMIT_NBYTES": limit_nbytes}


def _alone(core: hetero.Core, model: Model, limit_nbytes: int) -> str:
    """Return the error of a limited device that gets the whole model."""
    try:
        with core.compile_model(model, "LIMITED.2", _config(limit_nbytes)) as compiled:
            list(compiled.generate(PROMPT, 2, eos=()))
    except hetero.HeteroError as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    raise RuntimeError("expected one device to run out of memory, but it holds the whole model")


def _split(
    core: hetero.Core, model: Model, limit_nbytes: int, tokens: int
) -> Iterator[dict[str, Any]]:
    """Yield the rates of limited and unlimited devices, and the loss of a limited one."""
    budgets = dict.fromkeys(_LIMITED, limit_nbytes)
    config = {
        **_config(limit_nbytes),
        "FIT_MEMORY": True,
        "DEVICE_MEMORY_NBYTES": budgets,
        "PLAN_SHAPES": step_shapes(model, Decoder.of(model), len(PROMPT) + tokens),
    }
    with core.compile_model(model, f"HETERO:{','.join(_LIMITED)}", config) as fitted:
        pins = {n: d.replace("LIMITED", "ORT") for n, d in fitted.affinity.items()}
        with core.compile_model(
            model, "HETERO:ORT.0,ORT.1", {"VERIFY": "NO"}, affinity=pins
        ) as free:
            rates: dict[str, list[float]] = {"limited": [], "unlimited": []}
            texts: dict[str, list[int]] = {}
            for _ in range(ROUNDS):
                for name, compiled in (("limited", fitted), ("unlimited", free)):
                    texts[name], rate = _generate(compiled, tokens)
                    rates[name].append(rate)
        expected = texts["unlimited"]
        ratio = statistics.median(
            a / b for a, b in zip(rates["limited"], rates["unlimited"], strict=True)
        )
        yield {
            "case": "FIT_MEMORY over two devices",
            "outcome": _compare(texts["limited"], expected),
            "tokens_per_s": statistics.median(rates["limited"]),
            "ratio": ratio,
            **_memory(core, fitted, budgets),
        }
        yield _lose(core, fitted, "LIMITED.1", tokens, expected) | _memory(core, fitted, budgets)


def _generate(compiled: hetero.CompiledModel, tokens: int) -> tuple[list[int], float]:
    """Return the tokens of a text, and the tokens per second after the first."""
    generation = compiled.generate(PROMPT, tokens, eos=())
    times_s = [time.perf_counter() for _ in generation]
    return list(generation.tokens), (len(times_s) - 1) / (times_s[-1] - times_s[0])


def _memory(
    core: hetero.Core, compiled: hetero.CompiledModel, budgets: Mapping[str, int]
) -> dict[str, Any]:
    """Return the predicted and the measured peak of each device."""
    report = compiled.plan_report
    predicted = {} if report is None else {d.device: d.peak_nbytes for d in report.memory}
    row: dict[str, Any] = {}
    for device in budgets:
        peak = _status(_pid(core, device))["VmHWM"]
        row[f"{device} predicted MB"] = round(predicted.get(device, 0) / 1e6)
        row[f"{device} peak MB"] = round(peak / 1e6)
    return row


def _pid(core: hetero.Core, device: str) -> int:
    executor: Any = core.executor
    pid: int = executor._ask(executor._devices.device(device), "ping")
    return pid


def _lose(
    core: hetero.Core,
    compiled: hetero.CompiledModel,
    victim: str,
    tokens: int,
    expected: Sequence[int],
) -> dict[str, Any]:
    """Kill a device in the middle of a text; return the longest gap and the comparison."""
    pid = _pid(core, victim)
    generation = compiled.generate(PROMPT, tokens, eos=())
    gaps_s = []
    begin_s = time.perf_counter()
    for count, _ in enumerate(generation, 1):
        gaps_s.append(time.perf_counter() - begin_s)
        if count == tokens // 2:
            os.kill(pid, signal.SIGKILL)
        begin_s = time.perf_counter()
    return {
        "case": f"{victim} killed after {tokens // 2} tokens",
        "outcome": _compare(generation.tokens, expected),
        "longest_gap_s": max(gaps_s),
    }


def _compare(tokens: Sequence[int], expected: Sequence[int]) -> str:
    """Return the number of equal tokens as text; RuntimeError if they differ."""
    if list(tokens) != list(expected):
        raise RuntimeError(f"expected the tokens {list(expected)}, got {list(tokens)}")
    return f"{len(tokens)} tokens equal to those without a limit"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=900, help="size of the weights")
    parser.add_argument("--limit", type=int, default=700, help="megabytes of each device")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    rows = list(demonstrate(options.megabytes, options.limit * 10**6, options.tokens))
    print_rows(rows, options.json)


if __name__ == "__main__":
    main()
