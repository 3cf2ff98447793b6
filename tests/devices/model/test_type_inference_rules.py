"""Inferred types of ONNX Runtime's operators and classical models, by hand for each rule."""

from __future__ import annotations

from itertools import product
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from hetero.devices.model.reader import read_model
from tests.support.rows import for_each_row

F, F16, I8, U8, I32, I64 = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT32,
    TensorProto.INT64,
)
SCALE = (F, [])
ML = "ai.onnx.ml"
#: Operator, inputs (type and shape; None if absent), attributes, expected outputs.
Row = tuple[str, list[Any], dict[str, Any], list[Any]]
MICROSOFT_ROWS: list[Row] = [
    *(
        (name, [(F16, ["n", 3])], {}, [("float16", ("n", 3))])
        for name in ("BiasAdd", "BiasGelu", "Gelu", "FastGelu", "QuickGelu", "RotaryEmbedding")
    ),
    *(
        (name, [(U8, [2, "k"])], {}, [("uint8", (2, "k"))])
        for name in ("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax")
    ),
    *(
        (
            name,
            [(F16, ["n", 5, 8]), (F16, ["n", 5, 8]), (F16, [8])],
            {},
            [
                ("float16", ("n", 5, 8)),
                ("float", ("n", 5, 1)),
                ("float", ("n", 5, 1)),
                ("float16", ("n", 5, 8)),
            ],
        )
        for name in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
    ),
    (
        "EmbedLayerNormalization",
        [(I32, [2, 7]), None, (F16, [100, 8]), (F16, [512, 8])],
        {},
        [("float16", (2, 7, 8)), ("int32", (2,)), ("float16", (2, 7, 8))],
    ),
    ("FusedMatMul", [(F, [5, 2, 3]), (F, [5, 3, 4])], {}, [("float", (5, 2, 4))]),
    ("FusedMatMul", [(F, [5, 3, 2]), (F, [5, 3, 4])], {"transA": 1}, [("float", (5, 2, 4))]),
    ("FusedMatMul", [(F, [5, 2, 3]), (F, [5, 4, 3])], {"transB": 1}, [("float", (5, 2, 4))]),
    ("TransposeMatMul", [(F, [3]), (F, [3, 4])], {"transA": 1}, [("float", (4,))]),
    # The batch axis moves behind the rows: [2, 5, 3] becomes [5, 2, 3].
    ("FusedMatMul", [(F, [2, 5, 3]), (F, [5, 3, 4])], {"transBatchA": 1}, [("float", (5, 2, 4))]),
    ("FusedMatMul", [(F, [2, 3]), (F, [4, 5])], {}, [("float", None)]),  # they do not fit
    # A third of the 24 columns; 2 heads of 4 values.
    (
        "Attention",
        [(F16, ["n", 5, 8]), (F16, [8, 24]), (F16, [24])],
        {"num_heads": 2},
        [("float16", ("n", 5, 8)), ("float16", (2, "n", 2, None, 4))],
    ),
    (
        "Attention",
        [(F, [3, 5, 8]), (F, [8, 20]), None, None, (F, [2, 3, 2, 6, 4])],
        {"num_heads": 2, "qkv_hidden_sizes": [4, 4, 12]},
        [("float", (3, 5, 12)), ("float", (2, 3, 2, None, 4))],
    ),
    (
        "QAttention",
        [(U8, [3, 5, 8]), (I8, [8, 24]), (F, [24]), SCALE, SCALE],
        {"num_heads": 4},
        [("float", (3, 5, 8)), ("float", (2, 3, 4, None, 2))],
    ),
    (
        "QAttention",
        [(U8, [3, 5, 8]), (I8, [8, 24]), (F, [24]), (F16, []), *[None] * 4, (F16, [2, 3, 4, 9, 2])],
        {"num_heads": 4},
        [("float16", (3, 5, 8)), ("float16", (2, 3, 4, None, 2))],
    ),
    (
        "MultiHeadAttention",
        [(F, [2, "q", 8]), (F, [2, "k", 8]), (F, [2, "k", 12])],
        {"num_heads": 4},
        [("float", (2, "q", 12)), ("float", (2, 4, None, 2)), ("float", (2, 4, None, 3))],
    ),
    (
        "MultiHeadAttention",
        [(F, [2, 5, 8]), (F, [2, 4, 6, 2]), (F, [2, 4, 6, 3])],
        {"num_heads": 4},
        [("float", (2, 5, 12)), ("float", (2, 4, None, 2)), ("float", (2, 4, None, 3))],
    ),
    ("MultiHeadAttention", [(F, [2, 5, 4, 3, 2])], {"num_heads": 4}, [("float", None)]),
    (
        "GroupQueryAttention",
        [(F, [2, 5, 12]), (F, [2, 5, 6]), (F, [2, 5, 6])],
        {"num_heads": 4, "kv_num_heads": 2},
        [("float", (2, 5, 12)), ("float", (2, 2, None, 3)), ("float", (2, 2, None, 3))],
    ),
    # Packed: 4 + 2 * 2 heads of 3 values. The caches may have another type and width.
    (
        "GroupQueryAttention",
        [(F, [2, 5, 24]), None, None, (F16, [2, 2, 7, 9]), (F16, [2, 2, 7, 9])],
        {"num_heads": 4, "kv_num_heads": 2},
        [("float", (2, 5, 12)), ("float16", (2, 2, None, 9)), ("float16", (2, 2, None, 9))],
    ),
    ("GroupQueryAttention", [(F, [2, 5])], {"num_heads": 4}, [("float", None)]),
    ("FusedGemm", [(F, [3, 2]), (F, [5, 3])], {"transA": 1, "transB": 1}, [("float", (2, 5))]),
    (
        "QGemm",
        [(U8, [2, 3]), SCALE, (U8, []), (I8, [3, 5]), SCALE, (I8, [])],
        {},
        [("float", (2, 5))],
    ),
    (
        "QGemm",
        [(U8, [2, 3]), SCALE, (U8, []), (I8, [3, 5]), SCALE, (I8, []), None, SCALE, (I8, [])],
        {},
        [("int8", (2, 5))],
    ),
    ("MatMulIntegerToFloat", [(U8, [2, 3]), (I8, [3, 5]), (F16, [])], {}, [("float16", (2, 5))]),
    ("DynamicQuantizeMatMul", [(F, [4, 2, 3]), (I8, [3, 5])], {}, [("float", (4, 2, 5))]),
    ("MatMulNBits", [(F16, ["n", 2, 64]), (U8, [9, 2, 16])], {"N": 9}, [("float16", ("n", 2, 9))]),
    (
        "GatherBlockQuantized",
        [(U8, [6, 8]), (I64, [2, 3]), (F, [6, 1])],
        {"bits": 4},
        [("float", (2, 3, 16))],
    ),
    ("GatherBlockQuantized", [(U8, [6, 8]), (I64, [2]), (F, [6, 1])], {}, [("float", (2, 16))]),
    (
        "GatherBlockQuantized",
        [(U8, [6, 8]), (I64, [2, 3]), (F, [6, 1])],
        {"gather_axis": 1, "bits": 8},
        [("float", (6, 2, 3))],
    ),
    (
        "GatherBlockQuantized",
        [(TensorProto.INT4, [6, 8]), (I64, []), (F16, [6, 1])],
        {"gather_axis": -2},
        [("float16", (8,))],
    ),
    *(
        (
            name,
            [(U8, [2, 1]), SCALE, (U8, []), (U8, [3]), SCALE, (U8, []), SCALE, (U8, [])],
            {},
            [("uint8", (2, 3))],
        )
        for name in ("QLinearAdd", "QLinearMul")
    ),
    (
        "QLinearWhere",
        [(TensorProto.BOOL, [2, 1]), (U8, [1, 3]), SCALE, (U8, []), (U8, [4, 1, 1]), SCALE],
        {},
        [("uint8", (4, 2, 3))],
    ),
    (
        "QLinearConcat",
        [SCALE, (I8, []), (I8, [2, 3]), SCALE, (I8, []), (I8, [2, 5]), SCALE, (I8, [])],
        {"axis": 1},
        [("int8", (2, 8))],
    ),
    (
        "QLinearAveragePool",
        [(U8, [1, 2, 7, 7]), SCALE],
        {"kernel_shape": [3, 3], "strides": [2, 2]},
        [("uint8", (1, 2, 3, 3))],
    ),
    (
        "QLinearAveragePool",
        [(U8, [1, 7, 7, 2]), SCALE],
        {"kernel_shape": [3, 3], "channels_last": 1},
        [("uint8", (1, 5, 5, 2))],
    ),
    # 8 rows: windows of 3 with stride 2 give 3, or 4 rounded up; 7 columns give 3 either way.
    (
        "QLinearAveragePool",
        [(U8, [1, 2, 8, 7]), SCALE],
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        [("uint8", (1, 2, None, 3))],
    ),
    # A window that begins in the padding counts or not; the size stays unknown.
    (
        "QLinearAveragePool",
        [(U8, [1, 2, 3, 4]), SCALE],
        {"kernel_shape": [1, 1], "strides": [2, 2], "pads": [0, 0, 1, 0], "ceil_mode": 1},
        [("uint8", (1, 2, None, None))],
    ),
    ("QLinearGlobalAveragePool", [(U8, [1, 2, 8, 7])], {}, [("uint8", (1, 2, 1, 1))]),
    ("NhwcMaxPool", [(I8, [1, 8, 7, 2])], {"kernel_shape": [2, 3]}, [("int8", (1, 7, 5, 2))]),
    (
        "FusedConv",
        [(F, [1, 2, 8, 8]), (F, [5, 2, 3, 3])],
        {"pads": [1, 1, 1, 1], "strides": [2, 2]},
        [("float", (1, 5, 4, 4))],
    ),
    (
        "DynamicQuantizeLSTM",
        [(F, [7, 2, 3]), (I8, [1, 3, 16]), (I8, [1, 4, 16])],
        {"hidden_size": 4},
        [("float", (7, 1, 2, 4)), ("float", (1, 2, 4)), ("float", (1, 2, 4))],
    ),
    ("QuantizeLinear", [(F, [2, 3]), SCALE, (I8, [])], {}, [("int8", (2, 3))]),
    ("DequantizeLinear", [(I8, [2, 3]), (F16, [])], {}, [("float16", (2, 3))]),
]
ML_ROWS: list[Row] = [
    (
        "FeatureVectorizer",
        [(F, ["n", 2]), (F, ["n", 3])],
        {"inputdimensions": [2, 3]},
        [("float", ("n", 5))],
    ),
    ("Imputer", [(I64, ["n", 3])], {"imputed_value_int64s": [1]}, [("int64", ("n", 3))]),
    ("LinearRegressor", [(F, ["n", 3])], {"targets": 4}, [("float", ("n", 4))]),
    ("LinearRegressor", [(F, [3])], {}, [("float", (1, 1))]),
    ("Normalizer", [(I64, [2, 3])], {}, [("float", (2, 3))]),
    ("Scaler", [(I32, ["n", 3])], {}, [("float", ("n", 3))]),
    ("SVMRegressor", [(F, [6, 3])], {}, [("float", (6, 1))]),
    ("TreeEnsembleRegressor", [(F, ["n", 3])], {"n_targets": 2}, [("float", ("n", 2))]),
    *(
        (name, [(F, [6, 3])], labels, [(kind, (6,)), ("float", (6, None))])
        for name in ("SVMClassifier", "TreeEnsembleClassifier")
        for labels, kind in (
            ({"classlabels_strings": ["a", "b"]}, "string"),
            ({"classlabels_ints": [1, 2]}, "int64"),
        )
    ),
]


