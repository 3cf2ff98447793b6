"""Partitions of small graphs: OpenVINO's test cases, and edge cases of ONNX."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass

import onnx
import pytest

from hetero.affinity.affinity import Affinity
from hetero.devices.errors import AffinityError, ModelError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.partition.partition import Partition, PlacedPartition, Subgraph, partition
from hetero.scheduler.types.plan import Wire
from tests.support.graphs import build, evaluate, feeds
from tests.support.merge import merge
from tests.support.partitions import bits, check_merge, check_rules, run_split
from tests.support.rows import for_each_row


@dataclass(frozen=True)
class Case:
    """A graph, the device of each of its lines, and the expected partition.

    `subgraphs`, `wires` (producer, consumer) and `constants` (per subgraph in topological order)
    are those of OpenVINO's unit tests for its subgraph collector, or fewer if hetero needs fewer.
    """

    lines: str
    devices: str
    subgraphs: int
    wires: tuple[tuple[int, int], ...] = ()
    constants: tuple[int, ...] = ()
    inputs: str = "p"
    outputs: str = "z"
    shared: str = ""


CASES = {
    "linear": Case(
        """add: a = Add(p, c)
           sub: s = Sub(a, c)
           end: z = Abs(s)""",
        "A B A",
        3,
        ((0, 1), (1, 2)),
        (1, 1, 0),
        shared="c",
    ),
    "diamond with a cycle": Case(
        """add1: a1 = Add(p, c)
           add2: a2 = Add(a1, c)
           sub: s = Sub(a2, a2)
           add3: z = Add(a1, s)""",
        "A A B A",
        3,
        ((0, 1), (0, 2), (1, 2)),
        (1, 0, 0),
        shared="c",
    ),
    "nested cycle": Case(
        """a1: v1 = Add(p, c)
           b1: v2 = Add(v1, c)
           a2: v3 = Add(v2, c)
           b2: v4 = Add(v3, c)
           a3: v5 = Add(v4, v1)
           a4: z = Add(v5, c)""",
        "A B A B A A",
        5,
        ((0, 1), (1, 2), (2, 3), (3, 4), (0, 4)),
        (1, 1, 1, 1, 1),
        shared="c",
    ),
    "unused input (3 in OpenVINO)": Case(
        """add1: a = Abs(p)
           add2: z = Neg(a)""",
        "A B",
        2,
        ((0, 1),),
        inputs="p p2",
    ),
    "all the same": Case(
        """n1: a = Abs(p)
           n2: b = Neg(a)
           n3: z = Tanh(b)""",
        "A A A",
        1,
    ),
    "all different": Case(
        """n1: a = Abs(p)
           n2: b = Neg(a)
           n3: c = Tanh(b)
           n4: z = Abs(c)""",
        "A B C D",
        4,
        ((0, 1), (1, 2), (2, 3)),
    ),
    "an output follows its producer": Case("n1: z = Abs(p)", "A", 1),
    "alternating": Case(
        """n1: a = Abs(p)
           n2: b = Neg(a)
           n3: c = Tanh(b)
           n4: z = Abs(c)""",
        "A B A B",
        4,
        ((0, 1), (1, 2), (2, 3)),
    ),
    "two separate paths (2 in OpenVINO)": Case(
        """n1: y = Abs(p)
           n2: z = Neg(q)""",
        "A A",
        1,
        inputs="p q",
        outputs="y z",
    ),
    "one producer and two consumers": Case(
        """n1: a = Abs(p)
           n2: y = Neg(a)
           n3: z = Tanh(a)""",
        "A A A",
        1,
        outputs="y z",
    ),
    "shared constant as an indirect bridge, with a cycle": Case(
        """A: a = Add(p, c)
           B: b = Abs(a)
           C: z = Add(b, s)
           X: y = Add(a, s)""",
        "A B A A",
        3,
        ((0, 1), (1, 2)),
        (2, 0, 1),
        outputs="y z",
        shared="c s",
    ),
    "shared constant over two devices": Case(
        """A: a = Add(p, s)
           B: b = Add(a, s)
           C: z = Add(b, s)""",
        "A B A",
        3,
        ((0, 1), (1, 2)),
        (1, 1, 1),
        shared="s",
    ),
    "shared constant as the cycle's source (4 in OpenVINO)": Case(
        """A: a = Abs(p)
           B: b = Add(a, s)
           X: x = Neg(s)
           C: z = Add(b, x)""",
        "A B A A",
        3,
        ((0, 1), (1, 2)),
        (0, 1, 1),
        shared="s",
    ),
    "shared constant, no cycle": Case(
        """A: a = Add(p, s)
           X: y = Neg(s)
           B: z = Abs(a)""",
        "A A B",
        2,
        ((0, 1),),
        (1, 0),
        outputs="y z",
        shared="s",
    ),
    "indirect bridge, no cycle": Case(
        """A: a = Add(p, c)
           B: z = Abs(a)
           C: y = Add(a, s)
           X: x = Add(a, s)""",
        "A B A A",
        2,
        ((0, 1),),
        (2, 0),
        outputs="x y z",
        shared="c s",
    ),
    "several shared constants, one of them in a cycle": Case(
        """A: a = Add(p, c2)
           X: y = Add(a, c1)
           W: w = Add(a, c2)
           B: b = Abs(a)
           C: z = Add(b, c1)""",
        "A A A B A",
        3,
        ((0, 1), (1, 2)),
        (2, 0, 1),
        outputs="w y z",
        shared="c1 c2",
    ),
    "bridges over a constant and an input": Case(
        """A: a = Add(p, s)
           B: b = Abs(a)
           C: c = Add(b, s)
           D: z = Add(c, p)""",
        "A B A B",
        4,
        ((0, 1), (1, 2), (2, 3)),
        (1, 0, 1, 0),
        shared="s",
    ),
    "constants follow their consumers": Case(
        """t: a = Add(p, c1)
           r: b = Add(a, c2)
           g: z = Add(b, c3)""",
        "B B B",
        1,
        (),
        (3,),
        shared="c1 c2 c3",
    ),
}


@for_each_row("name", CASES)
@for_each_row("kind", ["constants", "literals"])
def test_partition_of_openvino_collector_cases(name, kind):
    case = CASES[name]
    model = build(case.lines, inputs=case.inputs, outputs=case.outputs, **{kind: case.shared})
    affinity = dict.fromkeys(model.node_names, "A")  # literals follow their readers
    names = [n.name for n in model.nodes if not n.is_constant]
    affinity |= zip(names, case.devices.split(), strict=True)
    part = partition(model, affinity)
    assert len(part.subgraphs) == case.subgraphs
    assert {(w.producer, w.consumer) for w in part.wires} == set(case.wires)
    if case.constants:
        constant_counts = [
            len(s.model.constants) + sum(n.is_constant for n in s.model.nodes)
            for s in part.subgraphs
        ]
        assert tuple(constant_counts) == case.constants
    check_rules(part, model, affinity)
    check_merge(model, part)
    assert bits(run_split(part, feeds(model))) == bits(evaluate(model, feeds(model)))


def test_partition_of_three_nodes_in_full():
    model = build("n1: a = Abs(x)\n n2: y = Neg(a)\n n3: z = Add(a, x)", outputs="y z")
    part = partition(model, {"n1": "CPU", "n2": "ORT", "n3": "ORT"})
    assert part.subgraphs == (
        Subgraph(0, "CPU", ("x",), ("a",), ("n1",), model, (0,)),
        Subgraph(1, "ORT", ("a", "x"), ("y", "z"), ("n2", "n3"), model, (1, 2)),
    )
    assert part.wires == (Wire("a", 0, 1),)
    assert part.plan.consumers["x"] == (0, 1)
    assert part.plan.producers == {"a": 0, "y": 1, "z": 1}
    assert part.subgraph_of == {"n1": 0, "n2": 1, "n3": 1}
    with pytest.raises(FrozenInstanceError):
        part.subgraphs = ()  # type: ignore[misc]  the test expects this error


def test_partition_outputs_without_producer():
    model = build("n1: y = Abs(x)", outputs="y x w k y", constants="w", literals="k")
    affinity = {"n1": "CPU", "make_k": "ORT"}
    part = partition(model, affinity)
    assert part.plan.passthrough == ("x",)
    assert part.plan.constant_outputs == ("w",)
    producers = [part.plan.producers.get(port.name) for port in part.plan.outputs]
    devices = [None if i is None else part.subgraphs[i].device for i in producers]
    assert devices == ["CPU", None, None, "ORT", "CPU"]
    check_rules(part, model, affinity)
    check_merge(model, part)
    assert bits(run_split(part, feeds(model))) == bits(evaluate(model, feeds(model)))


def test_partition_computed_weights_join_their_only_reader():
    model = build(
        """dq1: d1 = Neg(w)
           dq2: d2 = Abs(d1)
           n1: a = Abs(x)
           n2: b = Neg(a)
           n3: c = Add(b, d2)
           n4: d = Neg(c)
           n5: z = Add(d, a)""",
        outputs="z",
        constants="w",
    )
    affinity = dict.fromkeys(model.node_names, "A") | {"n2": "B", "n4": "B"}
    part = partition(model, affinity)
    assert [s.node_names for s in part.subgraphs] == [
        ("n1",),
        ("n2",),
        ("dq1", "dq2", "n3"),
        ("n4",),
        ("n5",),
    ]
    check_rules(part, model, affinity)


def test_partition_weights_that_several_subgraphs_read_are_separate():
    model = build(
        """dq1: d1 = Neg(w)
           dq2: d2 = Abs(d1)
           alone: d3 = Neg(w)
           n1: a = Abs(x)
           n2: b = Neg(a)
           n3: c = Add(b, d2)
           n4: d = Neg(c)
           n5: y = Add(d, d2)
           n6: z = Add(y, d3)""",
        outputs="z",
        constants="w",
    )
    affinity = dict.fromkeys(model.node_names, "A") | {"n2": "B", "n4": "B", "alone": "B"}
    part = partition(model, affinity)
    names = [s.node_names for s in part.subgraphs]
    assert {("dq1", "dq2"), ("alone",)} == set(names[:2])
    assert names[2:] == [("n1",), ("n2",), ("n3",), ("n4",), ("n5", "n6")]
    assert not part.subgraphs[0].inputs
    assert not part.subgraphs[1].inputs
    check_rules(part, model, affinity)


def test_partition_literal_that_is_also_an_output():
    model = build("n1: a = Add(x, k)\n n2: y = Add(a, k)", outputs="y k", literals="k")
    part = partition(model, {"n1": "CPU", "n2": "ORT"})
    assert [s.node_names for s in part.subgraphs] == [("make_k", "n1"), ("n2",)]
    assert [s.outputs for s in part.subgraphs] == [("k", "a"), ("y",)]
    assert [s.model.node_names for s in part.subgraphs] == [("make_k", "n1"), ("make_k", "n2")]


@pytest.mark.parametrize(("outputs", "constants"), [("x", ""), ("w", "w"), ("x w x", "w")])
def test_partition_model_without_nodes(outputs, constants):
    model = build("", outputs=outputs, constants=constants)
    part = partition(model, {})
    assert part.subgraphs == part.wires == ()
    assert [port.name for port in part.plan.inputs] == ["x"]
    check_merge(model, part)


def test_partition_unread_subgraph_has_an_output():
    model = build("n1: y = Abs(x)\n dead: d = Neg(y)\n dead2: e = Tanh(d)", outputs="y")
    part = partition(model, {"n1": "CPU", "dead": "ORT", "dead2": "ORT"})
    assert part.subgraphs[1].outputs == ("e",)
    assert len(evaluate(part.subgraphs[1].model, feeds(part.subgraphs[1].model))) == 1
    check_merge(model, part)


def parse_graph(graph: str, *, functions: str = "") -> Model:
    """Return the model of a graph in ONNX's text format."""
    domains = '"": 21, "acme": 1, "ai.onnx.ml": 3'
    text = f"<ir_version: 10, opset_import: [{domains}]> {graph} {functions}"
    return read_model(onnx.parser.parse_model(text))


