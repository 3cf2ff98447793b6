"""Affinities: patterns of pins, and the assignment of devices from query results."""

from __future__ import annotations

import pickle

import pytest
from onnx.parser import parse_model

from hetero.affinity.affinity import Affinity, assign, resolve_pins
from hetero.devices.errors import AffinityError
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.support import Refusal, Support

DEVICES = ("ORT", "CPU")


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        ({"fc": "CPU"}, {"fc": "CPU"}),
        ({"conv*": "CPU"}, {"conv1": "CPU", "conv2": "CPU"}),
        ({"conv?": "CPU"}, {"conv1": "CPU", "conv2": "CPU"}),
        ({"conv[2-9]": "CPU"}, {"conv2": "CPU"}),
        ({"op:Abs": "CPU"}, {"conv2": "CPU", "out[0]": "CPU"}),
        ({"op:ai.onnx.Neg": "CPU"}, {"fc": "CPU"}),
        ({"op:A*": "CPU"}, {"conv1": "CPU", "conv2": "CPU", "out[0]": "CPU"}),
        ({"out[0]": "CPU"}, {"out[0]": "CPU"}),  # a node name takes precedence over a glob
        ({"name:fc": "CPU", "glob:out*": "ORT"}, {"fc": "CPU", "out[0]": "ORT"}),
        # The more exact kind wins regardless of order; within a kind the later pattern wins.
        (
            {"conv2": "ORT", "conv*": "CPU", "op:Abs": "CPU"},
            {"conv1": "CPU", "conv2": "ORT", "out[0]": "CPU"},
        ),
        ({"conv*": "CPU", "c*": "ORT"}, {"conv1": "ORT", "conv2": "ORT"}),
        ({"op:Constant": "CPU"}, {}),  # literals follow their readers
        ({"fc": "CPU.0"}, {"fc": "CPU"}),
    ],
)
def test_resolve_pins_matches_patterns(model, pins, expected):
    assert dict(resolve_pins(model, pins, DEVICES)) == expected


def test_pattern_with_a_colon_in_node_names_is_a_glob():
    proto = parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[2] x) => (float[2] y)'
        "{ z = Abs(x) w = Neg(z) y = Abs(w) }"
    )
    for node, name in zip(proto.graph.node, ["block:0", "block:1", "op"], strict=True):
        node.name = name
    pins = {"block:*": "CPU", "op": "ORT"}
    expected = {"block:0": "CPU", "block:1": "CPU", "op": "ORT"}
    assert dict(resolve_pins(read_model(proto), pins, DEVICES)) == expected


def test_name_of_a_pattern_kind_alone_is_a_node_name(model):
    with pytest.raises(AffinityError, match="no node has that name"):
        resolve_pins(model, {"op": "CPU"}, DEVICES)


def test_resolve_pins_reasons_name_the_pattern(model):
    pins = {"fc": "CPU", "conv*": "CPU", "op:Abs": "ORT"}
    affinity = resolve_pins(model, pins, DEVICES, source="a.json")
    assert affinity.reasons == {
        "conv1": "pin: glob conv* in a.json",
        "conv2": "pin: glob conv* in a.json",
        "fc": "pin: name fc in a.json",
        "out[0]": "pin: op:Abs in a.json",
    }


def test_resolve_pins_reports_all_problems_at_once(model):
    pins = {"conv3": "CPU", "op:Conv": "CPU", "dense*": "CPU", "fc": "GPU", "conv1": "cpu"}
    with pytest.raises(AffinityError) as error:
        resolve_pins(model, pins, DEVICES)
    problems = error.value.data["problems"]
    assert len(problems) == 5
    assert "no node has that name; close matches: 'conv" in problems[0]
    assert "no node is of type 'Conv'" in problems[1]
    assert "no node name matches" in problems[2]
    assert "no device 'GPU' in the list (ORT, CPU)" in problems[3]
    assert "did you mean 'CPU'?" in problems[4]
    assert all(problem in str(error.value) for problem in problems)
    assert pickle.loads(pickle.dumps(error.value)).data == error.value.data


def test_assign_keeps_pins_and_records_reasons(model):
    refusals = {"conv2": {"ORT": Refusal("no_kernel", "ORT has no Abs")}}
    support = Support(
        {"make_k": "ORT", "conv1": "ORT", "conv2": "CPU", "fc": "CPU", "out[0]": "ORT"},
        {},
        refusals,
    )
    affinity = assign(model, support, Affinity({"fc": "CPU"}, {"fc": "pin: name fc"}))
    assert dict(affinity) == dict(support)
    assert tuple(affinity) == model.node_names
    assert affinity.reasons == {
        "make_k": "follows conv1",
        "conv1": "priority",
        "conv2": "priority, after ORT: ORT has no Abs [no_kernel]",
        "fc": "pin: name fc",
        "out[0]": "priority",
    }


def test_assign_unsupported_pin_raises(model):
    refusals = {"fc": {"ORT": Refusal("dtype", "no bfloat16")}}
    support = Support({"conv1": "ORT", "conv2": "CPU"}, refusals, refusals)
    pins = Affinity(
        {"fc": "ORT", "conv2": "ORT"}, {"fc": "pin: op:Neg", "conv2": "pin: name conv2"}
    )
    with pytest.raises(AffinityError) as error:
        assign(model, support, pins)
    assert error.value.data["problems"] == (
        "node 'fc' (Neg): ORT does not support it: no bfloat16 [dtype] (pin: op:Neg)",
        "node 'conv2' (Abs): ORT was not queried about it (pin: name conv2)",
    )
