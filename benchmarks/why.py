"""Reasons to split a model: each case compares a split with the alternatives on this machine.

``python -m benchmarks.why [faster] [survives] [fits] [--json]``. Each case takes about a minute.

``faster``: two models with strings, which OpenVINO refuses and ONNX Runtime runs. ``HETERO:OV,ORT``
runs the strings on ONNX Runtime and the network on OpenVINO. Whether that is faster depends on the
model and the processor. An image classifier (ResNet-50) answers with the names of its classes, by
an `ai.onnx.ml` LabelEncoder. A text encoder takes words, which a LabelEncoder maps to ids; it has
the dimensions of all-MiniLM-L6-v2 (6 layers, width 384, 12 heads). Both have random weights. The
peers are a plain onnxruntime session and hetero on each device alone, all with every core. They
take turns, one request at a time, in this process.

``fits``: a decoder with 250 MB of weights under devices that may take 330 MB each. One device alone
runs out of memory; a plan that fits splits it over two and yields the tokens of devices without a
limit. `benchmarks.fit` is the same with 1 GB.

``survives``: a decoder whose layers are split over two device processes generates a text. One
process is killed in the middle. The tokens are compared with those of a plain onnxruntime session.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import hetero
from benchmarks.fit import demonstrate
from benchmarks.networks import bert
from benchmarks.null_models import call
from benchmarks.sessions import bare_session, source
from benchmarks.tables import print_rows
from benchmarks.timing import Submit, at_once, by_turns
from hetero.affinity.layers import find_layers
from hetero.examples.small_decoder import small_decoder

#: Dimensions of all-MiniLM-L6-v2, by its configuration on the model hub.
_LAYERS, _WIDTH, _HEADS = 6, 384, 12
_LENGTH: Final = 128
#: Entries of the embedding table of `benchmarks.networks.bert`.
_VOCABULARY: Final = 2000
#: Classes of ImageNet.
_CLASSES: Final = 1000
#: Tolerance of results, relative to the largest value: float32 on two runtimes.
_RTOL: Final = 1e-3
_PROMPT: Final = [3, 14, 15, 9, 2, 6]
_TOKENS: Final = 48
#: Weights of the decoder that fits no device, and the memory of each device.
_MEGABYTES: Final = 250
_LIMIT_NBYTES: Final = 330_000_000


class Case(NamedTuple):
    """Model of ``faster`` with its inputs."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, np.ndarray]


def image_classifier() -> Case:
    """Return image -> scores, and the name of the class with the highest score: a ResNet-50."""
    model = source("resnet50")
    graph, random = model.graph, np.random.default_rng(0)
    # The model's own weights are constants, which give all classes the same score.
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for position, node in enumerate(graph.node):
        if node.op_type == "ConstantOfShape" and len(shape := shapes[node.input[0]]) > 1:
            scale = np.sqrt(2 / np.prod(shape[1:]))  # He et al. 2015, equation 10
            weights = random.normal(0, scale, shape).astype(np.float32)
            value = numpy_helper.from_array(weights, "weights")
            constant = helper.make_node("Constant", [], node.output, node.name, value=value)
            graph.node[position].CopyFrom(constant)
    scores = graph.output[0].name
    names = helper.make_node(
        "LabelEncoder",
        ["class"],
        ["name"],
        "names",
        domain="ai.onnx.ml",
        keys_int64s=range(_CLASSES),
        values_strings=[f"class {number}" for number in range(_CLASSES)],
    )
    best = helper.make_node("ArgMax", [scores], ["class"], "best", axis=1, keepdims=0)
    graph.node.extend([best, names])
    graph.output.append(helper.make_tensor_value_info("name", TensorProto.STRING, [1]))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    image = random.random((1, 3, 224, 224), np.float32)
    return Case("image classifier", model, {graph.input[0].name: image})


def text_encoder() -> Case:
    """Return words -> hidden states: a LabelEncoder before an encoder."""
    model = bert(_LAYERS, _WIDTH, _LENGTH, _HEADS)
    graph = model.graph
    vocabulary = [f"word{number}" for number in range(_VOCABULARY)]
    ids = helper.make_node(
        "LabelEncoder",
        ["words"],
        ["ids"],
        "vocabulary",
        domain="ai.onnx.ml",
        keys_strings=vocabulary,
        values_int64s=range(_VOCABULARY),
        default_int64=0,
    )
    graph.node.insert(0, ids)
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("words", TensorProto.STRING, [1, _LENGTH]))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    words = np.array([vocabulary[7 * i % _VOCABULARY] for i in range(_LENGTH)], object)[None]
    return Case("text encoder", model, {"words": words})


