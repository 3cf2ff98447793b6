"""Refusals of devices in their part of a model: first, second and repeated ones."""

from __future__ import annotations

import pytest

from hetero.affinity.affinity import Affinity
from hetero.affinity.pins import collect_pins
from hetero.devices.errors import AffinityError, UnsupportedNodesError
from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Refusal, Support
from hetero.query.priority import (
    add_refusals,
    merge_refusals,
    place_by_priority,
    query_priority,
    refusal_of,
    remove_refusals,
    require_supported,
    without_refusals,
)
from tests.support.compile_requests import compile_request
from tests.support.graphs import build

FIRST, SECOND, THIRD = (Refusal("policy", text) for text in ("first", "second", "third"))
AFFINITY = Affinity({"a": "X.0", "b": "X.1", "c": "X.0"})


def failure(**refusals: Refusal) -> UnsupportedNodesError:
    return UnsupportedNodesError(
        "refused", unsupported={node: {"any": r} for node, r in refusals.items()}
    )


def test_refusal_belongs_to_the_device_of_the_node():
    refusals = add_refusals([AFFINITY], failure(a=FIRST, b=SECOND), {})
    assert refusals == {"X.0": {"a": FIRST}, "X.1": {"b": SECOND}}


def test_second_refusal_keeps_the_first():
    first = add_refusals([AFFINITY], failure(a=FIRST), {})
    second = add_refusals([AFFINITY], failure(c=SECOND), first)
    third = add_refusals([AFFINITY], failure(b=THIRD, c=THIRD), second)
    assert first == {"X.0": {"a": FIRST}}
    assert second == {"X.0": {"a": FIRST, "c": SECOND}}
    assert third == {"X.0": {"a": FIRST, "c": SECOND}, "X.1": {"b": THIRD}}


def test_refusal_counts_for_each_replica_that_has_the_node():
    replica = Affinity({"a": "Y.0"})
    refusals = add_refusals([AFFINITY, replica], failure(a=FIRST, c=SECOND), {})
    assert refusals == {"X.0": {"a": FIRST, "c": SECOND}, "Y.0": {"a": FIRST}}


@pytest.mark.parametrize(
    "error",
    [failure(a=SECOND), failure(z=FIRST), failure(), UnsupportedNodesError("without its nodes")],
)
def test_failure_without_a_new_refusal_is_raised(error):
    with pytest.raises(UnsupportedNodesError) as caught:
        add_refusals([AFFINITY], error, {"X.0": {"a": FIRST}})
    assert caught.value is error


def test_refusal_without_a_reason():
    error = UnsupportedNodesError("refused", unsupported={"a": {}})
    assert add_refusals([AFFINITY], error, {}) == {
        "X.0": {"a": Refusal("policy", "refused in a part")}
    }


def test_first_of_two_refusals_of_a_node_takes_precedence():
    first = {"X.0": {"a": FIRST}, "X.1": {"a": FIRST}}
    second = {"X.2": {"b": SECOND}, "X.0": {"a": SECOND, "c": SECOND}}
    assert merge_refusals(first, second) == {
        "X.0": {"a": FIRST, "c": SECOND},
        "X.1": {"a": FIRST},
        "X.2": {"b": SECOND},
    }
    assert first["X.0"] == {"a": FIRST}


def test_removed_refusals_are_those_of_the_nodes():
    refusals = {"X.0": {"a": FIRST, "b": SECOND}, "X.1": {"b": THIRD}, "X.2": {"a": THIRD}}
    assert remove_refusals(refusals, ["b", "z"]) == {"X.0": {"b": SECOND}, "X.1": {"b": THIRD}}
    assert refusals == {"X.0": {"a": FIRST}, "X.1": {}, "X.2": {"a": THIRD}}


def test_refusals_are_subtracted_from_the_support_of_their_device():
    support = Support(
        {"a": "X.0", "b": "X.0"}, {"c": {"X.0": FIRST}}, {"c": {"X.0": FIRST}}, {"a": "note"}
    )
    assert without_refusals(support, "X.1", {"X.0": {"a": SECOND}}) is support
    less = without_refusals(support, "X.0", {"X.0": {"a": SECOND}, "X.1": {"b": SECOND}})
    assert dict(less) == {"b": "X.0"}
    expected = {"c": {"X.0": FIRST}, "a": {"X.0": SECOND}}
    assert less.unsupported == less.refusals == expected


