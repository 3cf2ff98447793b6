"""Bytes of weights and of their copies, computed by hand; a float has 4 bytes."""

from __future__ import annotations

from onnx.parser import parse_model

from hetero.devices.model.reader import read_model
from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.planning.memory.predict_memory import weight_nbytes

MODEL = read_model(
    parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        g (float[1, 2, 4, 4] x) => (y)
        <float[2, 2, 3, 3] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
         float[2, 2, 1, 1] v = {1, 1, 1, 1}, float[2] c = {1, 1}> {
            a = Conv(x, w)
            b = BatchNormalization(a, c, c, c, c)
            y = Conv(b, v)
        }"""
    )
)


def test_only_normalized_convolutions_have_fused_copies():
    """Of the weights w (144 bytes), v (16) and c (8), the device copies w."""
    for fused_copies in (0.0, 2.0):
        traits = MemoryTraits(copied_operators=frozenset(), fused_copies=fused_copies)
        result = weight_nbytes(MODEL, range(3), traits, set())
        assert result[:2] == (168, 144 * fused_copies)
