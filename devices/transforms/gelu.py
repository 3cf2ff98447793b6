"""Pass: Gelu written out becomes one operator, ``hetero::Gelu``.

1. By erf, the sum divided or the argument multiplied: ``0.5 * x * (1 + Erf(x / sqrt(2)))``, the
   three factors in any order.
2. By tanh: ``0.5 * x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``, the cube as a power or
   as products.
"""

from __future__ import annotations

import math
from typing import Any, Final

from devices.model.model import Model
from devices.transforms.patterns import Either, find, has
from devices.transforms.rewriting import Rewrite, fused_node

_CUBE: Final = Either((("Pow", "x", 3.0), ("Mul", ("Mul", "x", "x"), "x")))
_BY_TANH: Final = ("Mul", ("Add", "x", ("Mul", _CUBE, 0.044715)), math.sqrt(2 / math.pi))
_BY_ERF: Final = Either((("Div", "x", math.sqrt(2)), ("Mul", "x", math.sqrt(0.5))))
_HALF: Final = Either((("Mul", "x", 0.5), ("Div", "x", 2.0)))


def _gelu(inner: Any) -> Any:
    plus = ("Add", inner, 1.0)
    return Either(
        (("Mul", ("Mul", plus, "x"), 0.5), ("Mul", ("Mul", plus, 0.5), "x"), ("Mul", plus, _HALF))
    )


#: The rarest operator of a pattern -> the fused operator's `approximate`, and the pattern.
_PATTERNS: Final = {
    "Erf": ("none", _gelu(("Erf", _BY_ERF))),
    "Tanh": ("tanh", _gelu(("Tanh", _BY_TANH))),
}


def fuse_gelu(model: Model) -> Model:
    """Return the model with Gelu patterns replaced."""
    rewrite = Rewrite(model)
    patterns = [found for op_type, found in _PATTERNS.items() if has(model, op_type)]
    for i, node in enumerate(model.nodes):
        for approximate, pattern in patterns if rewrite.is_op(i, "Mul") else ():
            if match := find(rewrite, i, pattern):
                covered = [model.nodes[p] for p in sorted(match.parts)]
                inputs, attributes = [match.values["x"]], {"approximate": approximate}
                fused = fused_node("Gelu", inputs, node.outputs, covered, attributes)
                rewrite.replace(match.parts, fused)
    return rewrite.apply()