def inferred(row: Row, domain: str, opset: int = 17) -> list[Any]:
    operator, inputs, attributes, expected = row
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(len(expected))]
    graph = helper.make_graph(
        [helper.make_node(operator, names, outputs, domain=domain, **attributes)],
        "g",
        [
            helper.make_tensor_value_info(name, *value)
            for name, value in zip(names, inputs, strict=True)
            if value
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1)] if domain else []
    model = read_model(helper.make_model(graph, opset_imports=imports, ir_version=8))
    specs = [model.spec(name) for name in outputs]

    def known(size: Any) -> Any:  # onnx invents names of unknown sizes
        return None if isinstance(size, str) and size.startswith("unk__") else size

    return [
        (s.type.removeprefix("tensor(").rstrip(")"), s.shape and tuple(map(known, s.shape)))
        for s in specs
    ]


@for_each_row(
    "row, domain",
    [*product(MICROSOFT_ROWS, ["com.microsoft"]), *product(ML_ROWS, [ML])],
    lambda row, domain: f"{domain}::{row[0]}",
)
def test_types_of_an_operators_outputs(row, domain):
    assert inferred(row, domain) == row[3]


def test_types_of_simplified_normalization():
    inputs = [(F, ["n", 5, 8]), (F16, [8])]
    expected = [("float16", ("n", 5, 8)), ("float", ("n", 5, 1))]
    assert inferred(("SimplifiedLayerNormalization", inputs, {}, expected), "") == expected


@pytest.mark.parametrize(
    "name", ["Gelu", "SkipLayerNormalization", "FusedMatMul", "MatMulNBits", "QLinearAveragePool"]
)
def test_unknown_rank_leaves_the_type(name):
    inputs = [(F16, None), (F16, None), (F16, None)]
    assert inferred((name, inputs, {"kernel_shape": [2]}, [None]), "com.microsoft") == [
        ("float16", None)
    ]
