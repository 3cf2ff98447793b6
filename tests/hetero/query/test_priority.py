"""Priority policy, on devices that support fixed sets of operators."""

from __future__ import annotations

import pickle

import onnx
import pytest

from hetero.affinity.affinity import assign
from hetero.affinity.pins import collect_pins
from hetero.devices.errors import AffinityError, UnsupportedNodesError
from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Refusal, Support
from hetero.query.priority import MAX_SHOWN_NODES, query_priority, require_supported
from tests.support.graphs import build


class Devices:
    """Devices that support fixed operator types; `queries` records the nodes of each query."""

    def __init__(self, **types: str) -> None:
        self.types = {device: text.split() for device, text in types.items()}
        self.queries: list[tuple[str, tuple[str, ...]]] = []
        self.submodels: list[Model] = []

    def __call__(self, device: str, model: Model) -> Support:
        self.queries.append((device, model.node_names))
        self.submodels.append(model)
        supported = [
            n.name for n in model.nodes if n.is_constant or n.op_type in self.types[device]
        ]
        refusals = {
            n.name: {device: Refusal("no_kernel", f"no {n.op_type} on {device}")}
            for n in model.nodes
            if n.name not in supported
        }
        notes = dict.fromkeys(supported, f"by {device}")
        return Support(dict.fromkeys(supported, f"{device}.0"), refusals, refusals, notes)


@pytest.fixture
def model():
    return build(
        """n1: a = Add(x, k)
           n2: b = Abs(a)
           n3: c = Neg(b)
           n4: y = Add(c, k)""",
        outputs="y",
        literals="k",
    )


def test_query_priority_later_devices_get_the_rest(
    model,
):
    devices = Devices(ORT="Add", CPU="Abs Neg Add", NULL="Abs Neg Add")
    support = query_priority(model, ["ORT", "CPU", "NULL"], devices)
    assert list(support.items()) == [
        ("make_k", "ORT"),
        ("n1", "ORT"),
        ("n2", "CPU"),
        ("n3", "CPU"),
        ("n4", "ORT"),
    ]
    assert devices.queries == [("ORT", model.node_names), ("CPU", ("n2", "n3"))]
    assert devices.submodels[0] is model
    submodel = devices.submodels[1]
    assert [p.name for p in submodel.inputs] == ["a"]
    assert [p.name for p in submodel.outputs] == ["c"]
    onnx.checker.check_model(submodel.to_proto(), full_check=True)
    assert dict(support.unsupported) == {}
    assert {n: list(r) for n, r in support.refusals.items()} == {"n2": ["ORT"], "n3": ["ORT"]}
    assert support.notes["n2"] == "by CPU"


def test_query_priority_copies_literals_to_submodels(model):
    devices = Devices(ORT="Abs Neg", CPU="Add")
    support = query_priority(model, ["ORT", "CPU"], devices)
    assert devices.queries[1] == ("CPU", ("make_k", "n1", "n4"))
    assert support["make_k"] == "CPU"


def test_literal_of_unsupported_nodes_has_no_device(model):
    support = query_priority(model, ["ORT"], Devices(ORT="Abs Neg"))
    assert dict(support) == {"n2": "ORT", "n3": "ORT"}
    assert set(support.unsupported) == {"n1", "n4"}


def test_require_supported_lists_every_refusal(model):
    support = query_priority(model, ["ORT", "CPU"], Devices(ORT="Add", CPU="Abs"))
    assert list(support.unsupported) == ["n3"]
    assert {d: str(r) for d, r in support.unsupported["n3"].items()} == {
        "ORT": "no Neg on ORT [no_kernel]",
        "CPU": "no Neg on CPU [no_kernel]",
    }
    with pytest.raises(UnsupportedNodesError) as error:
        require_supported(support, model, ["ORT", "CPU"])
    text = str(error.value)
    assert "1 of its 5 nodes cannot run on ORT or CPU" in text
    assert "'n3' (Neg): ORT: no Neg on ORT [no_kernel]; CPU: no Neg on CPU [no_kernel]" in text
    unpickled = pickle.loads(pickle.dumps(error.value))
    assert unpickled.unsupported == {"n3": dict(support.unsupported["n3"])}


def test_require_supported_abbreviates_long_messages():
    lines = "\n".join(f"n{i}: v{i + 1} = Neg(v{i})" for i in range(MAX_SHOWN_NODES + 5))
    model = build(lines, inputs="v0", outputs=f"v{MAX_SHOWN_NODES + 5}")
    support = query_priority(model, ["CPU"], Devices(CPU="Abs"))
    with pytest.raises(UnsupportedNodesError, match="and 5 more") as error:
        require_supported(support, model, ["CPU"])
    assert len(error.value.unsupported) == MAX_SHOWN_NODES + 5
    assert "'n24'" not in str(error.value)


