"""Comparison of two devices: it finds the first wrong node of a faulty device."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import hetero
from hetero.comparison.compare import _Search, compare
from hetero.devices import Config, Model, Node, Plugin, Program, Refusal, RunContext, Value
from hetero.devices.errors import AffinityError, DeviceError, UnsupportedNodesError
from hetero.verify.difference import differences_of
from tests.support.core_fixtures import core_fixture
from tests.support.custom_operators import squeak

OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Sub": np.subtract,
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "Sqrt": np.sqrt,
    "Split": lambda x: np.split(x, 2),
}


class WrongProgram(Program):
    """Computes with numpy; the prefix of a node's name selects its fault."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        values = {name: weight.array for name, weight in self.model.constants.items()}
        values |= {port.name: value for port, value in zip(self.model.inputs, inputs, strict=True)}
        names = self.model.node_names
        for node in self.model.nodes:
            with np.errstate(invalid="ignore"):
                result = OPERATORS[node.op_type](*(values[name] for name in node.inputs))
            results = [np.array(r) for r in (result if isinstance(result, list) else [result])]
            if node.name.startswith("off"):
                results[-1] += np.float32(0.5)
            elif node.name.startswith("nan"):
                results[0].flat[2] = np.nan
            elif node.name.startswith("fused") and names.index(node.name) > 0:
                results[0] += np.float32(0.5)
            values |= zip(node.outputs, results, strict=True)
        return [values[port.name] for port in self.model.outputs]


class WrongPlugin(Plugin):
    name: ClassVar[str] = "WRONG"

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        if node.op_type not in OPERATORS:
            return Refusal("no_kernel", f"WRONG has no {node.op_type}")
        return None

    def compile(self, model: Model, config: Config) -> Program:
        return WrongProgram(model)


core = core_fixture("module", plugins=[WrongPlugin])


