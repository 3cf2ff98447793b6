"""The priority policy, on devices that take a given set of operators."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import onnx
import pytest

from hetero.affinity.affinity import assign
from hetero.affinity.pins import pins_of
from hetero.devices.errors import AffinityError, DeviceError, UnsupportedNodesError
from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Refusal, Support
from hetero.query.priority import SHOWN_NODES, query_priority, require_supported
from hetero.query.query_cache import Answers
from tests.support.graphs import build


class Devices:
    """Devices that take operator types; `asked` keeps what each was asked about."""

    def __init__(self, **types: str) -> None:
        self.types = {device: text.split() for device, text in types.items()}
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.models: list[Model] = []

    def __call__(self, device: str, model: Model) -> Support:
        self.asked.append((device, model.node_names))
        self.models.append(model)
        takes = [n.name for n in model.nodes if n.is_constant or n.op_type in self.types[device]]
        refused = {
            n.name: {device: Refusal("no_kernel", f"no {n.op_type} on {device}")}
            for n in model.nodes
            if n.name not in takes
        }
        notes = dict.fromkeys(takes, f"by {device}")
        return Support(dict.fromkeys(takes, f"{device}.0"), refused, refused, notes)


@pytest.fixture
def model() -> Model:
    return build(
        """n1: a = Add(x, k)
           n2: b = Abs(a)
           n3: c = Neg(b)
           n4: y = Add(c, k)""",
        outputs="y",
        literals="k",
    )


def test_the_first_device_takes_what_it_can_and_later_ones_are_asked_about_the_rest(
    model: Model,
) -> None:
    ask = Devices(ORT="Add", CPU="Abs Neg Add", NULL="Abs Neg Add")
    support = query_priority(model, ["ORT", "CPU", "NULL"], ask)
    assert list(support.items()) == [
        ("make_k", "ORT"),
        ("n1", "ORT"),
        ("n2", "CPU"),
        ("n3", "CPU"),
        ("n4", "ORT"),
    ]
    assert ask.asked == [("ORT", model.node_names), ("CPU", ("n2", "n3"))]
    assert ask.models[0] is model
    rest = ask.models[1]
    assert [p.name for p in rest.inputs] == ["a"]
    assert [p.name for p in rest.outputs] == ["c"]
    onnx.checker.check_model(rest.to_proto(), full_check=True)
    assert dict(support.unsupported) == {}
    assert {n: list(r) for n, r in support.refusals.items()} == {"n2": ["ORT"], "n3": ["ORT"]}
    assert support.notes["n2"] == "by CPU"


def test_literals_go_along_with_what_is_left(model: Model) -> None:
    ask = Devices(ORT="Abs Neg", CPU="Add")
    support = query_priority(model, ["ORT", "CPU"], ask)
    assert ask.asked[1] == ("CPU", ("make_k", "n1", "n4"))
    assert support["make_k"] == "CPU"


def test_every_unsupported_node_has_every_reason(model: Model) -> None:
    support = query_priority(model, ["ORT", "CPU"], Devices(ORT="Add", CPU="Abs"))
    assert list(support.unsupported) == ["n3"]
    assert {d: str(r) for d, r in support.unsupported["n3"].items()} == {
        "ORT": "no Neg on ORT [no_kernel]",
        "CPU": "no Neg on CPU [no_kernel]",
    }
    with pytest.raises(UnsupportedNodesError) as caught:
        require_supported(support, model, ["ORT", "CPU"])
    text = str(caught.value)
    assert "1 of its 5 nodes cannot run on ORT or CPU" in text
    assert "'n3' (Neg): ORT: no Neg on ORT [no_kernel]; CPU: no Neg on CPU [no_kernel]" in text
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.unsupported == {"n3": dict(support.unsupported["n3"])}


def test_a_long_list_is_cut_in_the_message_only() -> None:
    lines = "\n".join(f"n{i}: v{i + 1} = Neg(v{i})" for i in range(SHOWN_NODES + 5))
    model = build(lines, inputs="v0", outputs=f"v{SHOWN_NODES + 5}")
    support = query_priority(model, ["CPU"], Devices(CPU="Abs"))
    with pytest.raises(UnsupportedNodesError, match="and 5 more") as caught:
        require_supported(support, model, ["CPU"])
    assert len(caught.value.unsupported) == SHOWN_NODES + 5
    assert "'n24'" not in str(caught.value)


def test_a_device_that_says_nothing_has_refused() -> None:
    model = build("n1: y = Abs(x)", outputs="y")
    support = query_priority(model, ["CPU"], lambda device, part: Support({}))
    assert str(support.unsupported["n1"]["CPU"]) == "CPU gave no answer and no reason [policy]"


def test_pinned_nodes_are_asked_of_their_device_only(model: Model) -> None:
    ask = Devices(ORT="Add Abs Neg", CPU="Add Abs")
    pins = pins_of(model, ["ORT", "CPU"], {"n2": "CPU", "n3": "CPU"})
    support = query_priority(model, ["ORT", "CPU"], ask, pins)
    assert ask.asked == [("ORT", ("make_k", "n1", "n4")), ("CPU", ("n2", "n3"))]
    assert support["n2"] == "CPU"
    assert {d: str(r) for d, r in support.unsupported["n3"].items()} == {
        "CPU": "no Neg on CPU [no_kernel]"
    }


def test_a_pin_that_its_device_refuses_is_an_error_with_the_reason(model: Model) -> None:
    ask = Devices(ORT="Add", CPU="Add Abs Neg")
    pins = pins_of(model, ["ORT", "CPU"], {"n2": "ORT", "op:Neg": "ORT"})
    support = query_priority(model, ["ORT", "CPU"], ask, pins)
    with pytest.raises(AffinityError) as caught:
        assign(model, support, pins)
    assert caught.value.data["problems"] == (
        "node 'n2' (Abs): ORT does not take it: no Abs on ORT [no_kernel] (pin: name n2)",
        "node 'n3' (Neg): ORT does not take it: no Neg on ORT [no_kernel] (pin: op:Neg)",
    )


def test_support_becomes_the_affinity(model: Model) -> None:
    support = query_priority(model, ["ORT", "CPU"], Devices(ORT="Add", CPU="Abs Neg"))
    require_supported(support, model, ["ORT", "CPU"])
    placed = assign(model, support)
    assert dict(placed) == dict(support)
    assert placed.reasons["make_k"] == "follows n1"


@pytest.mark.parametrize(
    ("second", "homes"),
    [
        ("Add Exp Neg", {"w1": "CPU", "w2": "CPU"}),
        ("Add Neg", {"w1": "ORT", "w2": "CPU"}),
        ("Add Exp", {"w1": "ORT", "w2": "ORT"}),
    ],
)
def test_weights_that_nodes_make_go_to_their_reader_where_it_can_have_them(
    second: str, homes: dict[str, str]
) -> None:
    lines = "w1: e = Exp(k)\n w2: w = Neg(e)\n n1: a = Abs(x)\n n2: y = Add(a, w)"
    model = build(lines, outputs="y", constants="k")
    ask = Devices(ORT="Abs Add Exp Neg", CPU=second)
    pins = pins_of(model, ["ORT", "CPU"], {"n2": "CPU"})
    support = query_priority(model, ["ORT", "CPU"], ask, pins)
    assert dict(support) == {"n1": "ORT", "n2": "CPU", **homes}
    assert ask.asked == [("ORT", ("w1", "w2", "n1")), ("CPU", ("w1", "w2", "n2"))]
    assert not support.refusals
    assert all(support.notes[name] == f"by {device}" for name, device in support.items())
    reasons = assign(model, support, pins).reasons
    assert reasons["w2"] == ("follows n2" if homes["w2"] == "CPU" else "priority")


def test_a_device_listed_twice_is_asked_once(model: Model) -> None:
    ask = Devices(CPU="Add Abs")
    query_priority(model, ["CPU", "CPU"], ask)
    assert len(ask.asked) == 1


def test_an_optional_output_that_nobody_reads_stays_inside() -> None:
    model = build("n1: a = Abs(x)\n n2: b, unread = Split(a)\n n3: y = Neg(b)", outputs="y")
    ask = Devices(ORT="Abs Neg", CPU="Split")
    query_priority(model, ["ORT", "CPU"], ask)
    assert [p.name for p in ask.models[1].outputs] == ["b"]


def test_a_model_of_nothing() -> None:
    model = build("", outputs="x")
    assert dict(query_priority(model, ["CPU"], Devices(CPU=""))) == {}


def test_devices_are_asked_once_about_a_model_and_its_parts(model: Model) -> None:
    devices = Devices(ORT="Add", CPU="Abs Neg Add")
    answers = Answers(lambda device, part, config: devices(device, part))

    def ask(device: str, part: Model) -> Support:
        return answers.support(device, part, {})

    first = query_priority(model, ["ORT", "CPU"], ask)
    assert query_priority(model, ["ORT", "CPU"], ask) == first
    assert [device for device, _ in devices.asked] == ["ORT", "CPU"]


def test_who_asks_at_the_same_time_waits_for_one_answer(model: Model) -> None:
    answer, began, go = Support({}, {}), threading.Semaphore(0), threading.Event()
    asked = []

    def ask(device: str, part: Model, config: object) -> Support:
        asked.append(device)
        began.release()
        assert go.wait(60)
        return answer

    answers = Answers(ask)
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(answers.support, "CPU", model, {}) for _ in range(3)]
        assert began.acquire(timeout=60)
        go.set()
        assert [f.result(60) for f in found] == [answer] * 3
    assert asked == ["CPU"]


def test_a_device_that_fails_to_answer_is_asked_again(model: Model) -> None:
    answer = Support({}, {})
    told = iter([KeyboardInterrupt(), DeviceError("gone"), answer])

    def ask(device: str, part: Model, config: object) -> Support:
        said = next(told)
        if isinstance(said, BaseException):
            raise said
        return said

    answers = Answers(ask)
    for wrong in (KeyboardInterrupt, DeviceError):
        with pytest.raises(wrong):
            answers.support("CPU", model, {})
    assert answers.support("CPU", model, {}) is answer
