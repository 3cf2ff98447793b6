"""Batchability: batches of batchable models give the results of single runs."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from hetero.batching.batch_axis import with_open_batch_axis
from hetero.batching.batchability import why_not_batchable
from hetero.devices.model.light_models import light_model_path
from hetero.devices.model.reader import read_model
from tests.support.rows import for_each_row

RNG = np.random.default_rng(7)

#: Bodies of batchable models with input x [N, 4, 6]; constants are in angle brackets.
BATCHABLE = {
    "elementwise": "y = Relu(x)",
    "broadcast": "<float[4, 1] c> y = Add(x, c)",
    "broadcast one": "<float[1, 4, 6] c> y = Mul(x, c)",
    "residual": "a = Neg(x) y = Add(a, x)",
    "softmax": "y = Softmax(x)",
    "norm": "<float[6] c> y = LayerNormalization(x, c)",
    "matmul": "<float[6, 5] c> y = MatMul(x, c)",
    "attention": "t = Transpose <perm = [0, 2, 1]> (x) s = MatMul(x, t) y = MatMul(s, x)",
    "matmul of vector": "<float[6] c> y = MatMul(x, c)",
    "gemm": "<float[24, 3] c> f = Flatten(x) y = Gemm(f, c)",
    "gemm with bias": "<float[24, 3] c, float[3] d> f = Flatten(x) y = Gemm(f, c, d)",
    "convolution": "<float[2, 4, 3] c> y = Conv(x, c)",
    "pool": "y = GlobalAveragePool(x)",
    "max pool": "y = MaxPool <kernel_shape = [2]> (x)",
    "reshape by zero": "<int64[3] c = {0, 2, -1}> y = Reshape(x, c)",
    "reshape by rest": "<int64[2] c = {-1, 24}> y = Reshape(x, c)",
    "reshape by size": "<int64[1] i = {0}, int64[2] r = {8, 3}> s = Shape(x) n = Gather(s, i) "
    "t = Concat <axis = 0> (n, r) y = Reshape(x, t)",
    "reshape by other sizes": "<int64[1] i = {2}, int64[2] r = {0, -1}> s = Shape(x) "
    "n = Gather(s, i) t = Concat <axis = 0> (r, n) y = Reshape(x, t)",
    "class token": "<int64[1] i = {0}, int64[2] r = {1, 6}, float[1, 1, 6] c> s = Shape(x) "
    "n = Gather(s, i) t = Concat <axis = 0> (n, r) e = Expand(c, t) "
    "y = Concat <axis = 1> (e, x)",
    "zeros": "<int64[1] i = {0}, int64[2] r = {1, 6}> s = Shape(x) n = Gather(s, i) "
    "t = Concat <axis = 0> (n, r) e = ConstantOfShape(t) y = Add(x, e)",
    "reduce": "<int64[1] c = {-1}> y = ReduceSum <keepdims = 0> (x, c)",
    "largest": "y = ArgMax <axis = 2> (x)",
    "largest few": "<int64[1] k = {2}> y, z = TopK(x, k)",
    "split": "<int64[2] c = {2, 4}> y, z = Split <axis = -1> (x, c)",
    "slice": "<int64[1] a = {1}, int64[1] b = {3}, int64[1] c = {2}> y = Slice(x, a, b, c)",
    "pad": "<int64[6] c = {0, 0, 1, 0, 0, 2}> y = Pad(x, c)",
    "gather": "<int64[2] c = {3, 1}> y = Gather <axis = 1> (x, c)",
    "table": "<float[6, 3] c> i = ArgMax <axis = 2, keepdims = 0> (x) y = Gather(c, i)",
    "tile": "<int64[3] c = {1, 2, 1}> y = Tile(x, c)",
    "squeeze": "<int64[1] c = {1}> u = Unsqueeze(x, c) y = Squeeze(u, c)",
    "cumulated": "<int64 c = {1}> y = CumSum(x, c)",
    "resize": "<float[3] c = {1, 1, 2}> y = Resize(x, , c)",
    "condition": "z = Neg(x) c = Greater(x, z) y = Where(c, x, z)",
    "batch norm": "<float[4] c> d = Abs(c) y = BatchNormalization(x, c, c, c, d)",
    "literal": "c = Constant <value_ints = [0, -1]> () y = Reshape(x, c)",
    "pass-through": "y = Identity(x)",
    "dropout": "<float r = {0.5}> y = Dropout(x, r)",
}

#: Bodies of models that are not batchable, and a part of the expected reason.
NOT_BATCHABLE = {
    "softmax over the batch": ("y = Softmax <axis = 0> (x)", "axis 0"),
    "sum over the batch": ("<int64[1] c = {0}> s = ReduceSum(x, c) y = Sub(x, s)", "ReduceSum"),
    "mean over all": ("m = ReduceMean(x) y = Div(x, m)", "all axes"),
    "maximum in place": ("<int64[1] c = {-3}> y = ReduceMax(x, c)", "axis 0"),
    "quantised by all": (
        "q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)",
        "DynamicQuantizeLinear",
    ),
    "gram": (
        "<int64[2] c = {-1, 24}> f = Reshape(x, c) t = Transpose(f) y = MatMul(f, t)",
        "Transpose",
    ),
    "sorted": (
        "<int64[1] k = {1}> y, z = TopK <axis = 0> (x, k)",
        "axis 0",
    ),
    "cumulated": ("<int64 c = {0}> y = CumSum(x, c)", "axis 0"),
    "cut": ("<int64[1] a = {0}, int64[1] b = {1}> y = Slice(x, a, b)", "axis 0"),
    "reversed": (
        ("<int64[1] a = {-1}, int64[1] b = {-9}, int64[1] c = {0}> y = Slice(x, a, b, c, a)"),
        "axis 0",
    ),
    "first row": ("<int64 c = {0}> f = Gather(x, c) y = Sub(x, f)", "axis 0"),
    "padded": ("<int64[6] c = {0, 0, 0, 1, 0, 0}> y = Pad(x, c)", "axis 0"),
    "scaled": ("<float[3] c = {2, 1, 1}> y = Resize(x, , c)", "axis 0"),
    "repeated": ("<int64[3] c = {2, 1, 1}> y = Tile(x, c)", "axis 0"),
    "doubled": ("y = Concat <axis = 0> (x, x)", "axis 0"),
    "moved": ("y = Transpose <perm = [1, 0, 2]> (x)", "moves axis 0"),
    "flattened": ("y = Flatten <axis = 2> (x)", "axis 0"),
    "joined": ("<int64[2] c = {-1, 6}> y = Reshape(x, c)", "'y'"),
    "fixed": ("<int64[3] c = {1, 4, 6}> y = Reshape(x, c)", "'y'"),
    "its size": (
        ("<int64 i = {0}> s = Shape(x) n = Gather(s, i) f = Cast <to = 1> (n) y = Div(x, f)"),
        "size of the batch",
    ),
    "sizes given out": ("y = Shape(x)", "output 'y'"),
    "constant given out": ("<float[2] c> z = Neg(x) y = Identity(c)", "output 'y'"),
    "rows of its own": ("<float[3, 4, 6] c> y = Add(x, c)", "'c'"),
    "a matrix of its own": ("<float[3, 6, 4] c> y = MatMul(x, c)", "'c'"),
    "across": (
        "<int64[1] c = {1}> m = ReduceSum <keepdims = 0> (x, c) y = Add(x, m)",
        "'m' over axis 0",
    ),
    "rows by rows": (
        (
            "<int64[2] c = {1, 2}> m = ReduceMax <keepdims = 0> (x, c) "
            "i = Cast <to = 7> (m) y = Gather <axis = 1> (x, i)"
        ),
        "rows by rows",
    ),
    "places in all": ("p, y = MaxPool <kernel_shape = [2]> (x)", "MaxPool"),
    "dropped": ("<float r = {0.5}, bool t = {1}> y = Dropout(x, r, t)", "at random"),
    "random": ("r = RandomNormalLike(x) y = Add(r, x)", "RandomNormalLike"),
    "means of the batch": (
        "<float[4] c> y, m, v = BatchNormalization <training_mode = 1> (x, c, c, c, c)",
        "BatchNormalization",
    ),
    "a body": (
        (
            "<bool c = {1}> y = If (c) <then_branch = a () => (float[N, 4, 6] p) { p = Neg(x) }, "
            "else_branch = b () => (float[N, 4, 6] q) { q = Abs(x) }>"
        ),
        "If",
    ),
}


def build_model(body: str) -> onnx.ModelProto:
    """Build a model with input x [N, 4, 6] and this body, with random values of constants."""
    declarations = ""
    if body.startswith("<"):
        declarations, body = body[1:].split(">", 1)
    initializers = ", ".join(add_values(text) for text in split_declarations(declarations))
    outputs = "y, z" if "y, z" in body else "y"
    result = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[N, 4, 6] x) => ('
        + ", ".join(f"float {name}" for name in outputs.split(", "))
        + f") <{initializers}> {{ {body} }}"
    )
    for port in result.graph.output:
        port.ClearField("type")
    inferred = onnx.shape_inference.infer_shapes(result)
    for port, inferred_port in zip(result.graph.output, inferred.graph.output, strict=True):
        port.type.tensor_type.elem_type = inferred_port.type.tensor_type.elem_type
    return result


def split_declarations(declarations: str) -> list[str]:
    result: list[str] = []
    for piece in filter(None, (declaration.strip() for declaration in declarations.split(","))):
        starts = piece.split("[")[0].split()[0] in ("float", "int64", "bool")
        result.append(piece) if starts else result.append(f"{result.pop()}, {piece}")
    return result


def add_values(declaration: str) -> str:
    if "=" in declaration:
        return declaration
    sizes = declaration[declaration.index("[") + 1 : declaration.index("]")]
    count = int(np.prod([int(size) for size in sizes.split(",")]))
    return f"{declaration} = {{{', '.join(f'{v:.3f}' for v in RNG.uniform(0.5, 2, count))}}}"


def run(session: onnxruntime.InferenceSession, x: np.ndarray) -> list[np.ndarray]:
    outputs: list[np.ndarray] = session.run(None, {"x": x})
    return outputs


@for_each_row("name", BATCHABLE)
def test_batchable_model_batch_equals_single_runs(name):
    model = build_model(BATCHABLE[name])
    assert why_not_batchable(read_model(model)) is None
    session = onnxruntime.InferenceSession(model.SerializeToString())
    parts = [RNG.standard_normal((rows, 4, 6)).astype(np.float32) for rows in (1, 3, 2)]
    batched = run(session, np.concatenate(parts))
    for output, *single in zip(batched, *(run(session, part) for part in parts), strict=True):
        np.testing.assert_allclose(output, np.concatenate(single), rtol=1e-5, atol=1e-6)


@for_each_row("name", NOT_BATCHABLE)
def test_not_batchable_model_has_a_reason(name):
    body, reason_part = NOT_BATCHABLE[name]
    assert reason_part in str(why_not_batchable(read_model(build_model(body))))


@pytest.mark.parametrize("kind", ["float[3, 2]", "float", "seq(float[N])"])
def test_input_without_open_batch_axis_is_the_reason(kind):
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> g ({kind} x) => ({kind} y) {{ y = Identity(x) }}'
    )
    reason = why_not_batchable(read_model(onnx.parser.parse_model(text)))
    assert str(reason).startswith("input 'x' ")
    assert "no open batch axis 0" in str(reason)


@pytest.mark.parametrize("name", ["densenet121", "resnet50", "shufflenet"])
def test_batch_axis_of_network_is_opened(name):
    model = with_open_batch_axis(read_model(light_model_path(name)))
    assert model.inputs[0].shape == ("batch", 3, 224, 224)
    assert model.outputs[0].shape == ("batch", 1000, *(model.outputs[0].shape or ())[2:])
    assert why_not_batchable(model) is None


@pytest.mark.parametrize(
    "shape",
    ["c = Constant <value_ints = [1, 24]> ()", "<int64[2] c = {1, 24}>", "<int64[2] c = {1, -1}>"],
)
def test_reshape_to_one_row_is_opened(shape):
    model = build_model(f"{shape} y = Reshape(x, c)")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    open_model = with_open_batch_axis(read_model(model))
    assert open_model.node_names == read_model(model).node_names  # pins stay valid
    assert why_not_batchable(open_model) is None
    session = onnxruntime.InferenceSession(open_model.to_proto().SerializeToString())
    x = RNG.standard_normal((3, 4, 6)).astype(np.float32)
    np.testing.assert_array_equal(run(session, x)[0], x.reshape(3, 24))


@pytest.mark.parametrize("sizes", ["2, 3", "N, 3", "3", ""])
def test_batch_axis_other_than_one_stays(sizes):
    kind = f"float[{sizes}]" if sizes else "float"
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({kind} x) => ({kind} y) {{ y = Neg(x) }}'
    model = read_model(onnx.parser.parse_model(text))
    assert with_open_batch_axis(model) is model


def test_model_with_fixed_batch_is_not_batchable():
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1, 3] x) => (float[2, 3] y)
        <float[2, 1] c = {1, 2}> { z = Concat <axis = 0> (x, x) y = Mul(z, c) }"""
    model = with_open_batch_axis(read_model(onnx.parser.parse_model(text)))
    assert "'z'" in str(why_not_batchable(model)) or "Concat" in str(why_not_batchable(model))