def test_partition_optional_tensor_crosses():
    model = parse_graph(
        """g (float[3] x) => (float[3] y)
        { [wrap] o = Optional(x) [take] y = OptionalGetElement(o) }"""
    )
    part = partition(model, {"wrap": "CPU", "take": "ORT"})
    assert part.subgraphs[1].model.inputs[0].type == "optional(tensor(float))"
    for s in part.subgraphs:
        onnx.checker.check_model(s.model.to_proto(), full_check=True)


def loop_model(is_growing: bool) -> Model:
    """Return a model with a loop over a vector that keeps its size, or doubles it."""
    step = "Concat <axis = 0> (s, s)" if is_growing else "Add(s, x)"
    return parse_graph(
        f"""g (float[3] x) => (float[n] y, float[n] z) <int64 trips = {{2}}>
        {{
            [loop] last, sums = Loop(trips, , x) <body = body
                (int64 i, bool go, float[] s) => (bool done, float[] t, float[] sum)
                {{ t = {step} done = Identity(go) sum = ReduceSum <keepdims = 0> (t) }}>
            [abs] y = Abs(last)
            [neg] z = Neg(sums)
        }}"""
    )


@pytest.mark.parametrize(("is_growing", "shape"), [(False, (3,)), (True, (None,))])
def test_partition_loop_outputs_cross_with_inferred_shapes(is_growing, shape):
    model = loop_model(is_growing)
    part = partition(model, {"loop": "CPU", "abs": "ORT", "neg": "ORT"})
    input_shapes = [port.shape for port in part.subgraphs[1].model.inputs]
    assert input_shapes == [shape, (None,)]
    for s in part.subgraphs:
        onnx.checker.check_model(s.model.to_proto(), full_check=True)
    assert bits(run_split(part, feeds(model))) == bits(evaluate(model, feeds(model)))


