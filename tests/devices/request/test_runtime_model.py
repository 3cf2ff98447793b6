"""Runtime models of fused, folded, added and replicated nodes."""

from __future__ import annotations

from hetero.devices.model.model import Model
from hetero.devices.plugin.program import ExecutedNode
from hetero.devices.request.runtime_model import RUNTIME_DOMAIN, runtime_model
from tests.support.graphs import build

MODEL = build(
    "a: v = Neg(x)\nb: w = Abs(v)\nc: u = Exp(k)\nd: y = Add(w, u)\ne: z = Neg(w)",
    outputs="y z",
    constants="k",
)


def executed(name: str, *originals: str, order: int = 0) -> ExecutedNode:
    return ExecutedNode(name, f"Fused{len(originals)}", order, "kernel", originals)


def rows(model: Model) -> list[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]]:
    return [(n.name, tuple(n.inputs), tuple(n.outputs), tuple(n.covers)) for n in model.nodes]


def test_fused_nodes_show_outer_values_alone():
    plan = [executed("ab", "a", "b"), executed("d", "d"), executed("e", "e", order=7)]
    result = runtime_model(MODEL, [plan], {"ab": 0.0025})
    # `c` was folded: it is listed with its reader.
    assert rows(result) == [
        ("ab", ("x",), ("w",), ("a", "b")),
        ("d", ("w",), ("y",), ("c", "d")),
        ("e", ("w",), ("z",), ("e",)),
    ]
    assert [n.op_type for n in result.nodes] == ["Fused2", "Fused1", "Fused1"]
    assert {n.domain for n in result.nodes} == {RUNTIME_DOMAIN}
    assert result.nodes[0].metadata["execTimeMcs"] == "2500.000"
    assert result.nodes[1].metadata["execTimeMcs"] == "not_executed"
    assert result.nodes[2].metadata["execOrder"] == "7"
    assert result.nodes[1].metadata["originalLayersNames"] == "c,d"
    assert result.nodes[1].metadata["implType"] == "kernel"


def test_value_that_another_node_reads_leaves_its_node():
    plan = [executed("abd", "a", "b", "d"), executed("e", "e")]
    assert rows(runtime_model(MODEL, [plan], {}))[0] == (
        "abd",
        ("x",),
        ("w", "y"),
        ("a", "b", "c", "d"),
    )


def test_added_and_unknown_nodes_have_no_values():
    plan = [executed("layout"), executed("all", "a", "b", "c", "d", "e", "unknown")]
    assert rows(runtime_model(MODEL, [plan], {})) == [
        ("layout", (), (), ("layout",)),
        ("all", ("x",), ("y", "z"), ("a", "b", "c", "d", "e")),
    ]


def test_node_that_nothing_outside_reads_shows_its_first_value():
    model = build("a: v = Neg(x)\nb: w = Abs(x)", outputs="w")
    assert rows(runtime_model(model, [[executed("a", "a"), executed("b", "b")]], {})) == [
        ("a", ("x",), ("v",), ("a",)),
        ("b", ("x",), ("w",), ("b",)),
    ]


def test_replicas_are_parallel_and_shared_nodes_occur_once():
    plans = [[executed("one", "a", "b")], [executed("two", "a", "b")], [executed("one", "a", "b")]]
    assert [n.name for n in runtime_model(MODEL, plans, {}).nodes] == ["one", "two"]


def test_value_of_eliminated_node_comes_from_its_reader():
    plan = [executed("b", "b"), executed("e", "e")]
    assert rows(runtime_model(MODEL, [plan], {})) == [
        ("b", ("x",), ("w",), ("a", "b")),
        ("e", ("w",), ("z",), ("e",)),
    ]
