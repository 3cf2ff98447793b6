"""Products of 8-bit integers by the processor's instructions for them, compiled by numba.

`vpdpbusd` adds to each of 16 sums the products of four unsigned and four signed bytes. Weights lie
as it reads them: 16 columns side by side, four rows of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import float32, int8, int64, njit, types, uint8, void
from numba.core import cgutils
from numba.extending import intrinsic

#: Rows whose sums are held in registers at once, each of up to four vectors.
_ROWS: Final = 6
#: Rows that are multiplied by some columns before the next columns are read: they stay in cache.
_BLOCK: Final = 48

_I1, _I8, _I32, _I64, _F32 = (*(ir.IntType(bits) for bits in (1, 8, 32, 64)), ir.FloatType())
_BYTES, _INTS, _FLOATS, _MASK = (ir.VectorType(t, 16) for t in (_I8, _I32, _F32, _I1))


class _Vectors:
    """Instructions on vectors of 16, in the code that a builder writes."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def call(self, name: str, result: ir.Type, *arguments: Any) -> Any:
        """Call one of LLVM's intrinsics."""
        of = ir.FunctionType(result, [a.type for a in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, of, name)
        return self.builder.call(function, arguments)

    def all(self, number: Any) -> Any:
        """Return a vector of one number."""
        of = ir.VectorType(number.type, 16)
        first = self.builder.insert_element(ir.Constant(of, ir.Undefined), number, _I32(0))
        return self.builder.shuffle_vector(
            first, ir.Constant(of, ir.Undefined), ir.Constant(_INTS, [0] * 16)
        )

    def load(self, address: Any, of: ir.Type, nbytes: int = 0) -> Any:
        """Return what lies some bytes after an address."""
        at = self.builder.add(address, _I64(nbytes)) if nbytes else address
        return self.builder.load(self.builder.inttoptr(at, of.as_pointer()), align=1)

    def store(self, vector: Any, address: Any, mask: Any) -> None:
        """Store the elements of a vector where the mask is set."""
        kind = "i8" if vector.type == _BYTES else "f32"
        at = self.builder.inttoptr(address, vector.type.as_pointer())
        self.call(f"llvm.masked.store.v16{kind}.p0", ir.VoidType(), vector, at, _I32(1), mask)

    def first(self, count: Any) -> Any:
        """Return the mask of the first `count` elements."""
        lanes = ir.Constant(_INTS, list(range(16)))
        return self.builder.icmp_signed("<", lanes, self.all(self.builder.trunc(count, _I32)))

    def rounded(self, floats: Any) -> Any:
        """Round to the nearest integers, ties to even."""
        return self.call("llvm.rint.v16f32", _FLOATS, floats)

    def clipped(self, floats: Any, low: Any, high: Any) -> Any:
        """Return floats that are at least low and at most high."""
        for sign, end in ((">", self.all(low)), ("<", self.all(high))):  # NaN stays
            beyond = self.builder.fcmp_ordered(sign, end, floats)
            floats = self.builder.select(beyond, end, floats)
        return floats

    def factors(self, zero: Any, unit: Any) -> tuple[Any, Any]:
        """Return a zero point and a scale for all elements."""
        return (
            self.all(self.builder.zext(self.load(zero, _I8), _I32)),
            self.all(self.load(unit, _F32)),
        )

    def finished(self, sums: Sequence[Any], rounding: Any, is_float: bool) -> list[Any]:
        """Return scaled sums as `product` says of its six floats `rounding`."""
        builder = self.builder
        low, high, ratio, low_2, high_2, zero = (self.load(rounding, _F32, 4 * i) for i in range(6))
        held = [cgutils.alloca_once(builder, _FLOATS) for _ in sums]
        for value, place in zip(sums, held, strict=True):
            value = self.clipped(value, low, high)
            builder.store(value if is_float else self.rounded(value), place)
        with builder.if_then(builder.fcmp_ordered("!=", ratio, _F32(0))):
            for place in held:
                value = builder.load(place)
                if is_float:
                    value = builder.fmul(self.rounded(value), self.all(ratio))
                else:
                    value = builder.fmul(value, self.all(ratio))
                    value = self.rounded(self.clipped(value, low_2, high_2))
                builder.store(value, place)
        floats = [builder.load(place) for place in held]
        if is_float:
            return floats
        shift = self.all(zero)
        integers = [builder.fptosi(builder.fadd(value, shift), _INTS) for value in floats]
        return [builder.trunc(value, _BYTES) for value in integers]


def _tile_code(_: Any, vectors: Any, y: Any, addresses: Any, sizes: Any) -> Any:
    """Compute some rows of `product` in up to four vectors of columns.

    `addresses`: of y, x, pixels, w, runs, zero, unit, start, scale, bias, rounding; `sizes`: of a
    row of y in bytes, columns left, the first row, the last row, bytes of w for a vector, runs,
    steps.
    """
    count, is_float = vectors.literal_value, y.dtype == float32

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        make = _Vectors(builder)
        to, x, pixels, w, runs, *factors, start, scale, bias, rounding = cgutils.unpack_tuple(
            builder, arguments[2]
        )
        zero, unit = make.factors(*factors)
        row_nbytes, left, first, last, depth, many_runs, steps = cgutils.unpack_tuple(
            builder, arguments[3]
        )
        places = [(r, v) for r in range(_ROWS) for v in range(count)]
        sums = {place: cgutils.alloca_once(builder, _INTS) for place in places}
        for v in range(count):
            begin = builder.mul(make.load(start, _INTS, 64 * v), zero)
            for r in range(_ROWS):
                builder.store(begin, sums[r, v])
        rows = []  # beyond the last row, the last one is computed again
        for r in range(_ROWS):
            row = builder.add(first, _I64(r))
            rows.append(builder.select(builder.icmp_signed("<", row, last), row, last))
        reads = [
            builder.add(x, make.load(builder.add(pixels, builder.shl(row, _I64(3))), _I64))
            for row in rows
        ]
        weights = cgutils.alloca_once_value(builder, w)
        with cgutils.for_range(builder, many_runs, intp=_I64) as run:
            offset = make.load(builder.add(runs, builder.shl(run.index, _I64(3))), _I64)
            begins = [builder.add(read, offset) for read in reads]
            here = builder.load(weights)
            columns = [builder.add(here, builder.mul(depth, _I64(v))) for v in range(count)]
            with cgutils.for_range(builder, steps, intp=_I64) as step:
                four, line = (builder.shl(step.index, _I64(k)) for k in (2, 6))
                signed = [make.load(builder.add(column, line), _INTS) for column in columns]
                for r in range(_ROWS):
                    unsigned = make.all(make.load(builder.add(begins[r], four), _I32))
                    for v in range(count):
                        total = make.call(
                            "llvm.x86.avx512.vpdpbusd.512",
                            _INTS, builder.load(sums[r, v]), unsigned, signed[v],
                        )  # fmt: skip
                        builder.store(total, sums[r, v])
            builder.store(builder.add(here, builder.shl(steps, _I64(6))), weights)
        factor = [builder.fmul(make.load(scale, _FLOATS, 64 * v), unit) for v in range(count)]
        scaled = []
        for r, v in places:
            floats = builder.sitofp(builder.load(sums[r, v]), _FLOATS)
            floats = builder.fmul(floats, factor[v])
            scaled.append(builder.fadd(floats, make.load(bias, _FLOATS, 64 * v)))
        masks = [make.first(builder.sub(left, _I64(16 * v))) for v in range(count)]
        results = make.finished(scaled, rounding, is_float)
        for (r, v), result in zip(places, results, strict=True):
            at = builder.add(to, builder.mul(rows[r], row_nbytes))
            at = builder.add(at, _I64(16 * v * (4 if is_float else 1)))
            make.store(result, at, masks[v])
        return context.get_dummy_value()

    return void(vectors, y, addresses, sizes), generate


def _channels_code(_: Any, vectors: Any, y: Any, addresses: Any, sizes: Any) -> Any:
    """Compute up to some vectors of channels of a pixel of `channel_product`.

    `addresses`: of y, x, w, taps, zero, unit, start, scale, bias, rounding; `sizes`: channels
    left, bytes of w for a tap, taps.
    """
    many, is_float = vectors.literal_value, y.dtype == float32

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        make = _Vectors(builder)
        to, x, w, taps, *factors, start, scale, bias, rounding = cgutils.unpack_tuple(
            builder, arguments[2]
        )
        zero, unit = make.factors(*factors)
        left, line, count = cgutils.unpack_tuple(builder, arguments[3])
        held = []
        for v in range(many):
            begin = builder.mul(make.load(start, _INTS, 64 * v), zero)
            held.append(cgutils.alloca_once_value(builder, begin))
        with cgutils.for_range(builder, count, intp=_I64) as tap:
            offset = make.load(builder.add(taps, builder.shl(tap.index, _I64(3))), _I64)
            pixel, weights = builder.add(x, offset), builder.add(w, builder.mul(tap.index, line))
            for v in range(many):
                unsigned = builder.zext(make.load(pixel, _BYTES, 16 * v), _INTS)
                signed = builder.sext(make.load(weights, _BYTES, 16 * v), _INTS)
                total = builder.add(builder.load(held[v]), builder.mul(unsigned, signed))
                builder.store(total, held[v])
        scaled = []
        for v in range(many):
            floats = builder.sitofp(builder.load(held[v]), _FLOATS)
            factor = builder.fmul(make.load(scale, _FLOATS, 64 * v), unit)
            scaled.append(
                builder.fadd(builder.fmul(floats, factor), make.load(bias, _FLOATS, 64 * v))
            )
        for v, result in enumerate(make.finished(scaled, rounding, is_float)):
            at = builder.add(to, _I64(16 * v * (4 if is_float else 1)))
            make.store(result, at, make.first(builder.sub(left, _I64(16 * v))))
        return context.get_dummy_value()

    return void(vectors, y, addresses, sizes), generate


def _rounding_code(_: Any, y: Any, addresses: Any, sizes: Any) -> Any:
    """Quantise up to 16 floats as `quantise` does.

    `addresses`: of y, x, scale, limits; `sizes`: elements left.
    """
    is_float = y.dtype == float32

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        make = _Vectors(builder)
        to, x, scale, limits = cgutils.unpack_tuple(builder, arguments[1])
        (left,) = cgutils.unpack_tuple(builder, arguments[2])
        mask, step = make.first(left), make.all(make.load(scale, _F32))
        low, high, zero = (make.load(limits, _F32, 4 * i) for i in range(3))
        floats = make.call(
            "llvm.masked.load.v16f32.p0", _FLOATS,
            builder.inttoptr(x, _FLOATS.as_pointer()), _I32(1), mask, ir.Constant(_FLOATS, None),
        )  # fmt: skip
        floats = make.rounded(builder.fdiv(floats, step))
        floats = make.clipped(floats, low, high)
        if is_float:
            result = builder.fmul(floats, step)
        else:
            floats = builder.fadd(floats, make.all(zero))
            result = builder.trunc(builder.fptosi(floats, _INTS), _BYTES)
        make.store(result, to, mask)
        return context.get_dummy_value()

    return void(y, addresses, sizes), generate


def _word_code(_: Any, address: Any) -> Any:
    """Return the integer at an address."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return _Vectors(builder).load(arguments[0], _I64)

    return int64(address), generate


_word: Final = intrinsic(_word_code)
_tile: Final = intrinsic(prefer_literal=True)(_tile_code)
_channels: Final = intrinsic(prefer_literal=True)(_channels_code)
_round_16: Final = intrinsic(_rounding_code)


def _product(y: Any, rest: Any) -> None:
    """Put (products + start * zero) * (scale * unit) + bias into y (M, N), rounded.

    `rest` has the addresses of x, pixels, w, runs, zero, unit, start, scale, bias and rounding, how
    many runs there are, and steps. The product of row m adds, for each run, four times `steps`
    bytes of x from ``pixels[m] + run`` on, times the next rows of w. The rest is as
    `QuantizedMatMul` says.
    """
    m, n = y.shape
    x, pixels, w, runs, zero, unit, start, scale, bias, rounding, count, steps = rest
    to, row_nbytes, itemsize, depth = y.ctypes.data, y.strides[0], y.itemsize, count * steps * 64
    for block in range(0, m, _BLOCK):
        for column in range(0, n, 64):
            here = 4 * column
            addresses = (
                to + column * itemsize, x, pixels, w + column // 16 * depth, runs, zero, unit,
                start + here, scale + here, bias + here, rounding,
            )  # fmt: skip
            for first in range(block, min(m, block + _BLOCK), _ROWS):
                sizes = (row_nbytes, n - column, first, m - 1, depth, count, steps)
                if n - column > 48:
                    _tile(4, y, addresses, sizes)
                elif n - column > 32:
                    _tile(3, y, addresses, sizes)
                elif n - column > 16:
                    _tile(2, y, addresses, sizes)
                else:
                    _tile(1, y, addresses, sizes)


def _channel_product(y: Any, rest: Any) -> None:
    """Do the same where column n adds x at ``pixels[m] + run + n`` times w[run, n]."""
    m, n = y.shape
    x, pixels, w, runs, zero, unit, start, scale, bias, rounding, count, line = rest
    to, row_nbytes, itemsize = y.ctypes.data, y.strides[0], y.itemsize
    for row in range(m):
        pixel = x + _word(pixels + 8 * row)
        column = 0
        while column < n:
            here = 4 * column
            addresses = (
                to + row * row_nbytes + column * itemsize, pixel + column, w + column, runs, zero,
                unit, start + here, scale + here, bias + here, rounding,
            )  # fmt: skip
            if n - column >= 64:
                _channels(4, y, addresses, (n - column, line, count))
                column += 64
            else:
                _channels(1, y, addresses, (n - column, line, count))
                column += 16


def _quantise(y: Any, x: Any, scale: Any, limits: Any) -> None:
    """Put x / scale into y, rounded, clipped by the first two limits and shifted by the third.

    Floats are not shifted, but multiplied by the scale again.
    """
    to, read, step, ends = y.ctypes.data, x.ctypes.data, scale.ctypes.data, limits.ctypes.data
    for first in range(0, x.size, 16):
        addresses = (to + first * y.itemsize, read + first * 4, step, ends)
        _round_16(y, addresses, (x.size - first,))


def _ends(x: Any) -> Any:
    """Return the least and the greatest element; 0 is one of them."""
    low = high = float32(0)
    for i in range(x.size):
        low = x[i] if x[i] < low else low
        high = x[i] if x[i] > high else high
    return low, high


def _spread(y: Any, x: Any, scale: Any, zero: Any) -> None:
    """Do what DynamicQuantizeLinear does."""
    low, high = _ends_of(x)
    step = (high - low) / float32(255) if high > low else float32(1)
    shift = np.rint(-low / step)
    scale[0], zero[0] = step, shift
    limits = np.empty(3, np.float32)
    limits[0], limits[1], limits[2] = -shift, float32(255) - shift, shift
    quantise(y, x, scale, limits)


def _dequantise(y: Any, x: Any, scale: Any, zero: Any) -> None:
    """Put (x - zero) * scale into y."""
    for i in range(x.size):
        y[i] = (float32(x[i]) - zero[0]) * scale[0]


def _compiled(function: Any, *of: Any, **options: Any) -> Any:
    """Return a function compiled for its kinds of arguments, or read from numba's cache."""
    options |= {"nogil": True, "error_model": "numpy"}
    try:
        return njit(list(of), cache=True, **options)(function)
    except RuntimeError:  # no folder that numba may write to
        return njit(list(of), **options)(function)


def _row(of: Any, readonly: bool = True) -> Any:
    return types.Array(of, 1, "C", readonly=readonly)


_BYTES_IN, _FLOATS_IN = _row(uint8), _row(float32)
_BYTES_OUT, _FLOATS_OUT = _row(uint8, False), _row(float32, False)
_TABLES: Final = [types.Array(of, 2, "A") for of in (uint8, float32)]
_REST: Final = types.UniTuple(int64, 12)

product: Final = _compiled(_product, *(void(y, _REST) for y in _TABLES))
channel_product: Final = _compiled(_channel_product, *(void(y, _REST) for y in _TABLES))
quantise: Final = _compiled(
    _quantise,
    *(void(y, _FLOATS_IN, _FLOATS_IN, _FLOATS_IN) for y in (_BYTES_OUT, _FLOATS_OUT)),
)
_ends_of: Final = _compiled(
    _ends, types.UniTuple(float32, 2)(_FLOATS_IN), fastmath={"nnan", "nsz", "ninf"}
)
spread: Final = _compiled(_spread, void(_BYTES_OUT, _FLOATS_IN, _FLOATS_OUT, _BYTES_OUT))
dequantise: Final = _compiled(
    _dequantise, *(void(_FLOATS_OUT, x, _FLOATS_IN, _FLOATS_IN) for x in (_BYTES_IN, _row(int8)))
)