def test_partition_crossing_tensor_of_unknown_type_raises():
    nodes = "{ [magic] m = acme.Magic(x) [abs] y = Abs(m) }"
    model = parse_graph(f"g (float[3] x) => (float[3] y) {nodes}")
    with pytest.raises(AffinityError, match=r"'m'.*'magic' \(Magic\)") as error:
        partition(model, {"magic": "CPU", "abs": "ORT"})
    assert error.value.data["tensors"] == ("m",)
    assert len(partition(model, {"magic": "CPU", "abs": "CPU"}).subgraphs) == 1
    typed = parse_graph(f"g (float[3] x) => (float[3] y) <float[3] m> {nodes}")
    assert len(partition(typed, {"magic": "CPU", "abs": "ORT"}).subgraphs) == 2


def test_partition_incomplete_or_unknown_affinity_raises():
    model = build("conv1: a = Abs(x)\n conv2: y = Neg(a)", outputs="y")
    with pytest.raises(AffinityError, match="1 of 2 nodes have no affinity: 'conv2'") as missing:
        partition(model, {"conv1": "CPU"})
    assert missing.value.nodes == ("conv2",)
    with pytest.raises(AffinityError, match=r"'conv3'.*Close matches for 'conv3': 'conv") as error:
        partition(model, {"conv1": "CPU", "conv2": "CPU", "conv3": "CPU"})
    assert error.value.nodes == ("conv3",)


