"""Models of `hetero.openvino` change in place: the same code with openvino and with hetero."""

from copy import deepcopy
from typing import Any

import numpy as np
import onnx
import pytest

import hetero
import hetero.openvino as face
from hetero.errors import ArgumentError

ov = pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")

CHAIN = """<ir_version: 8, opset_import: ["": 18]>
    chain (float[2,3] x) => (float[2,3] z) {[one] y = Relu(x) [two] z = Neg(y)}"""
ADD = """<ir_version: 8, opset_import: ["": 18]>
    sum (float[2,1] a, float[2,1] b) => (float[2,1] c) {c = Add(a, b)}"""


def read(core: Any, text: str) -> Any:
    return core.read_model(onnx.parser.parse_model(text).SerializeToString())


def shapes(ports: Any) -> list[str]:
    return [str(port.partial_shape) for port in ports]


@pytest.mark.parametrize(
    "shape", [[4, 3], "[1..8,?]", [(1, 8), 3], [-1, -1], (5, 3), "?,3", "[..4,3]"]
)
@pytest.mark.parametrize("key", [None, 0, "x", "port"])
def test_reshape_changes_the_model_and_its_ports(cores, shape, key):
    columns = []
    for module, core in cores:
        model = read(core, CHAIN)
        ports = [*model.inputs, *model.get_parameters()]
        shape_of_module = module.PartialShape(shape) if key == "x" else shape
        model.reshape(
            shape if key is None else {ports[0] if key == "port" else key: shape_of_module}
        )
        compiled = core.compile_model(model, "CPU")
        static = [d.is_static and d.get_length() for d in compiled.input().partial_shape]
        columns.append((shapes(ports), static, model.is_dynamic()))
    assert columns[0] == columns[1]


def test_reshape_of_all_inputs_at_once(cores):
    columns = []
    for _, core in cores:
        model = read(core, ADD)
        model.reshape({port: [7, 2] for port in model.inputs})
        columns.append(shapes([*model.inputs, *model.outputs]))
        model.reshape({port.any_name: [-1, 2] for port in model.inputs})
        columns[-1] += shapes(model.inputs)
    assert columns[0] == columns[1]


@pytest.mark.parametrize("shape", [{0: range(3)}, {"nope": [1, 3]}, {1.5: [1, 3]}, [(1, 2, 3), 3]])
def test_invalid_reshape_leaves_the_model(cores, shape):
    for _, core in cores:
        model = read(core, CHAIN)
        with pytest.raises((RuntimeError, TypeError)):
            model.reshape(shape)
        if core is cores[0][1]:  # openvino keeps an invalid shape
            assert shapes(model.inputs) == ["[2,3]"]


def test_batch_of_layouts(cores):
    columns = []
    for module, core in cores:
        model = read(core, ADD)
        model.get_parameters()[0].set_layout(module.Layout("NC"))
        before = module.get_batch(model)
        module.set_batch(model, 1)
        column = [before, module.get_batch(model), shapes(model.inputs)]
        module.set_batch(model)
        column += [model.dynamic, model.inputs[0].node.layout == module.Layout("NC")]
        columns.append(column)
    assert columns[0] == columns[1]


@pytest.mark.parametrize("outputs", ["y", ["y"], ("one", 0), [("one", 0)], "port"])
def test_added_outputs_run(cores, outputs):
    x = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
    columns = []
    for _, core in cores:
        model = read(core, CHAIN)
        if outputs == "port":
            (node,) = (op for op in model.get_ops() if op.get_friendly_name() in ("one", "y"))
            new = model.add_outputs(node.output(0))
        else:
            new = model.add_outputs(outputs)
        names = [port.any_name for port in model.outputs]
        results = core.compile_model(model, "CPU")(x)
        columns.append((len(new), new[0].any_name, names, results["y"].tolist()))
    assert columns[0] == columns[1]


@pytest.mark.parametrize("outputs", ["nope", ("one", 7), ("nope", 0), 0, [0, 0]])
def test_unknown_outputs_raise(cores, outputs):
    kinds = []
    for _, core in cores:
        model = read(core, CHAIN)
        with pytest.raises((RuntimeError, TypeError)) as error:
            model.add_outputs(outputs)
        kinds.append(isinstance(error.value, TypeError))
        assert len(model.outputs) == 1
    assert kinds[0] == kinds[1]


def test_removed_results_can_be_added_again(cores):
    columns = []
    for _, core in cores:
        model = read(core, CHAIN)
        model.add_outputs("y")
        first = model.get_results()[0]
        model.remove_result(first)
        names = [port.any_name for port in model.outputs]
        model.add_results([first])
        columns.append((names, [port.any_name for port in model.outputs], len(model.results)))
    assert columns[0] == columns[1]


def test_result_of_another_model_has_no_index(cores):
    for _, core in cores:
        model, other = read(core, CHAIN), read(core, CHAIN)
        assert model.get_result_index(model.get_results()[0]) == 0
        assert model.get_result_index(other.get_results()[0]) == -1
        assert model.get_parameter_index(other.get_parameters()[0]) == -1


def test_evaluate_writes_into_tensors(cores):
    columns = []
    for module, core in cores:
        model = read(core, ADD)
        total = module.Tensor(module.Type.f32, [2, 1])
        inputs = [module.Tensor(np.array([[i], [10]], np.float32)) for i in (1, 2)]
        assert model.evaluate([total], inputs)
        columns.append(total.data.tolist())
    assert columns[0] == columns[1] == [[3], [20]]


