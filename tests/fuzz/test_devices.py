"""Differential fuzzing of the vendors' devices, whose subgraphs are verified: no wrong result.

Operators and networks run on ``HETERO:<device>,CPU``, whole and cut, with static and open sizes.
``HETERO_FUZZ_CASES`` sets their number, ``HETERO_FUZZ_SEED`` the seed, and ``HETERO_FUZZ_SECONDS``
when a test stops drawing: a compilation with verification runs a case on several devices, in
processes of their own.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import pytest

import hetero
from hetero.devices.conformance.drawn_cases import random_case
from hetero.devices.errors import HeteroError
from hetero.devices.model.attributes import is_random
from hetero.devices.model.reader import read_model
from hetero.verify.shaken_reference import ShakenReference
from hetero.verify.undefined_results import undefined_reason
from tests.fuzz.networks import SIZE, RandomNetwork
from tests.fuzz.oracles import ORACLES, WORKER, differences
from tests.support.graphs import feeds, random_affinity, random_model
from tests.support.operators import STEPS
from tests.support.small_models import run_cpu

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

CASES = int(os.environ.get("HETERO_FUZZ_CASES", "60"))
SEED = int(os.environ.get("HETERO_FUZZ_SEED", "0"))
SECONDS = float(os.environ.get("HETERO_FUZZ_SECONDS", "600"))
#: Device -> the package of its runtime, and the oracle that is the same runtime.
DEVICES = {
    "ORT": ("onnxruntime", "ONNX Runtime"),
    "OV": ("openvino", ""),
    "ORT_GGML": ("onnxruntime_ggml", ""),
}
CONFIG = {"VERIFY": "YES"}
#: Runs of the reference with rounding noise, of each request.
NUM_SHAKEN_RUNS = 12
#: Device -> tolerance of floats relative to the largest element. ggml approximates Erf with an
#: error of 1.3e-4.
COARSENESS = {"ORT_GGML": 2e-4}


@pytest.fixture(params=[name for name, (package, _) in DEVICES.items() if find_spec(package)])
def device(request):
    return str(request.param)


@pytest.fixture
def core():
    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        hetero.Core(executor="inprocess", devices={"CPU": 2}) as core,
    ):
        warnings.simplefilter("ignore")
        yield core
    WORKER.close()


def with_open_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model whose inputs have unknown sizes."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for port in copy.graph.input:
        for dimension in port.type.tensor_type.shape.dim:
            dimension.Clear()
    return copy


def run(core: hetero.Core, model: Any, device: str, inputs: Mapping[str, Any]) -> list[Any] | str:
    """Return the outputs on a device with fallback to CPU, or the error."""
    try:
        with core.compile_model(model, f"HETERO:{device},CPU", CONFIG) as compiled:
            return list(compiled(inputs).to_tuple())
    except HeteroError as error:
        return f"{type(error).__name__}: {error}"


def numbers(count: int) -> Iterator[int]:
    """Yield the numbers of cases until the time limit."""
    until_s = time.monotonic() + SECONDS
    for number in range(count):
        if time.monotonic() > until_s:
            print(f"{number} of {count} cases in {SECONDS:g} s")
            return
        yield number


def is_noted(core: hetero.Core, model: Any, device: str, inputs: Mapping[str, Any]) -> bool:
    """Return whether the query notes other integers, or other results for NaN and infinities."""
    notes = " ".join(core.query_model(model, f"HETERO:{device},CPU").notes.values())
    floats = [x for x in inputs.values() if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
    is_finite = all(np.isfinite(x).all() for x in floats)
    return "truncated" in notes or "saturates" in notes or ("NaN" in notes and not is_finite)


def has_undefined_power(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> bool:
    """Return whether a power of an integer is not a number of its type."""
    reason = undefined_reason(read_model(model), inputs) or ""
    return reason.endswith("the power of an integer outside the type's range")


def report(failures: list[str], counts: Counter[str]) -> None:
    print(f"HETERO_FUZZ_SEED={SEED} {dict(counts)}")
    lines = "\n".join(failures[:100])
    assert not failures, f"{len(failures)} wrong results, HETERO_FUZZ_SEED={SEED}:\n{lines}"


def test_drawn_operators_are_right(core, device):
    """A result is wrong if it differs from CPU's and from those of all oracles."""
    counts: Counter[str] = Counter()
    failures = []
    for i in numbers(CASES):
        random = np.random.default_rng((SEED, i, 3))
        case = random_case(random)
        model = case.model()
        if is_random(model.graph.node[0]):
            continue
        if random.random() < 0.5:
            model = with_open_sizes(model)
        try:
            expected = run_cpu(case.model(), case.feeds())
        except HeteroError:
            counts["refused by CPU"] += 1
            continue
        actual = run(core, model, device, case.feeds())
        if isinstance(actual, str):
            counts["error"] += 1  # never a wrong result; other tests check refusals
            continue
        counts["compared"] += 1
        text = differences(actual, expected, coarseness=COARSENESS.get(device, 0.0))
        if text and is_noted(core, model, device, case.feeds()):
            counts["noted"] += 1
        elif text and has_undefined_power(case.model(), case.feeds()):
            counts["undefined"] += 1
        elif text and not any(
            not differences(actual, outputs)
            for name, oracle in ORACLES.items()
            if name != DEVICES[device][1] and (outputs := outputs_of(oracle, case)) is not None
        ):
            failures.append(f"#{i} {case}: {text[:300]}")
    report(failures, counts)


