"""Options of a deployment with their units, and requests without lost devices or replicas."""

from __future__ import annotations

from typing import Any

import pytest
from onnx.parser import parse_model

from hetero.affinity.affinity import Affinity
from hetero.compile.compiled_model import optimal_num_requests
from hetero.compile.compiler import dynamic_batching, with_batch_axis, without_devices
from hetero.compile.replicas import move_from_lost_devices, with_replicas
from hetero.devices.errors import DeviceError, PropertyError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.partition.partition import PlacedPartition, partition
from hetero.partition.replicas import replicate
from hetero.scheduler.types.limits import Batching, Limits
from tests.support.compile_requests import compile_request, descriptor
from tests.support.graphs import build
from tests.support.models import branches

MODEL = read_model(branches())
ONE_ROW = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[1, 3] x) => (float[1, 3] y) { y = Neg(x) }"""


def place(model: Model = MODEL, share: float = 1.0, **devices: str) -> PlacedPartition:
    """Return a placement on X.0, with some nodes elsewhere."""
    affinity = dict.fromkeys(model.node_names, "X.0") | devices
    reasons = dict.fromkeys(affinity, "priority")
    return PlacedPartition(partition(model, affinity), Affinity(affinity, reasons), share)


@pytest.mark.parametrize(("milliseconds", "seconds"), [(0, 0.0), (1, 0.001), (2500, 2.5)])
def test_batch_timeout_is_in_milliseconds(milliseconds, seconds):
    request = compile_request("X.0", AUTO_BATCH_SIZE=8, AUTO_BATCH_TIMEOUT=milliseconds)
    batching = dynamic_batching([place(with_batch_axis(MODEL, request))], request, Limits())
    assert batching == Batching(8, seconds, busy=1, most=32)


def test_batches_in_flight_fill_the_stages_of_all_placements():
    request = compile_request("X.0", "X.1", AUTO_BATCH_SIZE=2)
    model = with_batch_axis(MODEL, request)
    placements = [place(model), place(model, add="X.1")]
    batching = dynamic_batching(placements, request, Limits(requests=7))
    assert batching is not None
    assert (batching.size, batching.busy, batching.most) == (2, 1 + 2, 7)


@pytest.mark.parametrize(
    ("size", "allowed", "batched"),
    [(0, True, False), (1, True, False), (2, True, True), (2, False, False)],
)
def test_batching_needs_two_rows_and_permission(size, allowed, batched):
    request = compile_request("X.0", AUTO_BATCH_SIZE=size, ALLOW_AUTO_BATCHING=allowed)
    assert request.batch_size == (size if allowed else 0)
    one_row = read_model(parse_model(ONE_ROW))
    assert (with_batch_axis(one_row, request).inputs[0].shape == ("batch", 3)) == batched
    model = with_batch_axis(MODEL, request)
    assert (dynamic_batching([place(model)], request, Limits()) is not None) == batched


#: Option -> (two values, field of the limits).
LIMITS: dict[str, tuple[tuple[Any, Any], str]] = {
    "MAX_REQUESTS_IN_FLIGHT": ((3, 4), "requests"),
    "MAX_BYTES_IN_FLIGHT": ((1000, 2000), "nbytes"),
    "MAX_REQUESTS_WAITING": ((5, 6), "waiting"),
    "REQUEST_TIMEOUT_S": ((0.25, 60.0), "timeout_s"),
    "ADMISSION_TIMEOUT_S": ((0.5, 70.0), "admission_timeout_s"),
    "MAX_ATTEMPTS": ((1, 9), "attempts"),
    "PRESERVE_ORDER": ((False, True), "in_order"),
    "STAGE_TIMEOUT_S": ((0.125, 80.0), "stage_timeout_s"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_equal_their_options(name):
    values, field = LIMITS[name]
    first, second = (compile_request("X.0", **{name: value}).limits for value in values)
    assert (getattr(first, field), getattr(second, field)) == values
    fields = {f for f in Limits.__slots__ if getattr(first, f) != getattr(second, f)}
    assert fields == {field}


def test_optimal_requests_count_stages_streams_and_placements():
    one, two = place(), place(add="X.1")
    configs: dict[str, Any] = {"X.0": {}, "X.1": {}}
    assert optimal_num_requests([one], configs) == 1 + 1
    assert optimal_num_requests([two], configs) == 2 + 1
    assert optimal_num_requests([one, two], configs) == 3 + 2
    streams: dict[str, Any] = {"X.0": {"NUM_STREAMS": 2}, "X.1": {"NUM_STREAMS": 4}}
    assert optimal_num_requests([one], streams) == 2 + 1
    assert optimal_num_requests([one, two], streams) == 3 * 4 + 2


# Devices that are lost.


def test_without_devices_keeps_the_others_in_order():
    request = compile_request("X.0", "Y.0", "X.1", REPLICAS=2)
    remaining = without_devices(request, ["Y.0"])
    assert remaining.devices == ("X.0", "X.1")
    assert remaining.hetero_config["REPLICAS"] == 2
    assert without_devices(request, ["X.0", "Y.0"]).hetero_config["REPLICAS"] == 1


def test_without_devices_needs_one_device():
    with pytest.raises(DeviceError, match=r"lost devices: X\.0, X\.1\."):
        without_devices(compile_request("X.0", "X.1"), ["X.1", "X.0"])


def test_without_devices_moves_pins_within_the_plugin():
    pins = Affinity({"add": "X.0", "tanh": "Y.0"}, {})
    request = compile_request("X.0", "X.1", "Y.0", pins=pins)
    assert without_devices(request, ["X.0"]).pins.devices == {"add": "X.1", "tanh": "Y.0"}
    with pytest.raises(DeviceError, match=r"pinned to Y\.0"):
        without_devices(request, ["Y.0"])


@pytest.mark.parametrize(
    ("device", "replicas"),
    [
        ("X.0", {}),  # its replicas become devices like others
        ("X.1", {"X.0": ["X.2"]}),
        ("Y.0", {"X.0": ["X.1", "X.2"]}),
    ],
)
def test_without_devices_keeps_replicas_that_remain(device, replicas):
    option = {"X.0": ["X.1", "X.2"]}
    request = compile_request("X.0", "X.1", "X.2", "Y.0", REPLICAS=option)
    assert without_devices(request, [device]).hetero_config["REPLICAS"] == replicas


def test_without_devices_keeps_automatic_replicas():
    request = compile_request("X.0", "X.1")
    assert without_devices(request, ["X.0"]).hetero_config["REPLICAS"] == "plan"


# Replicas.


def test_replica_devices_are_not_planned():
    request = with_replicas(compile_request("X.0", "X.1", "Y.0", REPLICAS={"X.0": ["X.1"]}))
    assert request.replicas == {"X.0": ("X.1",)}
    assert request.devices == ("X.0", "Y.0")
    assert request.all_devices == ("X.0", "Y.0", "X.1")


@pytest.mark.parametrize(
    ("number", "devices", "replicas"),
    [
        ("plan", ("X.0", "X.1", "Y.0"), {}),
        ("auto", ("X.0", "Y.0"), {"X.0": (), "Y.0": ()}),
        (1, ("X.0", "X.1", "Y.0"), {"X.0": (), "X.1": (), "Y.0": ()}),
        (2, ("X.0", "Y.0"), {"X.0": ("X.1",), "Y.0": ()}),
        (3, ("X.0",), {"X.0": ("X.1", "Y.0")}),
    ],
)
def test_consecutive_devices_are_replicas(number, devices, replicas):
    request = with_replicas(compile_request("X.0", "X.1", "Y.0", REPLICAS=number))
    assert (request.devices, request.replicas) == (devices, replicas)


def test_each_replica_needs_a_device():
    with pytest.raises(PropertyError, match=r"expected at most 2, one .* X\.0, X\.1; got 3"):
        with_replicas(compile_request("X.0", "X.1", REPLICAS=3))


@pytest.mark.parametrize(
    ("replicas", "device"),
    [
        ({"X.0": ["X.1", "X.1"]}, "X.1"),
        ({"X.0": ["X.2"], "X.1": ["X.2"]}, "X.2"),
        ({"X.0": ["X.1"], "X.1": ["X.2"]}, "X.1"),
        ({"X.0": ["X.0"]}, "X.0"),
    ],
)
def test_device_is_the_replica_of_one_other(replicas, device):
    request = compile_request("X.0", "X.1", "X.2", REPLICAS=replicas)
    with pytest.raises(PropertyError, match=f"{device} occurs twice") as caught:
        with_replicas(request)
    assert caught.value.property == "REPLICAS"


@pytest.mark.parametrize("replicas", [{"X.0": ["Z.0"]}, {"Z.0": ["X.0"]}])
def test_replicas_must_be_devices_of_the_request(replicas):
    request = compile_request("X.0", "X.1", REPLICAS=replicas)
    with pytest.raises(PropertyError, match=r"devices X\.0, X\.1; got 'Z\.0'") as caught:
        with_replicas(request)
    assert caught.value.property == "REPLICAS"


def test_pins_of_a_replica_are_those_of_its_original():
    pins = Affinity({"tanh": "X.0", "add": "X.1"}, {})
    request = compile_request("X.0", "X.1", REPLICAS={"X.0": ["X.1"]}, pins=pins)
    assert with_replicas(request).pins.devices == {"tanh": "X.0", "add": "X.0"}
    request = compile_request(
        "Y.0", "X.1", REPLICAS={"Y.0": ["X.1"]}, pins=Affinity({"add": "X.1"}, {})
    )
    with pytest.raises(PropertyError, match=r"X\.1 is a replica of Y\.0.*\['add'\]"):
        with_replicas(request)


def test_replicate_uses_all_devices_by_turns():
    original = place(share=0.5, add="Y.0", tanh="Z.0")
    placements = replicate(original, {"X.0": ("X.1",), "Y.0": ("Y.1", "Y.2"), "W.0": ("W.1",)})
    devices = [(p.affinity["matmul"], p.affinity["add"], p.affinity["tanh"]) for p in placements]
    assert sorted(devices) == [(x, y, "Z.0") for x in ("X.0", "X.1") for y in ("Y.0", "Y.1", "Y.2")]
    assert {p.share for p in placements} == {0.5 / 6}
    last = next(p for p in placements if p.affinity["add"] == "Y.2" and p.affinity["abs"] == "X.0")
    assert last.affinity.reasons["add"] == "priority (in place of Y.0)"
    assert last.affinity.reasons["abs"] == "priority"
    assert {s.device for s in last.partition.subgraphs} == {"X.0", "Y.2", "Z.0"}


def test_devices_that_are_listed_together_work_together():
    placements = replicate(place(add="Y.0"), {"X.0": ("X.1",), "Y.0": ("Y.1",)})
    devices = [(p.affinity["matmul"], p.affinity["add"]) for p in placements]
    assert devices == [("X.0", "Y.0"), ("X.1", "Y.1")]


# Placements that move.


def test_lost_stages_move_to_least_loaded_device():
    placement = place(add="X.1", tanh="X.2", neg="X.2")
    remaining = [descriptor("X.0"), descriptor("X.2"), descriptor("X.3"), descriptor("Y.0")]
    changed = move_from_lost_devices(placement, ["X.1"], remaining)
    assert changed is not None
    assert changed.affinity.devices == placement.affinity.devices | {"add": "X.3"}
    assert changed.affinity.reasons["add"] == "priority (in place of X.1)"
    without_spare = move_from_lost_devices(placement, ["X.1"], remaining[:2])
    assert without_spare is not None
    assert without_spare.affinity["add"] == "X.2"


def test_second_lost_device_counts_the_nodes_of_the_first():
    # X.0 has 3 nodes, X.1 has 2, X.2 has 1; of X.3 and X.4 each takes one lost device.
    placement = place(add="X.1", tanh="X.1", neg="X.2")
    remaining = [descriptor("X.3"), descriptor("X.4")]
    changed = move_from_lost_devices(placement, ["X.0", "X.1", "X.2"], remaining)
    assert changed is not None
    loads = sorted(list(changed.affinity.values()).count(name) for name in ("X.3", "X.4"))
    assert loads == [3, 3]


def test_lost_stages_need_a_device_of_their_plugin():
    placement = place(add="Y.0")
    assert move_from_lost_devices(placement, ["Y.0"], [descriptor("X.0")]) is None
    assert move_from_lost_devices(placement, ["Y.0"], [descriptor("Y.0", plugin="X")]) is None


@pytest.mark.parametrize(("nbytes", "fits"), [(None, True), (48, True), (47, False)])
def test_lost_stages_need_memory_for_their_weights(nbytes, fits):
    placement = place(add="X.1")  # the weight of 3 x 4 floats is read on X.0
    remaining = [descriptor("X.1"), descriptor("X.2", memory_nbytes=nbytes)]
    changed = move_from_lost_devices(placement, ["X.0"], [remaining[1]])
    assert (changed is not None) == fits


def test_weights_of_several_stages_on_a_device_add_up():
    model = build("a: v = Add(x, c)\nb: w = Neg(v)\nd: y = Add(w, e)", outputs="y", constants="c e")
    placement = place(model, b="Y.0")
    for nbytes, fits in ((24, True), (23, False)):
        remaining = [descriptor("X.1", memory_nbytes=nbytes), descriptor("Y.0")]
        assert (move_from_lost_devices(placement, ["X.0"], remaining) is not None) == fits


def test_memory_of_lost_devices_is_removed():
    request = compile_request("X.0", "X.1", DEVICE_MEMORY_NBYTES={"X.0": 1000, "X.1": 2000})
    remaining = without_devices(request, {"X.1"})
    assert remaining.hetero_config["DEVICE_MEMORY_NBYTES"] == {"X.0": 1000}