def test_run_time_information(cores, tmp_path):
    columns = []
    for _, core in cores:
        model = read(core, CHAIN)
        entries: list[tuple[Any, Any]] = [
            ("classification", ["model_info", "task_type"]),
            (13.5, ["model_info", "threshold"]),
            (["cat", "dog"], ["model_info", "labels"]),
            (True, "flag"),
            ("1", ["framework", "batch"]),
        ]
        for value, path in entries:
            model.set_rt_info(value, path)
        with pytest.raises(RuntimeError):
            model.get_rt_info(["model_info", "nope"])
        columns.append(
            (
                model.get_rt_info(["model_info", "task_type"]).astype(str),
                model.get_rt_info(["model_info", "threshold"]).astype(float),
                model.get_rt_info(["model_info", "labels"]).aslist(str),
                model.get_rt_info("flag").value,
                sorted(model.get_rt_info("model_info").astype(dict)),
                [model.has_rt_info(path) for path in ("flag", ["model_info", "nope"], "nope")],
                model.get_rt_info(["framework", "batch"]) == "1",
            )
        )
    assert columns[0] == columns[1]
    model = read(cores[0][1], CHAIN)
    model.set_rt_info("1", ["framework", "batch"])
    face.save_model(model, tmp_path / "model.onnx")
    assert (
        cores[0][1].read_model(tmp_path / "model.onnx").get_rt_info(["framework", "batch"]) == "1"
    )


def test_preprocessing_changes_the_model(cores):
    columns = []
    for module, core in cores:
        model = read(core, CHAIN)
        processor = module.preprocess.PrePostProcessor(model)
        processor.input().tensor().set_element_type(module.Type.u8)
        processor.input().preprocess().convert_element_type(module.Type.f32).mean(1.0)
        built = processor.build()
        results = core.compile_model(model, "CPU")(np.full((2, 3), 5, np.uint8))
        columns.append((built.input().element_type.type_name, results[0].tolist()))
        assert model.input().element_type == module.Type.u8
    assert columns[0] == columns[1]


def test_a_copy_is_independent(cores):
    for _, core in cores:
        model = read(core, CHAIN)
        copies = [model.clone(), deepcopy(model)]
        model.reshape([9, 3])
        assert [shapes(copy.inputs) for copy in copies] == [["[2,3]"]] * 2
        compiled = core.compile_model(copies[0], "CPU")
        copies[0].reshape([5, 3])
        assert shapes(compiled.inputs) == ["[2,3]"]


def test_functions_of_hetero_accept_the_model(cores):
    core = cores[0][1]
    model = read(core, CHAIN)
    model.reshape([4, 3])
    assert set(core.query_model(model, "HETERO:ORT,CPU").values()) == {"ORT"}
    assert core.survey_model(model, "CPU").model.input().shape == [4, 3]
    with hetero.Core("inprocess") as other:
        assert other.compile_model(model, "CPU").input().partial_shape == [4, 3]
    assert isinstance(core.compile_model(model, "CPU").get_runtime_model(), face.Model)


def test_names_for_people(cores):
    for _, core in cores:
        model = read(core, CHAIN)
        model.set_friendly_name("renamed")
        model.get_parameters()[0].set_friendly_name("picture")
        assert model.get_friendly_name() == "renamed"
        assert model.inputs[0].get_node().get_friendly_name() == "picture"
        assert model.inputs[0].any_name == "x"


def test_runtime_model_has_run_time_information(cores):
    keys = {"layerType", "execOrder", "execTimeMcs", "originalLayersNames"}
    for _, core in cores:
        compiled = core.compile_model(read(core, CHAIN), "CPU", {"PERF_COUNT": True})
        nodes = compiled.get_runtime_model().get_ordered_ops()
        assert nodes
        for node in nodes:
            assert keys <= set(dict(node.get_rt_info().items()))


def test_text_of_models_and_nodes(cores):
    texts = [repr(read(core, CHAIN)) for _, core in cores]
    # OpenVINO names every ONNX model alike.
    assert texts[0].splitlines()[1:] == texts[1].splitlines()[1:]
    assert texts[0].startswith("<Model: 'chain'")
    node = read(cores[0][1], CHAIN).get_ops()[0]
    assert repr(node) == "<Relu: 'one' (x[2,3]) -> (y[2,3])>"


@pytest.mark.parametrize("names", [{"picture"}, {"picture", "x"}])
def test_ports_are_renamed(cores, names):
    x = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
    columns = []
    for _, core in cores:
        model = read(core, CHAIN)
        port = model.input()
        model.reshape({"x": [(1, 4), 3]})
        port.get_tensor().set_names(names)
        model.output(0).tensor.names = {"boxes"}
        compiled = core.compile_model(model, "CPU")
        results = compiled({min(names) if len(names) == 1 else "x": x})
        columns.append(
            (
                sorted(port.get_names()),
                str(model.input("picture").partial_shape),
                model.output("boxes").any_name,
                results["boxes"].tolist(),
            )
        )
    assert columns[0] == columns[1]


def test_name_of_another_value_is_refused(cores):
    model = read(cores[0][1], CHAIN)
    with pytest.raises(ArgumentError, match="another value is named 'y'"):
        model.input().set_names({"y"})
    with pytest.raises(ArgumentError, match="expected an assignment of layout"):
        model.input().type = "tensor(int64)"
    assert model.input().names == {"x"}


def test_layout_is_assigned(cores):
    columns = []
    for module, core in cores:
        model = read(core, CHAIN)
        layout = module.Layout("NC")
        model.inputs[0].node.layout = layout
        module.set_batch(model, 5)
        is_same = model.get_parameters()[0].get_layout() == layout
        columns.append((is_same, shapes(model.inputs), model.inputs[0].node.layout == layout))
    assert columns[0] == columns[1]
