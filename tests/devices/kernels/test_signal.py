"""Signal kernels against numpy's transforms and ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import check, refuses

RNG = np.random.default_rng(8)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def parts(z):
    return np.stack((z.real, z.imag), axis=-1).astype(np.float32)


@pytest.mark.sampled(3, "length", "axis", "inverse", "width")
@pytest.mark.parametrize("length", [None, 12, 5])
@pytest.mark.parametrize("axis", [1, 2, -2, -3])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("width", [1, 2])
def test_dft(length, axis, inverse, width):
    x = floats(2, 8, 7, width)
    z = x[..., 0] if width == 1 else x[..., 0] + 1j * x[..., 1]
    along = axis if axis > 0 else axis + 1
    transform = np.fft.ifft if inverse else np.fft.fft
    expected = [parts(transform(z, n=length, axis=along))]
    n = None if length is None else np.array(length)
    check("DFT", [x, n], {"axis": axis, "inverse": inverse}, 17, 1e-4, 1e-4, expected=expected)
    check("DFT", [x, n, np.array(axis)], {"inverse": inverse}, 20, 1e-4, 1e-4, expected=expected)


@pytest.mark.parametrize("length", [None, 10, 9])
def test_one_sided_dft_and_its_inverse(length):
    x = floats(2, 8, 1)
    n = None if length is None else np.array(length)
    expected = [parts(np.fft.rfft(x[..., 0], n=length, axis=1))]
    check("DFT", [x, n], {"onesided": 1}, 20, 1e-4, 1e-4, expected=expected)
    z = floats(2, 5, 2)
    expected = [np.fft.irfft(z[..., 0] + 1j * z[..., 1], n=length, axis=1)[..., None]]
    check("DFT", [z, n], {"onesided": 1, "inverse": 1}, 20, 1e-4, 1e-4, expected=expected)


def test_dft_17_against_onnxruntime():
    check("DFT", [floats(2, 8, 1)], {"axis": 1}, 17, 1e-4, 1e-4)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("step", [3, 8])
@pytest.mark.parametrize("parts", [(), (1,), (2,)])
def test_stft(onesided, step, parts):
    if onesided and parts == (2,):
        pytest.skip("ONNX Runtime refuses one side of a complex signal")
    signal, window = floats(2, 40, *parts), floats(16)
    inputs = [signal, np.array(step), window, np.array(16)]
    check("STFT", inputs, {"onesided": onesided}, 17, 1e-4, 1e-4)
    check("STFT", [signal, np.array(step), window], {"onesided": onesided}, 17, 1e-4, 1e-4)


@pytest.mark.parametrize("edges", [(0.0, 4000.0), (300.0, 3800.0)])
@pytest.mark.parametrize("length", [64, 257])
def test_mel_weight_matrix(edges, length):
    inputs = [np.array(8), np.array(length), np.array(8192), *map(np.float32, edges)]
    check("MelWeightMatrix", inputs, {}, 17, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "message"),
    [
        ("DFT", [floats(2, 8, 1), None, np.array(2)], {}, "axis: expected"),
        ("DFT", [floats(2, 8, 3)], {}, "last axis"),
        ("DFT", [floats(2, 8, 1), np.array(0)], {}, "dft_length"),
        ("DFT", [floats(2, 8, 2)], {"onesided": 1}, "real"),
        ("STFT", [floats(2, 8, 1), np.array(0), floats(4)], {}, "frame_step"),
        ("STFT", [floats(2, 8, 1), np.array(1), floats(9)], {}, "frame_length"),
    ],
)
def test_refuses(op_type, inputs, attributes, message):
    refuses(ValueError, message, op_type, inputs, attributes, 20)
