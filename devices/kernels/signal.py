"""Signal processing: DFT, STFT and MelWeightMatrix.

The last axis of a tensor of complex numbers has size 2, real and imaginary part; that of a tensor
of real numbers has size 1.
"""

from __future__ import annotations

from math import log10

from hetero.devices.kernels.element_types import Array, Xp, element_type, to_float32
from hetero.devices.kernels.registry import op


def _complex(x: Array) -> Array:
    """Return the numbers whose parts are x's last axis, complex if it has size 2."""
    if x.ndim == 0 or x.shape[-1] not in (1, 2):
        raise ValueError(
            f"expected a last axis of size 1 (real) or 2 (complex), got shape {x.shape}"
        )
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _parts(xp: Xp, z: Array, dtype: object) -> Array:
    """Return a complex array as a real one with a last axis of size 2."""
    return xp.stack((z.real, z.imag), axis=-1).astype(dtype, copy=False)


@op("DFT", since=17, host=(1,))
def dft_17(
    xp: Xp,
    x: Array,
    dft_length: Array | None = None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
) -> Array:
    """Return the discrete Fourier transform along `axis`.

    The input is truncated or padded with zeros to `dft_length`.
    """
    if not (-x.ndim <= axis <= -2 or 0 <= axis <= x.ndim - 2):
        raise ValueError(f"axis: expected an axis before the last of rank {x.ndim}, got {axis}")
    axis %= x.ndim
    dtype = x.dtype
    (x,) = to_float32(xp, x)
    z = _complex(x)
    if dft_length is not None:
        n = int(dft_length.reshape(()))
    else:
        n = 2 * (z.shape[axis] - 1) if inverse and onesided else z.shape[axis]
    if n < 1:
        raise ValueError(f"dft_length: expected a positive number, got {n}")
    if onesided and inverse:
        return xp.fft.irfft(z, n=n, axis=axis)[..., None].astype(dtype, copy=False)
    if onesided:
        if x.shape[-1] != 1:
            raise ValueError("expected a real input (last axis of size 1) with onesided=1")
        return _parts(xp, xp.fft.rfft(z, n=n, axis=axis), dtype)
    transform = xp.fft.ifft if inverse else xp.fft.fft
    return _parts(xp, transform(z, n=n, axis=axis), dtype)


@op("DFT", since=20, host=(1, 2))
def dft_20(
    xp: Xp,
    x: Array,
    dft_length: Array | None = None,
    axis: Array | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Array:
    """Return the discrete Fourier transform along `axis` (default -2)."""
    number = -2 if axis is None else int(axis.reshape(()))
    return dft_17(xp, x, dft_length, axis=number, inverse=inverse, onesided=onesided)


@op("STFT", since=17, host=(1, 3))
def stft_17(
    xp: Xp,
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
    *,
    onesided: int = 1,
) -> Array:
    """Return the Fourier transform of each windowed frame, (batch, frames, bins, 2)."""
    dtype, step = signal.dtype, int(frame_step.reshape(()))
    signal, window = to_float32(xp, signal, window)
    # [batch, length] is not in ONNX's definition, but exporters write it and ONNX Runtime runs it.
    z = _complex(signal[..., None] if signal.ndim == 2 else signal)
    if frame_length is not None:
        length = int(frame_length.reshape(()))
    else:
        length = z.shape[1] if window is None else window.shape[0]
    if z.ndim != 2 or step < 1 or not 1 <= length <= z.shape[1]:
        raise ValueError(
            "expected a signal of rank 2 or 3, a positive frame_step and a frame_length of at most "
            f"the signal's length, got shape {signal.shape}, {step} and {length}"
        )
    if window is not None and window.shape != (length,):
        raise ValueError(f"window: expected shape {(length,)}, got {window.shape}")
    starts = xp.arange(0, z.shape[1] - length + 1, step)
    frames = z[:, starts[:, None] + xp.arange(length)]
    if window is not None:
        frames = frames * window
    if onesided and frames.dtype.kind != "c":
        return _parts(xp, xp.fft.rfft(frames, axis=-1), dtype)
    spectrum = xp.fft.fft(frames, axis=-1)
    return _parts(xp, spectrum[..., : length // 2 + 1] if onesided else spectrum, dtype)


@op("MelWeightMatrix", since=17, host=(0, 1, 2, 3, 4))
def mel_weight_matrix_17(
    xp: Xp,
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    *,
    output_datatype: int = 1,
) -> Array:
    """Return triangular filters, evenly spaced on the mel scale, for bins of a one-sided DFT."""
    bands, length, rate = (int(v.reshape(())) for v in (num_mel_bins, dft_length, sample_rate))
    if bands < 1 or length < 1 or rate < 1:
        raise ValueError(
            "num_mel_bins, dft_length and sample_rate: expected positive numbers, got "
            f"{bands}, {length} and {rate}"
        )
    low, high = (
        2595 * log10(1 + float(edge.reshape(())) / 700)
        for edge in (lower_edge_hertz, upper_edge_hertz)
    )
    mel = low + xp.arange(bands + 2, dtype=xp.float64) * ((high - low) / (bands + 2))
    hertz = 700 * (10 ** (mel / 2595) - 1)
    corner = xp.floor((length + 1) * hertz / rate)
    left, centre, right = corner[:-2], corner[1:-1], corner[2:]
    bins = xp.arange(length // 2 + 1, dtype=xp.float64)[:, None]
    rising = xp.where(bins >= left, (bins - left) / xp.maximum(centre - left, 1), 0.0)
    falling = xp.where(bins < right, (right - bins) / xp.maximum(right - centre, 1), 0.0)
    sides = xp.where(bins < centre, rising, falling)
    return xp.where(bins == centre, 1.0, sides).astype(element_type(output_datatype))