def two_subgraphs() -> tuple[Model, Partition]:
    model = build("n1: a = Add(x, w)\n n2: y = Neg(a)", outputs="y", constants="w")
    return model, partition(model, {"n1": "CPU", "n2": "ORT"})


def test_merge_foreign_models_raise():
    model, part = two_subgraphs()
    first, second = (s.model for s in part.subgraphs)
    with pytest.raises(ModelError, match="1 models for 2 subgraphs"):
        merge(part, [first])
    with pytest.raises(ModelError, match=r"subgraph 0 \(CPU\).*ports are \['a'\] -> \['y'\]"):
        merge(part, [second, first])
    renamed = onnx.NodeProto()
    renamed.CopyFrom(second.nodes[0].proto)
    renamed.name = "other"
    changed = second.replace(nodes=[type(second.nodes[0]).from_proto(renamed)])
    with pytest.raises(ModelError, match="node 'other' is not in the whole model"):
        merge(part, [first, changed])
    assert merge(part).constants["w"].digest == model.constants["w"].digest


def test_subgraphs_share_weight_arrays():
    model = build("n1: a = Add(x, w)\n n2: y = Add(a, w)", outputs="y", constants="w")
    part = partition(model, {"n1": "CPU", "n2": "ORT"})
    arrays = [s.model.constants["w"].array for s in part.subgraphs]
    assert arrays[0] is arrays[1] is model.constants["w"].array


