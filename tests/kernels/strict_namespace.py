"""A second array namespace for the kernels: numpy's arrays, only the functions that CuPy has."""

from __future__ import annotations

from functools import wraps
from typing import Any, Final

import numpy as np

#: What kernels use of the namespace; each is in CuPy's reference, under the same name.
CUPY = frozenset(
    """
    abs absolute add all any arange arccos arccosh arcsin arcsinh arctan arctanh argmax argmin
    argpartition argsort array asarray ascontiguousarray atleast_1d bitwise_and bitwise_or
    bitwise_xor bool_ broadcast_arrays broadcast_to ceil clip complex64 complex128
    concatenate copysign copyto cos cosh cumprod cumsum diff divide dot dtype e einsum empty
    empty_like equal exp expand_dims expm1 eye fft finfo flip float16 float32 float64 floor
    floor_divide fmod frexp full full_like greater greater_equal hanning hypot iinfo inf int8 int16
    int32 int64 integer invert isfinite isinf isin isnan issubdtype ldexp left_shift less less_equal
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


class StrictNamespace:
    """Numpy without what CuPy lacks: another name, or another keyword, is an error when reached."""

    def __getattr__(self, name: str) -> Any:
        if name not in CUPY:
            raise AttributeError(f"CuPy's namespace has no {name!r}; add it to CUPY if it has")
        found = getattr(np, name)
        if name not in LACKING:
            return found

        @wraps(found)
        def limited(*args: Any, **keywords: Any) -> Any:
            extra = LACKING[name] & keywords.keys()
            if extra:
                raise TypeError(f"CuPy's {name} takes no {', '.join(sorted(extra))}")
            return found(*args, **keywords)

        return limited


#: What the kernels' tests run them under.
STRICT: Final = StrictNamespace()
