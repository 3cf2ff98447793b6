"""Queries about single nodes: each node once, crashes, and the limits of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np
import onnx.parser
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from hetero.devices.model.reader import read_model
from hetero.devices.model.worker_process import WorkerFailure
from hetero.devices.plugin import node_queries
from hetero.devices.plugin.node_queries import (
    CachedQuery,
    NodeQuery,
    QueryProcess,
    Verdict,
    single_node_model,
)
from hetero.devices.plugin.support import Refusal
from tests.support.graphs import build

QUERIES = [NodeQuery(f"Op{i}", bytes([i]), 10 * i) for i in range(4)]
CRASH = WorkerFailure("signal 11")


def verdict_function(queries: Any, target: Any) -> list[Verdict]:
    raise AssertionError("called in the worker only")


class Worker:
    """Worker that crashes for some operators and refuses others."""

    def __init__(self, crashes: str = "", refuses: str = "") -> None:
        self.crashes, self.refuses = crashes.split(), refuses.split()
        self.calls: list[tuple[list[str], dict[str, int]]] = []

    def call(self, request: bytes, **limits: int) -> Any:
        module, function, (queries, target) = msgpack.unpackb(request)
        assert (module, function, target) == (__name__, "verdict_function", "device")
        names = [query[0] for query in queries]
        self.calls.append((names, limits))
        if any(name in self.crashes for name in names):
            return CRASH
        verdicts = [["opset", "old", ""] if n in self.refuses else None for n in names]
        return msgpack.packb(verdicts)


def ask(worker: Worker, queries: Sequence[NodeQuery] = QUERIES) -> list[Verdict]:
    process = QueryProcess("Vendor", verdict_function)
    process._worker = worker  # type: ignore[assignment]
    return process.verdicts(queries, "device")


def crash_of(name: str) -> Refusal:
    return Refusal("no_kernel", f"Vendor crashed in a query of {name}: signal 11")


def test_one_call_queries_all_nodes_within_limits():
    worker = Worker(refuses="Op2")
    assert ask(worker) == [None, None, Refusal("opset", "old"), None]
    ((names, limits),) = worker.calls
    assert names == ["Op0", "Op1", "Op2", "Op3"]
    assert limits == {"memory_nbytes": 2**32 + 2 * 60, "time_s": 20 + 4 * 0.5}
    assert ask(worker, []) == []
    assert len(worker.calls) == 1


def test_crash_refuses_its_node_alone():
    worker = Worker(crashes="Op1", refuses="Op3")
    assert ask(worker) == [None, crash_of("Op1"), None, Refusal("opset", "old")]
    assert [names for names, _ in worker.calls[1:]] == [["Op0"], ["Op1"], ["Op2"], ["Op3"]]
    assert worker.calls[3][1] == {"memory_nbytes": 2**32 + 2 * 20, "time_s": 20.5}


def test_crash_of_a_single_node_is_not_repeated():
    worker = Worker(crashes="Op0")
    assert ask(worker, QUERIES[:1]) == [crash_of("Op0")]
    assert len(worker.calls) == 1


def test_many_crashes_end_the_queries(monkeypatch):
    monkeypatch.setattr(node_queries, "_MAX_CRASHES", 2)
    worker = Worker(crashes="Op0 Op1")
    assert ask(worker) == [crash_of(f"Op{i}") for i in range(4)]
    assert [names for names, _ in worker.calls[1:]] == [["Op0"], ["Op1"]]


def test_failed_call_is_returned():
    process = QueryProcess("Vendor", verdict_function)
    process._worker = Worker(crashes="Op0")  # type: ignore[assignment]
    assert process.call(verdict_function, QUERIES[:1], "device") is CRASH


class Queries:
    """Queries that record what they are asked."""

    def __init__(self, is_visible: bool = True) -> None:
        self.asked: list[tuple[list[str], str]] = []
        self.cache: CachedQuery[str] = CachedQuery(
            lambda constant, node: is_visible,
            lambda node, model, target: NodeQuery(
                node.op_type,
                single_node_model(
                    node, model, lambda c: is_visible, lambda spec: spec
                ).SerializeToString(deterministic=True),
                0,
            ),
            self.run,
        )

    def run(self, queries: Sequence[NodeQuery], target: str) -> list[Verdict]:
        self.asked.append(([query.op_type for query in queries], target))
        results = {"Abs": Refusal("no_kernel", "no Abs"), "Neg": f"note of {target}"}
        return [results.get(query.op_type) for query in queries]


MODEL = build(
    "a: v = Add(x, c)\nb: w = Neg(v)\nd: u = Neg(w)\ne: t = Abs(u)\nf: y = Add(t, k)",
    outputs="y",
    constants="c k",
)


def test_equal_nodes_are_queried_once():
    queries = Queries(is_visible=False)
    verdicts = queries.cache.verdicts(MODEL.nodes, MODEL, "one")
    assert verdicts == {
        "b": "note of one",
        "d": "note of one",
        "e": Refusal("no_kernel", "no Abs"),
    }
    assert queries.asked == [(["Add", "Neg", "Abs"], "one")]
    assert queries.cache.verdicts(MODEL.nodes[1:3], MODEL, "one") == dict.fromkeys(
        "bd", "note of one"
    )
    assert queries.asked[1:] == [([], "one")]
    assert queries.cache.verdicts(MODEL.nodes[1:2], MODEL, "two") == {"b": "note of two"}
    assert queries.asked[2:] == [(["Neg"], "two")]


def test_visible_constants_are_part_of_the_query():
    queries = Queries(is_visible=True)
    queries.cache.verdicts(MODEL.nodes, MODEL, "one")
    assert queries.asked == [(["Add", "Neg", "Abs", "Add"], "one")]


def test_types_attributes_and_opset_are_part_of_the_query():
    queries = Queries()
    queries.cache.verdicts(MODEL.nodes, MODEL, "one")
    header = type(MODEL.header)()
    header.CopyFrom(MODEL.header)
    header.opset_import[0].version -= 1
    older = MODEL.replace(header=header)
    queries.cache.verdicts(older.nodes[1:2], older, "one")
    port = MODEL.inputs[0]
    wider = MODEL.replace(inputs=[type(port)("x", port.type, (1, 3))])
    queries.cache.verdicts(wider.nodes[1:2], wider, "one")
    assert queries.asked[1:] == [(["Neg"], "one"), (["Neg"], "one")]


def test_full_cache_is_cleared(monkeypatch):
    monkeypatch.setattr(node_queries, "_MAX_VERDICTS", 1)
    queries = Queries()
    for _ in range(2):
        assert queries.cache.verdicts(MODEL.nodes[1:2], MODEL, "one") == {"b": "note of one"}
    assert [names for names, _ in queries.asked] == [["Neg"], ["Neg"]]


def test_model_of_one_node_is_valid_and_anonymous():
    first, second = (
        single_node_model(MODEL.nodes[i], MODEL, lambda c: False, lambda spec: spec) for i in (1, 2)
    )
    assert first == second
    node = first.graph.node[0]
    assert (node.name, list(node.input), list(node.output)) == ("node", ["v0"], ["v1"])
    visible = single_node_model(MODEL.nodes[0], MODEL, lambda c: True, lambda spec: spec)
    assert [t.name for t in visible.graph.initializer] == ["v1"]
    assert [p.name for p in visible.graph.input] == ["v0"]
    hidden = single_node_model(MODEL.nodes[0], MODEL, lambda c: False, lambda spec: spec)
    assert not hidden.graph.initializer
    assert [p.name for p in hidden.graph.input] == ["v0", "v1"]
    assert [p.name for p in hidden.graph.output] == ["v2"]


def test_model_of_one_node_omits_absent_inputs_and_outputs():
    node = helper.make_node(
        "LSTM", ["x", "w", "r", "", "", "h"], ["", "", "c"], name="lstm", hidden_size=3
    )
    shapes = {"x": (1, 1, 2), "w": (1, 12, 2), "r": (1, 12, 3), "h": (1, 1, 3)}
    inputs = [helper.make_tensor_value_info(n, 1, shape) for n, shape in shapes.items()]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("c", 1, None)])
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    copy = single_node_model(model.nodes[0], model, lambda c: False, lambda spec: spec).graph
    assert list(copy.node[0].input) == ["v0", "v1", "v2", "", "", "v3"]
    assert list(copy.node[0].output) == ["", "", "v4"]
    assert [port.name for port in (*copy.input, *copy.output)] == ["v0", "v1", "v2", "v3", "v4"]


def test_model_of_one_node_has_the_functions_that_it_calls():
    model = read_model(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[2] x) => (float[2] y) '
            "{ h = own.F(x) y = Neg(h) } "
            '<domain: "own", opset_import: ["": 17]> F (a) => (b) { b = Sin(a) }'
        )
    )
    calling, other = (
        single_node_model(node, model, lambda c: False, lambda spec: spec) for node in model.nodes
    )
    feeds = {"v0": np.ones(2, np.float32)}
    np.testing.assert_allclose(ReferenceEvaluator(calling).run(None, feeds)[0], np.sin([1, 1]))
    assert not other.functions


@pytest.mark.parametrize(("is_visible", "count"), [(True, 2), (False, 1)])
def test_contents_of_constants_count_if_they_are_visible(is_visible, count):
    queries = Queries(is_visible)
    for constants in ("c k", "k c"):  # the contents depend on the position
        model = build("a: v = Add(x, c)\nf: y = Add(v, k)", outputs="y", constants=constants)
        queries.cache.verdicts(model.nodes[:1], model, "one")
    assert sum(len(names) for names, _ in queries.asked) == count