def test_query_priority_empty_support_is_a_refusal():
    model = build("n1: y = Abs(x)", outputs="y")
    support = query_priority(model, ["CPU"], lambda device, part: Support({}))
    refusal = support.unsupported["n1"]["CPU"]
    assert str(refusal) == "CPU returned neither support nor a refusal [policy]"


def test_query_priority_pins_limit_the_queries(model):
    devices = Devices(ORT="Add Abs Neg", CPU="Add Abs")
    pins = collect_pins(model, ["ORT", "CPU"], {"n2": "CPU", "n3": "CPU"})
    support = query_priority(model, ["ORT", "CPU"], devices, pins)
    assert devices.queries == [("ORT", ("make_k", "n1", "n4")), ("CPU", ("n2", "n3"))]
    assert support["n2"] == "CPU"
    assert {d: str(r) for d, r in support.unsupported["n3"].items()} == {
        "CPU": "no Neg on CPU [no_kernel]"
    }


def test_query_priority_queries_devices_with_pins_alone(model):
    devices = Devices(ORT="Add Abs Neg", CPU="Add Abs Neg", NULL="Add Abs Neg")
    names = ["ORT", "CPU", "NULL"]
    support = query_priority(model, names, devices, collect_pins(model, names, {"n4": "NULL"}))
    assert [device for device, _ in devices.queries] == ["ORT", "NULL"]
    assert (support["n3"], support["n4"]) == ("ORT", "NULL")


def test_assign_refused_pin_raises_with_reason(model):
    devices = Devices(ORT="Add", CPU="Add Abs Neg")
    pins = collect_pins(model, ["ORT", "CPU"], {"n2": "ORT", "op:Neg": "ORT"})
    support = query_priority(model, ["ORT", "CPU"], devices, pins)
    with pytest.raises(AffinityError) as error:
        assign(model, support, pins)
    assert error.value.data["problems"] == (
        "node 'n2' (Abs): ORT does not support it: no Abs on ORT [no_kernel] (pin: name n2)",
        "node 'n3' (Neg): ORT does not support it: no Neg on ORT [no_kernel] (pin: op:Neg)",
    )


def test_assign_follows_priority_support(model):
    support = query_priority(model, ["ORT", "CPU"], Devices(ORT="Add", CPU="Abs Neg"))
    require_supported(support, model, ["ORT", "CPU"])
    affinity = assign(model, support)
    assert dict(affinity) == dict(support)
    assert affinity.reasons["make_k"] == "follows n1"


@pytest.mark.parametrize(
    ("cpu_operators", "weight_devices"),
    [
        ("Add Exp Neg", {"w1": "CPU", "w2": "CPU"}),
        ("Add Neg", {"w1": "ORT", "w2": "CPU"}),
        ("Add Exp", {"w1": "ORT", "w2": "ORT"}),
    ],
)
def test_query_priority_computed_weights_follow_readers(cpu_operators, weight_devices):
    lines = "w1: e = Exp(k)\n w2: w = Neg(e)\n n1: a = Abs(x)\n n2: y = Add(a, w)"
    model = build(lines, outputs="y", constants="k")
    devices = Devices(ORT="Abs Add Exp Neg", CPU=cpu_operators)
    pins = collect_pins(model, ["ORT", "CPU"], {"n2": "CPU"})
    support = query_priority(model, ["ORT", "CPU"], devices, pins)
    assert dict(support) == {"n1": "ORT", "n2": "CPU", **weight_devices}
    assert devices.queries == [("ORT", ("w1", "w2", "n1")), ("CPU", ("w1", "w2", "n2"))]
    assert not support.refusals
    assert all(support.notes[name] == f"by {device}" for name, device in support.items())
    reasons = assign(model, support, pins).reasons
    assert reasons["w2"] == ("follows n2" if weight_devices["w2"] == "CPU" else "priority")


def test_query_priority_duplicate_device_is_queried_once(model):
    devices = Devices(CPU="Add Abs")
    query_priority(model, ["CPU", "CPU"], devices)
    assert len(devices.queries) == 1


def test_query_priority_unread_output_stays_in_submodel():
    model = build("n1: a = Abs(x)\n n2: b, unread = Split(a)\n n3: y = Neg(b)", outputs="y")
    devices = Devices(ORT="Abs Neg", CPU="Split")
    query_priority(model, ["ORT", "CPU"], devices)
    assert [p.name for p in devices.submodels[1].outputs] == ["b"]


def test_query_priority_model_without_nodes():
    model = build("", outputs="x")
    assert dict(query_priority(model, ["CPU"], Devices(CPU=""))) == {}