def outputs_of(oracle: Any, case: Any) -> list[Any] | None:
    """Return an oracle's outputs of a case; None if it has none."""
    try:
        outputs: list[Any] = oracle(case)
    except Exception:  # oracles raise many types
        return None
    return outputs


def test_graphs_are_right_whole_and_cut(core, device):
    failures = []
    for i in numbers(CASES // 10):
        seed = int(np.random.default_rng((SEED, i, 4)).integers(1 << 30))
        model = random_model(seed, 4 + seed % 25)
        inputs = feeds(model, seed)
        expected = list(core.compile_model(model, "CPU")(inputs).to_tuple())
        pins = random_affinity(model, ["CPU.0", "CPU.1"], seed)
        some_pins = dict(list(pins.items())[:: 1 + seed % 3])
        for affinity in ({}, some_pins):
            devices = f"HETERO:{device},CPU.0,CPU.1"
            with core.compile_model(model, devices, CONFIG, affinity=affinity) as compiled:
                actual = list(compiled(inputs).to_tuple())
                if text := differences(actual, expected, coarseness=COARSENESS.get(device, 0.0)):
                    failures.append(f"graph seed {seed} cut={bool(affinity)}: {text}")
    report(failures, Counter())


def test_networks_are_right_whole_and_cut(core, device):
    failures = []
    counts: Counter[str] = Counter()
    for i in numbers(CASES // 4):
        seed = int(np.random.default_rng((SEED, i, 5)).integers(1 << 30))
        network = RandomNetwork(seed, 2 + seed % 12)
        model = network.model()
        requests = [network.inputs(), network.inputs(SIZE + 4), network.inputs(SIZE)]
        reference = core.compile_model(model, "CPU")
        expected = [list(reference(inputs).to_tuple()) for inputs in requests]
        shaken_reference = ShakenReference().compile_model(read_model(model))
        # A run with rounding noise moves some of the elements that are between two steps.
        shaken_runs = [
            [list(shaken_reference(inputs).to_tuple()) for _ in range(NUM_SHAKEN_RUNS)]
            for inputs in requests
        ]
        middle = model.graph.node[len(model.graph.node) // 2].name
        for affinity in ({}, {middle: "CPU.1"}):
            devices = f"HETERO:{device},CPU.0,CPU.1"
            with core.compile_model(model, devices, CONFIG, affinity=affinity) as compiled:
                verification = compiled.verification
                counts.update(verdict.status for verdict in verification.verdicts)
                for inputs, outputs, shaken in zip(requests, expected, shaken_runs, strict=True):
                    actual = list(compiled(inputs).to_tuple())
                    if has_steps(network):
                        text = quantized_differences(actual, outputs, shaken)
                    else:
                        text = differences(actual, outputs, coarseness=COARSENESS.get(device, 0.0))
                    if text:
                        statuses = [verdict.status for verdict in verification.verdicts]
                        failures.append(
                            f"network seed {seed} cut={bool(affinity)}: {text} {statuses}"
                        )
                        break
    report(failures, counts)


def has_steps(network: RandomNetwork) -> bool:
    """Return whether a node rounds floats to steps."""
    return any(node.op_type in ("QuantizeLinear", *STEPS) for node in network.nodes)


def quantized_differences(
    actual: list[Any], expected: list[Any], shaken_runs: list[list[Any]]
) -> str:
    """Return the differences; elements between two steps, and a few others, may be rounded."""
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return differences([a], [b])
        tolerance = 1e-3 * (1 + np.abs(b).max(initial=0))
        is_close = np.isclose(a, b, 1e-3, tolerance, equal_nan=True)
        for run in shaken_runs:
            is_close |= ~np.isclose(run[number], b, 1e-3, tolerance, equal_nan=True)
        if np.count_nonzero(~is_close) > 0.05 * a.size:
            return f"{np.count_nonzero(~is_close)} of {a.size} elements differ"
    return ""