def faster(seconds: float, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the latency of two models on each device alone, and split."""
    for case in (image_classifier(), text_encoder()):
        yield from _compare_devices(case, seconds, rounds)


def _compare_devices(case: Case, seconds: float, rounds: int) -> Iterator[dict[str, Any]]:
    session = bare_session(case.model, len(os.sched_getaffinity(0)))
    expected = session.run(None, case.inputs)
    variants: dict[str, Submit] = {
        "onnxruntime, plain session": at_once(partial(session.run, None, case.inputs))
    }
    differences = {"onnxruntime, plain session": 0.0}
    refusals: dict[str, str] = {}
    with hetero.Core("inprocess") as core:
        for devices in ("OV", "ORT", "HETERO:OV,ORT"):
            name = f"hetero, {devices}"
            try:
                # The results are compared with ONNX Runtime's below.
                compiled = core.compile_model(case.model, devices, {"VERIFY": "NO"})
            except hetero.HeteroError as error:
                refusals[name] = str(error).splitlines()[1].strip()  # the node and the reason
                continue
            results = [*compiled(case.inputs).values()]
            differences[name] = max(map(_difference, results, expected))
            variants[name] = call(compiled, case.inputs)
        timings = by_turns(variants, 1, seconds, rounds)
    baseline_ms = timings["onnxruntime, plain session"].p50_ms
    for name, timing in timings.items():
        yield {
            "case": f"faster: {case.name}",
            "variant": name,
            "p50_ms": round(timing.p50_ms, 2),
            "times_as_fast": round(baseline_ms / timing.p50_ms, 2),
            "outcome": f"largest relative difference {differences[name]:.1e}",
        }
    for name, reason in refusals.items():
        yield {"case": f"faster: {case.name}", "variant": name, "outcome": f"refused: {reason}"}


def _difference(result: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference relative to the largest value; RuntimeError if it is large.

    Strings differ by 0, or else completely.
    """
    if expected.dtype == object:
        result, expected = (result == expected).astype(float), np.ones(expected.shape)
    difference = float(np.abs(result - expected).max() / np.abs(expected).max())
    if not difference <= _RTOL:
        raise RuntimeError(f"expected equal results within {_RTOL}, got {difference}")
    return difference


def survives() -> Iterator[dict[str, Any]]:
    """Yield the tokens before and after the loss of each of two devices."""
    proto = small_decoder(4)
    expected = _tokens_by_hand(proto, _TOKENS)
    model = hetero.read_decoder(proto)
    layers = find_layers(model)
    pins = {name: f"ORT.{2 * i // len(layers)}" for i, layer in enumerate(layers) for name in layer}
    with (
        hetero.Core("ray", devices={"ORT": 2}) as core,
        core.compile_model(model, "HETERO:ORT.0,ORT.1", affinity=pins) as compiled,
    ):
        executor: Any = core.executor
        for victim in ("ORT.1", "ORT.0"):
            pid = executor._ask(executor._devices.device(victim), "ping")
            generation = compiled.generate(_PROMPT, _TOKENS, eos=())
            gaps_s = []
            begin_s = time.perf_counter()
            for count, _ in enumerate(generation, 1):
                gaps_s.append(time.perf_counter() - begin_s)
                if count == _TOKENS // 2:
                    os.kill(pid, signal.SIGKILL)
                begin_s = time.perf_counter()
            yield {
                "case": "survives",
                "variant": f"{victim} of ORT.0 and ORT.1 killed after {_TOKENS // 2} tokens",
                "p50_ms": round(1e3 * float(np.median(gaps_s)), 2),
                "longest_gap_ms": round(1e3 * max(gaps_s), 1),
                "outcome": _compare_tokens(generation.tokens, expected),
            }


def fits() -> Iterator[dict[str, Any]]:
    """Yield the outcomes of one limited device, of a plan that fits two, and of a loss."""
    for row in demonstrate(_MEGABYTES, _LIMIT_NBYTES, _TOKENS // 2):
        yield {
            "case": "fits",
            "variant": row["case"],
            "times_as_fast": row.get("ratio"),
            "outcome": row["outcome"],
        }


def _compare_tokens(tokens: Sequence[int], expected: Sequence[int]) -> str:
    """Return the number of tokens as text; RuntimeError if they differ from the expected ones."""
    if list(tokens) != list(expected):
        raise RuntimeError(f"expected the tokens {expected}, got {tokens}")
    return f"{len(tokens)} of {len(expected)} tokens equal to onnxruntime's"


def _tokens_by_hand(proto: onnx.ModelProto, count: int) -> list[int]:
    """Return the most likely tokens, computed by a plain session without a KV cache."""
    session = bare_session(proto, 1)
    empty = {
        port.name: np.zeros([1, port.shape[1], 0, port.shape[3]], np.float32)
        for port in session.get_inputs()
        if port.name.startswith("past_key_values")
    }
    tokens = list(_PROMPT)
    for _ in range(count):
        length = len(tokens)
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, length), np.int64),
            "position_ids": np.arange(length)[None],
        }
        (logits,) = session.run(["logits"], feeds | empty)
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(_PROMPT) :]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ["faster", "survives", "fits"]
    parser.add_argument("cases", nargs="*", choices=[[], *names], help="default: all")
    parser.add_argument("--seconds", type=float, default=5.0, help="per variant")
    parser.add_argument("--rounds", type=int, default=5, help="number of turns")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    cases: Mapping[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "faster": partial(faster, options.seconds, options.rounds),
        "survives": survives,
        "fits": fits,
    }
    rows = [row for name in options.cases or cases for row in cases[name]()]
    print_rows(rows, options.json)


if __name__ == "__main__":
    main()
