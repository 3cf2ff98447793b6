"""Samples of requests that the reference repeats."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

import hetero
from hetero.devices.errors import ClusterError
from hetero.devices.plugin.program import Value
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.verify.live_samples import LiveCounts, LiveSampler
from hetero.verify.verdict import PartVerdict
from tests.hetero.verify.faulty_vendor import FaultyVendor, small, small_output
from tests.support.core_fixtures import core_fixture

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
#: Seconds until a sample is compared, on a busy machine.
TIMEOUT_S = 60.0


core = core_fixture("module", plugins=[FaultyVendor])


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    until_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def sample_lines(core: hetero.Core) -> list[str]:
    with core.serve_metrics() as server:
        return [line for line in server.text().splitlines() if line.startswith("hetero_verify")]


def test_difference_is_counted_with_its_node_and_refused_later(core, caplog):
    config = {"VERIFY": "NO", "VERIFY_SAMPLE": 1, "FAULT": "relu_lets_negatives_pass"}
    with (
        caplog.at_level(logging.WARNING, "hetero"),
        core.compile_model(small(), "HETERO:VENDOR,CPU", config) as compiled,
    ):
        assert compiled.affinity["first"] == "VENDOR"
        compiled(np.abs(X))  # the fault does not show
        compiled(X)
        until(lambda: 'samples_total{model="small"} 2.0' in "".join(sample_lines(core)))
    assert [line for line in sample_lines(core) if "differences_total" in line] == [
        'hetero_verify_differences_total{device="VENDOR",model="small",node="first"} 1.0'
    ]
    assert (
        "a sampled request differs from the reference: VENDOR is wrong at Relu 'first'"
        in "".join(record.getMessage() for record in caplog.records)
    )
    with core.compile_model(small(), "HETERO:VENDOR,CPU", {**config, "VERIFY": "YES"}) as compiled:
        assert compiled.affinity["first"] == "CPU"


EXCLUDING: dict[str, Any] = {
    "VERIFY": "NO",
    "VERIFY_SAMPLE": 1,
    "VERIFY_SAMPLE_ACTION": "EXCLUDE",
    "FAULT": "relu_lets_negatives_pass",
}


def test_wrong_device_is_excluded_from_the_running_model(core):
    model = small()
    model.graph.name = "excluding"
    with core.compile_model(model, "HETERO:VENDOR,CPU", EXCLUDING) as compiled:
        requests = [compiled.create_infer_request() for _ in range(8)]
        assert not np.allclose(compiled(X)["y"], small_output(X))
        while set(compiled.affinity.values()) != {"CPU"}:  # requests run all the time
            for request in requests:
                request.start_async(np.abs(X))
            for request in requests:
                request.wait()
                np.testing.assert_allclose(request.results["y"], small_output(np.abs(X)), rtol=1e-6)
        assert [s.device for s in compiled.subgraphs] == ["CPU"]
        for request in requests:
            np.testing.assert_allclose(request.infer(X)["y"], small_output(X), rtol=1e-6)
        assert hetero.Core("inprocess").import_model(compiled.export_model())(X)["y"].shape == (
            2,
            3,
        )


def test_only_device_stays(core, caplog):
    model = small()
    model.graph.name = "staying"
    with (
        caplog.at_level(logging.WARNING, "hetero"),
        core.compile_model(model, "VENDOR", EXCLUDING) as compiled,
    ):
        compiled(X)
        until(lambda: "device VENDOR stays: no device remains" in caplog.text)
        assert compiled(np.abs(X))["y"].shape == (2, 3)
        assert compiled.get_property("EXECUTION_DEVICES") == ["VENDOR"]


def test_only_vendor_is_excluded_without_a_located_fault(core):
    """A device may be wrong only in the process that runs the requests."""
    model = small()
    model.graph.name = "unlocated"
    config = EXCLUDING | {"FAULT": ""}
    with core.compile_model(model, "HETERO:VENDOR,CPU", config) as compiled:
        sampler = compiled.target.sampler
        assert sampler is not None
        sampler.watch(submission(X), {"x": X})  # not the model's output
        until(lambda: set(compiled.affinity.values()) == {"CPU"})


def test_right_device_has_no_difference(core):
    config = {"VERIFY": "NO", "VERIFY_SAMPLE": 1}
    model = small()
    model.graph.name = "right"
    with core.compile_model(model, "HETERO:VENDOR,CPU", config) as compiled:
        compiled.create_infer_request().infer(X)
        until(lambda: 'samples_total{model="right"} 1.0' in "".join(sample_lines(core)))
    assert not [line for line in sample_lines(core) if 'device="VENDOR",model="right"' in line]


def test_nothing_is_sampled_by_default(core):
    with core.compile_model(small(), "VENDOR", {"VERIFY": "NO"}) as compiled:
        assert compiled.target.sampler is None


def submission(x: Value) -> CompletedSubmission:
    return CompletedSubmission({"y": x}, (), 0, lambda number: ())


class Future:
    """A future that only counts its callbacks."""

    callbacks = 0

    def add_done_callback(self, callback: object) -> None:
        Future.callbacks += 1


def test_share_of_requests_is_sampled():
    sampler = LiveSampler("m", 0.25, lambda inputs, outputs: [], lambda: True, LiveCounts())
    for _ in range(400):
        request: Any = SimpleNamespace(future=Future())
        sampler.watch(request, {"x": X})
    assert 70 <= Future.callbacks <= 130


def test_sample_is_a_copy():
    compared: list[float] = []
    is_idle = False

    def check(inputs: Mapping[str, Value], outputs: Mapping[str, Value]) -> list[PartVerdict]:
        compared.extend((float(inputs["x"][0]), float(outputs["y"][0])))
        return []

    sampler = LiveSampler("m", 1.0, check, lambda: is_idle, LiveCounts())
    x = np.ones(1)
    sampler.watch(submission(x), {"x": x})
    x[0] = -1.0  # the caller uses its array again
    is_idle = True
    until(lambda: len(compared) == 2)
    assert compared == [1.0, 1.0]


def test_samples_are_dropped_while_others_wait():
    is_idle = False
    counts = LiveCounts()
    sampler = LiveSampler("m", 1.0, lambda inputs, outputs: [], lambda: is_idle, counts)
    x = np.zeros(1)
    for _ in range(20):
        sampler.watch(submission(x), {"x": x})
    is_idle = True
    until(lambda: counts.samples.get("m", 0) >= 4)
    assert counts.samples["m"] <= 5


def test_sampling_continues_after_a_fault_of_the_check(caplog):
    faults = [RuntimeError("broken check")]

    def check(inputs: Mapping[str, Value], outputs: Mapping[str, Value]) -> list[PartVerdict]:
        if faults:
            raise faults.pop()
        return []

    counts = LiveCounts()
    sampler = LiveSampler("m", 1.0, check, lambda: True, counts)
    for _ in range(2):
        sampler.watch(submission(np.zeros(1)), {"x": np.zeros(1)})
    until(lambda: counts.samples.get("m", 0) == 1)
    assert "broken check" in caplog.text


def test_sampling_ends_without_an_error_when_the_core_is_closed(
    caplog,
):
    def is_idle() -> bool:
        raise ClusterError("this Core is closed")

    sampler = LiveSampler("m", 1.0, lambda inputs, outputs: [], is_idle, LiveCounts())
    with caplog.at_level(logging.INFO, "hetero"):
        sampler.watch(submission(np.zeros(1)), {"x": np.zeros(1)})
        until(lambda: "a request was not compared: this Core is closed" in caplog.text)