def test_subgraphs_contain_model_functions():
    model = parse_graph(
        """g (float[3] x) => (float[3] y)
        { [first] m = acme.Twice(x) [second] y = acme.Twice(m) }""",
        functions='<domain: "acme", opset_import: ["": 21]> Twice (a) => (b) { b = Add(a, a) }',
    )
    affinity = {"first": "CPU", "second": "ORT"}
    part = partition(model, affinity)
    check_rules(part, model, affinity)
    check_merge(model, part)
    assert bits(run_split(part, feeds(model))) == bits(evaluate(model, feeds(model)))


def test_partition_sequence_of_maps_crosses():
    kind = "seq(map(int64, float))"
    model = parse_graph(
        f"""g (float[1, 3] x) => ({kind} y) <{kind} z>
        {{ [zip] z = ai.onnx.ml.ZipMap <classlabels_int64s = [1, 2, 3]> (x)
           [same] y = Identity(z) }}"""
    )
    part = partition(model, {"zip": "CPU", "same": "ORT"})
    assert part.subgraphs[1].model.inputs[0].type == "seq(map(int64,tensor(float)))"
    for s in part.subgraphs:
        onnx.checker.check_model(s.model.to_proto())


@pytest.mark.parametrize(
    ("nodes", "draws"), [("r = RandomNormalLike(x)", True), ("r = Neg(x)", False)]
)
def test_partition_notes_whether_a_node_draws(nodes, draws):
    model = parse_graph(f"g (float[2] x) => (float[2] y) {{ {nodes} y = Abs(r) }}")
    part = partition(model, dict.fromkeys(model.node_names, "A"))
    assert (part.draws, part.plan.draws) == (draws, draws)
    assert not Partition(model, ()).draws


def test_partitions_of_equal_models_are_equal():
    first, second = (build("n1: a = Abs(x)\n n2: y = Neg(a)", outputs="y") for _ in range(2))
    affinity = Affinity({"n1": "A", "n2": "B"}, {})
    parts = [partition(model, affinity) for model in (first, second)]
    assert parts[0] == parts[1]
    assert partition(first, {"n1": "A", "n2": "C"}) != parts[0]
    placements = [PlacedPartition(part, affinity, report=object()) for part in parts]
    assert placements[0] == placements[1]
    assert "Model" not in repr(parts[0])
    assert "report" not in repr(placements[0])


@pytest.mark.parametrize(("operator", "outputs"), [("acme.Unknown", ()), ("Tanh", ("d",))])
def test_unread_result_of_unknown_type_is_no_output(operator, outputs):
    model = parse_graph(f"g (float[2] x) => (float[2] y) {{ y = Abs(x) [dead] d = {operator}(y) }}")
    part = partition(model, dict.fromkeys(model.node_names, "A") | {"dead": "B"})
    assert [s.outputs for s in part.subgraphs] == [("y",), outputs]
