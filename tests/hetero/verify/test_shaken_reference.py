"""Rounding noise of the reference."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.verify.shaken_reference import UNIT, ShakenReference, Shaker
from tests.support.small_models import onnxruntime_session


def test_shaker_moves_fractions_by_a_unit_and_leaves_counts():
    values = np.array([0.3, 7.0, 1e9, 0.0, -2.6], np.float32)
    shaken = Shaker(2.0**-23)(values)
    changes = np.abs(shaken / np.where(values == 0, 1, values) - 1)
    assert (shaken != values).tolist() == [True, False, True, False, True]
    assert changes[[0, 2, 4]].max() <= 2.0**-22


def test_shaken_reference_tells_equal_channels_apart():
    """Equal weights give equal sums, whose order a vendor's rounding decides."""
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        equal (float[1, 8] x) => (float[1, 4] y) { y = MatMul(x, w) }"""
    )
    weight = np.full((8, 4), 1.1, np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    x = np.linspace(1, 2, 8, dtype=np.float32)[None] * np.float32(1e6)
    plain = CPUPlugin().compile_model(model)({"x": x})["y"]
    shaken = ShakenReference().compile_model(model, {UNIT: 2.0**-23})({"x": x})["y"]
    assert len(set(plain.ravel().tolist())) == 1
    assert len(set(shaken.ravel().tolist())) > 1
    np.testing.assert_allclose(shaken, plain, rtol=1e-5)


def test_bodies_of_control_flow_are_shaken():
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        choice (bool b, float[64] x) => (float[64] y) {
            y = If(b) <
                then_branch = then () => (float[64] z) { z = Exp(x) },
                else_branch = other () => (float[64] z) { z = Neg(x) }
            >
        }"""
    )
    inputs = {"b": np.array(True), "x": np.linspace(0.1, 1, 64, dtype=np.float32)}
    plain = CPUPlugin().compile_model(model)(inputs)["y"]
    shaken = ShakenReference().compile_model(model, {UNIT: 2.0**-23})(inputs)["y"]
    assert not np.array_equal(shaken, plain)
    np.testing.assert_allclose(shaken, plain, rtol=1e-6)


def test_ties_of_quantisation_round_to_either_side():
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        ties (float[4] x) => (uint8[4] y) <float s = {2}, uint8 z = {0}> {
            y = QuantizeLinear(x, s, z)
        }"""
    )
    x = np.array([1, 3, 5, 8], np.float32)  # three ties
    compiled = ShakenReference().compile_model(model, {UNIT: 2.0**-23})
    results = [tuple(compiled({"x": x})["y"].tolist()) for _ in range(16)]
    assert {y[0] for y in results} == {0, 1}
    assert {y[1] for y in results} == {1, 2}
    assert {y[3] for y in results} == {4}


def test_values_near_a_tie_of_quantisation_round_to_either_side():
    """A device may compute a step as a fraction of the range of 256 steps."""
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        near (float[3] x) => (int8[3] y) <float s = {1}, int8 z = {0}> {
            y = QuantizeLinear(x, s, z)
        }"""
    )
    x = np.array([20.50001, 20.501, 21], np.float32)
    compiled = ShakenReference().compile_model(model, {UNIT: 2.0**-23})
    results = [tuple(compiled({"x": x})["y"].tolist()) for _ in range(16)]
    assert set(results) == {(20, 21, 21), (21, 21, 21)}


def test_ties_among_the_inputs_are_rounded_exactly():
    """A half that a kernel computes may be rounded to either side."""
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        halves (float[4] x) => (float[4] y, float[4] z) <float two = {2}> {
            y = Round(x) d = Div(x, two) z = Round(d)
        }"""
    )
    x = np.array([0.5, 1.5, -2.5, 1], np.float32)
    compiled = ShakenReference().compile_model(model, {UNIT: 2.0**-23})
    results = [compiled({"x": x}) for _ in range(16)]
    assert {tuple(result["y"].tolist()) for result in results} == {(0, 2, -2, 1)}
    assert {result["z"][3] for result in results} == {0, 1}


@pytest.mark.parametrize(("level", "is_coarse"), [(0, False), (1, False), (4, True)])
def test_product_of_declared_accuracy_has_the_error_of_8_bits(level, is_coarse):
    """With `accuracy_level` 4, ONNX Runtime may convert the input to 8 bits, block by block."""
    rng = np.random.default_rng(0)
    model = parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        product (float[4, 40] x) => (float[4, 16] y) {{
            y = com.microsoft.MatMulNBits<K = 40, N = 16, bits = 4, block_size = 32,
                accuracy_level = {level}>(x, w, s)
        }}"""
    )
    weights = rng.integers(0, 256, (16, 2, 16)).astype(np.uint8)
    scales = rng.random((16, 2)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    model.graph.initializer.append(numpy_helper.from_array(scales, "s"))
    x = rng.standard_normal((4, 40)).astype(np.float32)
    plain = CPUPlugin().compile_model(model)({"x": x})["y"]
    session = onnxruntime_session(model.SerializeToString())
    vendor_error = np.abs(session.run(None, {"x": x})[0] - plain).max()
    shaken = ShakenReference().compile_model(model, {UNIT: 2.0**-23})({"x": x})["y"]
    noise = np.abs(shaken - plain).max()
    assert noise >= vendor_error / 8
    assert (noise > 1e-3) == is_coarse
    assert noise < 0.1 * np.abs(plain).max()


def test_noise_of_a_spectrum_is_relative_to_its_largest_value():
    """The spectrum of a constant is 0 only if the sums of its irrational terms cancel exactly."""
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        spectrum (float[1, 12, 1] x) => (float[1, 12, 2] y) { y = DFT <axis = 1> (x) }"""
    )
    x = np.full((1, 12, 1), 100, np.float32)
    plain = CPUPlugin().compile_model(model)({"x": x})["y"]
    shaken = ShakenReference().compile_model(model, {UNIT: 2.0**-23})({"x": x})["y"]
    noise = np.abs(shaken - plain)[0, 1:]
    np.testing.assert_allclose(noise, 1200 * 2.0**-23, rtol=0.1)
