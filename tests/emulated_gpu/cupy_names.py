"""CuPy's subset of numpy's interface: names, missing keywords, and functions that wait."""

from __future__ import annotations

#: Names that kernels use; each is in CuPy's reference.
CUPY_NAMES = frozenset(
    """
    abs absolute add all any arange arccos arccosh arcsin arcsinh arctan arctanh argmax argmin
    argpartition argsort array asarray ascontiguousarray atleast_1d bitwise_and bitwise_or
    bitwise_xor bool_ broadcast_arrays broadcast_to ceil clip complex64 complex128
    concatenate copysign copyto cos cosh cumprod cumsum diff divide dot dtype e einsum empty
    empty_like equal exp expand_dims expm1 eye fft finfo flip float16 float32 float64 floor
    floor_divide fmod frexp full full_like greater greater_equal hanning hypot iinfo inf int8 int16
    int32 int64 integer invert isfinite isinf isin isnan issubdtype ldexp left_shift less less_equal
    lib linalg linspace log log1p log2 logaddexp logical_and logical_not logical_or logical_xor
    matmul max maximum mean min minimum moveaxis multiply nan nan_to_num negative newaxis nonzero
    ones ones_like pad partition pi power prod random ravel reciprocal remainder repeat reshape
    result_type right_shift rint roll searchsorted sign signbit sin sinh sort split sqrt square
    squeeze stack std subtract sum swapaxes take take_along_axis tan tanh tensordot tile trace
    transpose tril triu true_divide trunc uint8 uint16 uint32 uint64 unique unravel_index var where
    zeros zeros_like
    """.split()  # noqa: SIM905  (a paragraph of words reads better than a hundred lines)
)

#: Function -> keyword arguments of numpy's that CuPy's does not accept.
MISSING_KEYWORDS = {
    name: {"initial", "where"} for name in ("max", "min", "sum", "prod", "mean", "any", "all")
} | {
    "argsort": {"order", "stable"},
    "einsum": {"out"},
    "sort": {"order", "stable"},
    "take_along_axis": {"mode"},
    "unique": {"sorted"},
}

#: Functions whose results' shapes depend on elements, so that the host waits for the device.
WAITING_FUNCTIONS = frozenset({"nonzero", "unique"})

#: Ufuncs that have `at` in CuPy.
IN_PLACE_UFUNCS = frozenset(
    {"add", "subtract", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"}
)