def graph(*lines: str, size: int = 4, outputs: str = "y") -> onnx.ModelProto:
    """Build a model from lines ``name: a, b = Op(c, d)`` over an input x of `size` floats."""
    body = "\n".join(re.sub("^(.*?): ", r"[\1] ", line) for line in lines)
    ports = ", ".join(f"float[] {name}" for name in outputs.split(", "))
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        compared (float[{size}] x) => ({ports}) {{ {body.replace("Split(", "Split<axis=0>(")} }}"""
    )


X = {"x": np.array([-1.0, 0.25, 2.0, 3.0], np.float32)}


def test_agreeing_devices_have_no_node(core):
    model = graph("a: p = Tanh(x)", "b: y = Add(p, x)")
    comparison = compare(core, model, ("CPU", "WRONG"), X)
    assert comparison.agrees
    assert (comparison.node, comparison.runs, comparison.values) == (None, 0, ())
    assert comparison.outputs[0].max_abs < 1e-6
    assert comparison.sentence().startswith("CPU and WRONG agree: largest difference ")


def test_wrong_node_is_named_with_its_differences(core):
    model = graph(
        "a: p = Tanh(x)",
        "b: q = Neg(x)",
        "off: r = Mul(p, q)",
        "c: s = Add(r, q)",
        "d: t = Sub(s, p)",
        "e: y = Tanh(t)",
    )
    comparison = compare(core, model, ("CPU", "WRONG"), X)
    assert not comparison.agrees
    assert (comparison.node, comparison.op_type, comparison.suspects) == ("off", "Mul", ("off",))
    (value,) = comparison.values
    assert (value.name, value.differing, value.size) == ("r", 4, 4)
    assert value.max_abs == pytest.approx(0.5, abs=1e-6)
    x = X["x"].astype(np.float64)
    expected = np.tanh(x) * -x
    assert value.max_rel == pytest.approx(np.max(0.5 / np.abs(expected)), rel=1e-5)
    worst = int(np.argmin(np.abs(expected)))
    assert value.position == (worst,)
    assert value.values == pytest.approx((expected[worst], expected[worst] + 0.5), abs=1e-6)
    assert comparison.alone is not None
    assert [d.agrees for d in comparison.alone] == [False]
    assert comparison.sentence() == (
        "CPU and WRONG differ in 1 of 1 outputs; first at node 'off' (Mul), also when it runs alone"
    )


def test_first_of_several_wrong_nodes_is_named(core):
    lines = ["n0: v0 = Tanh(x)"]
    for i in range(1, 12):
        lines.append(f"{'off' if i in (4, 7, 9) else 'n'}{i}: v{i} = Add(v{i - 1}, v{i - 1})")
    comparison = compare(core, graph(*lines, outputs="v11"), ("CPU", "WRONG"), X)
    assert comparison.node == "off4"
    # A binary search over 12 nodes needs the whole model and at most three prefixes.
    assert comparison.runs <= 4


def test_node_with_one_wrong_output_is_found(core):
    model = graph("off: p, q = Split(x)", "a: y = Neg(p)", "b: z = Neg(q)", outputs="y, z")
    comparison = compare(core, model, ("CPU", "WRONG"), X)
    assert comparison.node == "off"
    assert [d.name for d in comparison.values] == ["q"]
    assert [d.agrees for d in comparison.outputs] == [True, False]
    assert "differ in 1 of 2 outputs" in comparison.sentence()


def test_nan_on_one_device_is_a_difference(core):
    model = graph("a: p = Tanh(x)", "nan: q = Neg(p)", "b: y = Add(q, q)")
    comparison = compare(core, model, ("CPU", "WRONG"), X)
    assert comparison.node == "nan"
    assert comparison.values[0].nans == (0, 1)
    assert comparison.values[0].position == (2,)
    assert comparison.values[0].max_abs < 1e-6


def test_nan_on_both_devices_agrees(core):
    comparison = compare(core, graph("a: y = Sqrt(x)"), ("CPU", "WRONG"), X)
    assert comparison.outputs[0].nans == (1, 1)
    assert comparison.agrees


def test_difference_that_reaches_no_output_is_ignored(core):
    offset = np.full(4, -100, np.float32)
    model = graph("off: p = Tanh(x)", "a: q = Add(p, w)", "b: y = Relu(q)")
    model.graph.initializer.append(numpy_helper.from_array(offset, "w"))
    assert compare(core, model, ("CPU", "WRONG"), X).agrees


def test_node_that_agrees_alone_is_reported(core):
    model = graph("a: p = Tanh(x)", "fused: q = Neg(p)", "b: y = Add(q, q)")
    comparison = compare(core, model, ("CPU", "WRONG"), X)
    assert comparison.node == "fused"
    assert comparison.alone is not None
    assert [d.agrees for d in comparison.alone] == [True]
    assert "alone it agrees" in comparison.sentence()


@pytest.mark.parametrize("devices", [("CPU", "HETERO:WRONG,CPU"), ("HETERO:WRONG,CPU", "CPU")])
def test_device_list_is_compared_with_its_pins(core, devices):
    model = graph("a: p = Tanh(x)", "off: q = Neg(p)", "b: r = Neg(q)", "off2: y = Add(r, x)")
    comparison = compare(core, model, devices, X, affinity={"off2": "CPU"})
    assert (comparison.agrees, comparison.node) == (False, "off")
    pins = {"off*": "CPU"}
    assert compare(core, model, devices, X, affinity=pins).agrees
    with pytest.raises(AffinityError, match="pins need a device list"):
        compare(core, model, ("CPU", "WRONG"), X, affinity=pins)


def test_tolerances_decide(core):
    model = graph("off: y = Tanh(x)")
    assert not compare(core, model, ("CPU", "WRONG"), X, atol=0.49).agrees
    assert compare(core, model, ("CPU", "WRONG"), X, atol=0.51).agrees


@pytest.mark.parametrize("seed", range(6))
def test_wrong_node_of_random_graphs_is_found(core, seed):
    rng = random.Random(seed)
    count, wrong_index = 24, rng.randrange(24)
    # Every value reaches the output, and no operator hides a difference of 0.5.
    lines, values = [], ["x"]
    for i in range(count):
        a, b = values[-1], rng.choice(values[:4])
        call = rng.choice([f"Add({a}, {b})", f"Sub({a}, x)", f"Add({a}, x)"])
        lines.append(f"{'off' if i == wrong_index else 'n'}{i}: v{i} = {call}")
        values.append(f"v{i}")
    x = {"x": np.ones(4, np.float32)}
    comparison = compare(
        core, graph(*lines, outputs=values[-1]), ("CPU", "WRONG"), x, rtol=0, atol=0.1
    )
    assert comparison.node == f"off{wrong_index}"
    assert comparison.suspects == (f"off{wrong_index}",)


def test_invalid_arguments_are_refused(core):
    model = graph("a: y = Tanh(x)")
    with pytest.raises(DeviceError, match="two devices"):
        compare(core, model, ("CPU",), X)
    with pytest.raises(UnsupportedNodesError, match="WRONG has no Erf"):
        compare(core, graph("a: y = Erf(x)"), ("CPU", "WRONG"), X)


# Values.


def test_values_of_other_types_or_shapes_differ_everywhere():
    a = np.zeros(3, np.float32)
    (by_type,) = differences_of("v", a, a.astype(np.float64))
    assert (by_type.dtypes, by_type.differing) == (("float32", "float64"), 3)
    (by_shape,) = differences_of("v", a, np.zeros((3, 1), np.float32))
    assert (by_shape.shapes, by_shape.agrees) == (((3,), (3, 1)), False)


def test_infinities_agree_by_sign():
    a = np.array([np.inf, -np.inf, 1.0])
    assert differences_of("v", a, a)[0].agrees
    (d,) = differences_of("v", a, np.array([np.inf, np.inf, 1.0]))
    assert (d.differing, d.position, d.infs) == (1, (1,), (2, 2))


def test_integers_strings_truth_values_scalars_and_nothing():
    big = np.array([2**40, 5], np.int64)
    assert differences_of("v", big, big + np.array([0, 1]), rtol=0, atol=0)[0].position == (1,)
    words = np.array(["a", "b"], object)
    assert differences_of("v", words, words)[0].agrees
    (d,) = differences_of("v", words, np.array(["a", "c"], object))
    assert (d.differing, d.values) == (1, ("b", "c"))
    flags = np.array([True, False])
    assert differences_of("v", flags, ~flags)[0].differing == 2
    assert differences_of("v", np.float32(1), np.float32(2))[0].position == ()
    assert differences_of("v", np.zeros((0, 3)), np.zeros((0, 3)))[0].agrees


def test_sequences_are_compared_element_by_element():
    one, two = np.zeros(2, np.float32), np.ones(2, np.float32)
    differences = differences_of("v", [one, one], [one, two])
    assert [(d.name, d.agrees) for d in differences] == [("v[0]", True), ("v[1]", False)]
    assert not differences_of("v", [one], [one, one])[0].agrees


# The command line.

WRONG = ("--plugin", f"{__name__}:WrongPlugin")


@pytest.mark.slow
def test_command_exits_with_one_and_names_the_node(shell, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(graph("a: p = Tanh(x)", "off: q = Neg(p)", "b: y = Add(q, q)"), str(path))
    np.save(tmp_path / "x.npy", X["x"])
    arguments = (path, *WRONG, "-d", "CPU,WRONG", "-i", tmp_path / "x.npy")
    result = shell("compare --json", *arguments)
    assert result.code == 1, result.err
    document = result.document
    assert (document["agrees"], document["node"], document["op_type"]) == (False, "off", "Neg")
    assert document["values"][0]["max_abs"] == pytest.approx(0.5)
    result = shell("compare", *arguments)
    assert result.code == 1
    assert "first at node 'off' (Neg)" in " ".join(result.out.split())
    assert shell("compare --atol 2", *arguments).code == 0


def test_command_needs_two_devices(shell, model):
    result = shell("compare -d CPU", model)
    assert (result.code, "expected two devices" in result.err) == (2, True)


@pytest.mark.parametrize("devices", ["-d CPU,HETERO:WRONG,CPU", "-d CPU -d HETERO:WRONG,CPU"])
def test_command_compares_device_lists(shell, tmp_path, devices):
    path = tmp_path / "model.onnx"
    onnx.save(graph("a: p = Tanh(x)", "off: q = Neg(p)", "b: y = Add(q, q)"), str(path))
    result = shell(f"compare --json {devices}", path, *WRONG)
    assert result.code == 1, result.err
    assert result.document["devices"] == ["CPU", "HETERO:WRONG,CPU"]
    assert result.document["node"] == "off"
    assert shell(f"compare {devices} -a off=CPU", path, *WRONG).code == 0


def test_compare_is_public():
    assert hetero.compare is compare


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, np.int32])
def test_integers_are_compared_exactly(dtype):
    first = np.array([1000, 50000], np.int64).astype(dtype)
    difference = differences_of("ids", first, np.array([1000, 50049]).astype(dtype))[0]
    assert (difference.differing, difference.position, difference.max_abs) == (1, (1,), 49)
    assert differences_of("ids", first, first)[0].agrees


def test_large_integers_are_not_rounded():
    big = np.array([2**62], np.int64)
    assert not differences_of("ids", big, big + 1)[0].agrees


def test_integers_agree_within_an_absolute_tolerance():
    a, b = np.array([7, 200], np.uint8), np.array([6, 201], np.uint8)
    assert differences_of("q", a, b)[0].differing == 2
    assert differences_of("q", a, b, atol=1.0)[0].agrees


def test_model_is_read_with_the_cores_extensions(monkeypatch):
    """Otherwise outputs of custom operators have no type, and no prefix can end there."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21, "org.example": 1]>
        g (float[4] x) => (float[4] y) { h = org.example.Squeak(x) y = Neg(h) }"""
    )
    with hetero.Core(executor="inprocess", plugins=[WrongPlugin]) as core:
        core.add_extension(squeak)
        types: list[str] = []
        run = _Search.run

        def record_type(search: _Search, part: Model, inputs: Any) -> Any:
            types.append(part.spec("h").type)
            return run(search, part, inputs)

        monkeypatch.setattr(_Search, "run", record_type)
        assert compare(core, model, ["CPU", "HETERO:CPU"], {"x": np.ones(4, np.float32)}).agrees
    assert types == ["tensor(float)"]


def test_pins_need_a_device_list(core):
    x = {"x": np.ones(4, np.float32)}
    with pytest.raises(AffinityError, match="single devices"):
        compare(core, graph("n: y = Neg(x)"), ["CPU", "HETEROX"], x, affinity={"op:Neg": "CPU"})