@pytest.fixture
def model():
    return build("a: v = Neg(x)\nb: w = Neg(v)\nc: y = Neg(w)", outputs="y")


def support_all(device: str, model: Model) -> Support:
    return Support(dict.fromkeys(model.node_names, device))


def test_refused_nodes_go_to_the_next_device(model):
    request = compile_request("X.0", "X.1")
    assert set(place_by_priority(model, request, support_all, {}).values()) == {"X.0"}
    refusals = {"X.0": {"b": FIRST}}
    affinity = place_by_priority(model, request, support_all, refusals)
    assert affinity.devices == {"a": "X.0", "b": "X.1", "c": "X.0"}
    refusals["X.1"] = {"b": SECOND}
    with pytest.raises(UnsupportedNodesError) as caught:
        place_by_priority(model, request, support_all, refusals)
    assert caught.value.unsupported == {"b": {"X.0": FIRST, "X.1": SECOND}}


def test_pinned_node_that_is_refused_raises_with_the_refusal(model):
    pins = collect_pins(model, ["X.0", "X.1"], {"b": "X.1"})
    request = compile_request("X.0", "X.1", pins=pins)
    assert place_by_priority(model, request, support_all, {"X.0": {"b": FIRST}})["b"] == "X.1"
    with pytest.raises(AffinityError, match=r"node 'b'.* X\.1 .*second"):
        place_by_priority(model, request, support_all, {"X.1": {"b": SECOND}})


def test_devices_are_queried_until_all_nodes_have_one(model):
    queries: list[tuple[str, tuple[str, ...]]] = []

    def query(device: str, part: Model) -> Support:
        queries.append((device, part.node_names))
        supported = {"X.0": "a", "X.1": "abc", "X.2": "abc"}[device]
        return Support({n: device for n in part.node_names if n in supported})

    support = query_priority(model, ["X.0", "X.1", "X.2"], query)
    assert dict(support) == {"a": "X.0", "b": "X.1", "c": "X.1"}
    assert queries == [("X.0", ("a", "b", "c")), ("X.1", ("b", "c"))]


def test_equal_parts_of_a_model_are_one_object(model):
    parts: list[Model] = []

    def query(device: str, part: Model) -> Support:
        parts.append(part)
        return Support({n: device for n in part.node_names if (n == "a") == (device == "X.0")})

    for _ in range(2):
        query_priority(model, ["X.0", "X.1"], query)
    query_priority(model, ["X.1", "X.0"], query)
    assert parts[0] is parts[2] is model
    assert parts[1] is parts[3]
    assert parts[5].node_names == ("a",)


@pytest.mark.parametrize(
    ("support", "expected"),
    [
        (Support({}, {"a": {"X.0": FIRST, "X.1": SECOND}}, {"a": {"X.0": THIRD}}), FIRST),
        (Support({}, {"a": {"X.1": SECOND, "X.0": FIRST}}), FIRST),
        (Support({}, {"a": {"X.1": SECOND}}), SECOND),
        (Support({}, {}, {"a": {"X.0": THIRD}}), THIRD),
        (Support({}, {"a": {}}, {"a": {"X.0": THIRD}}), THIRD),
        (Support({}, {"b": {"X.0": FIRST}}), None),
    ],
)
def test_refusal_of_a_node(support, expected):
    default = Refusal("policy", "X.0 returned neither support nor a refusal")
    assert refusal_of(support, "a", "X.0") == (expected or default)


def test_message_groups_devices_and_names_the_domain():
    model = build("a: y = Neg(x)", outputs="y")
    support = Support({}, {"a": {"X.0": FIRST, "X.1": SECOND, "X.2": FIRST}})
    with pytest.raises(UnsupportedNodesError) as caught:
        require_supported(support, model, ["X.0", "X.1", "X.2"])
    assert f"\n  'a' (Neg): X.0, X.2: {FIRST}; X.1: {SECOND}\n" in str(caught.value)
    require_supported(Support({"a": "X.0"}), model, ["X.0"])
