"""Kernels use their array namespace only, and only functions that CuPy has."""

from __future__ import annotations

import ast
from pathlib import Path

from hetero.devices import kernels
from hetero.devices.kernels import elementwise
from tests.emulated_gpu.cupy_names import CUPY_NAMES, MISSING_KEYWORDS
from tests.support.rows import for_each_row

FILES = sorted(Path(str(kernels.__file__)).parent.glob("*.py"))


def is_namespace(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "xp"


@for_each_row("path", FILES)
def test_kernels_import_no_array_library(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        roots = {name.partition(".")[0] for name in names}
        assert not roots & {"numpy", "cupy", "ml_dtypes", "scipy"}, ast.unparse(node)


@for_each_row("path", FILES)
def test_kernels_use_what_cupy_has(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and is_namespace(node.value):
            assert node.attr in CUPY_NAMES, (
                f"line {node.lineno}: if CuPy has {node.attr}, add it to the names above"
            )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            keywords = {keyword.arg for keyword in node.keywords}
            extra = keywords & MISSING_KEYWORDS.get(node.func.attr, set())
            assert not extra, f"line {node.lineno}: {node.func.attr}({extra})"


def test_tables_name_what_cupy_has():
    tables = (
        *elementwise._UNARY,
        *elementwise._BINARY,
        *elementwise._CONNECTIVES,
    )
    assert {name for _, _, name in tables} <= CUPY_NAMES
