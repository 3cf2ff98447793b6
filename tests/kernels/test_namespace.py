"""Kernels keep to the array namespace they are given, and to the part of it that CuPy has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from devices import kernels
from devices.kernels import elementwise, logical

FILES = sorted(Path(str(kernels.__file__)).parent.glob("*.py"))

#: What kernels use of the namespace; each is in CuPy's reference, under the same name.
CUPY = frozenset(
    """
    abs absolute add all any arange arccos arccosh arcsin arcsinh arctan arctanh argmax argmin
    argpartition argsort array asarray ascontiguousarray atleast_1d bitwise_and bitwise_or
    bitwise_xor bool_ broadcast_arrays broadcast_to ceil clip complex64 complex128
    concatenate copysign copyto cos cosh cumprod cumsum diff divide dot dtype e einsum empty
    empty_like equal exp expand_dims expm1 eye fft finfo flip float16 float32 float64 floor
    floor_divide fmod frexp full full_like greater greater_equal hanning hypot iinfo inf int8 int16
    int32 int64 integer invert isfinite isinf isnan issubdtype ldexp left_shift less less_equal
    linalg linspace log log1p log2 logaddexp logical_and logical_not logical_or logical_xor matmul
    max maximum mean min minimum moveaxis multiply nan nan_to_num negative newaxis nonzero ones
    ones_like pad partition pi power prod random ravel reciprocal remainder repeat reshape
    result_type right_shift rint roll searchsorted sign signbit sin sinh sort split sqrt square
    squeeze stack std subtract sum swapaxes take take_along_axis tan tanh tensordot tile trace
    transpose tril triu true_divide trunc uint8 uint16 uint32 uint64 unique unravel_index var where
    zeros zeros_like
    """.split()  # noqa: SIM905  (a paragraph of words reads better than a hundred lines)
)

#: Keyword arguments that numpy's function has and CuPy's has not.
LACKING = {
    name: {"initial", "where"} for name in ("max", "min", "sum", "prod", "mean", "any", "all")
} | {"einsum": {"out"}, "take_along_axis": {"mode"}, "unique": {"equal_nan", "sorted"}}


def is_namespace(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "xp"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kernels_import_no_array_library(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        roots = {name.partition(".")[0] for name in names}
        assert not roots & {"numpy", "cupy", "ml_dtypes", "scipy"}, ast.unparse(node)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kernels_use_what_cupy_has(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and is_namespace(node.value):
            assert node.attr in CUPY, (
                f"line {node.lineno}: if CuPy has {node.attr}, add it to the names above"
            )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = {keyword.arg for keyword in node.keywords}
            extra = given & LACKING.get(node.func.attr, set())
            assert not extra, f"line {node.lineno}: {node.func.attr}({extra})"


def test_tables_name_what_cupy_has() -> None:
    tables = (
        *elementwise._UNARY,
        *elementwise._BINARY,
        *logical._COMPARISONS,
        *logical._CONNECTIVES,
    )
    assert {name for _, _, name in tables} <= CUPY
