"""Array backend of CuPy, for CUDA devices."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Final

import cupy
import numpy as np

from hetero.devices.gpu.backend import Captured, DeviceBackend
from hetero.devices.gpu.cublas import MatrixProduct
from hetero.devices.gpu.namespace import GPUNamespace
from hetero.devices.kernels.window import Window

#: Larger results are copied through pinned memory of their own: pageable memory takes 13 times as
#: long for 64 MiB on an H200. Smaller ones are not worth an allocation.
_SMALLEST_PINNED_NBYTES: Final = 1 << 14


class CupyNamespace(GPUNamespace):
    """CuPy's functions, with matrix products that CUDA graphs can record."""

    def __init__(self) -> None:
        super().__init__(cupy)
        self._product: Any = None

    def depthwise_convolution(self, x: Any, w: Any, b: Any, window: Window, y: Any) -> None:
        """Write the convolution of padded images into y; each group has one input channel."""
        multiplier = w.shape[0] // x.shape[1]
        sizes = (*x.shape[1:], multiplier, *window.output)
        steps = (*window.kernel, *window.strides, *window.dilations)
        x, w = cupy.ascontiguousarray(x), cupy.ascontiguousarray(w)
        bias = w if b is None else cupy.ascontiguousarray(b)  # not read without a bias
        kernel = _DEPTHWISE["double" if y.dtype.itemsize == 8 else "float"]
        kernel(x, w, bias, b is not None, *sizes, *steps, y)

    def lstm_cell(self, gates: Any, product: Any, c: Any) -> tuple[Any, Any]:
        """Return the output and the new cell state of a step, by one kernel."""
        gates, product = cupy.ascontiguousarray(gates), cupy.ascontiguousarray(product)
        new_h, new_c = _LSTM_CELL(gates, product, c, c.shape[1])
        return new_h, new_c

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the matrix product over the last two axes; the others broadcast."""
        product = self._load_product()
        return cupy.matmul(a, b, out=out) if product is None else product(a, b, out=out)

    def add_product(self, a: Any, b: Any, y: Any) -> None:
        """Add the matrix product of a and b, in float32 if they are float16, to y."""
        product = self._load_product()
        if product is None or not product.add(a, b, y):
            super().add_product(a, b, y)

    def _load_product(self) -> MatrixProduct | None:
        """Return products by cuBLAS, which graphs can record; None if it has another name here."""
        if self._product is None:
            try:
                self._product = MatrixProduct()
            except OSError:
                self._product = False
        return self._product or None


def _depthwise_kernel(sum_type: str) -> Any:
    """Return the kernel of depthwise convolution: one thread for each element of y."""
    names = "channels height width multiplier rows columns kh kw sh sw dh dw"
    sizes = ", ".join(f"int64 {name}" for name in names.split())
    return cupy.ElementwiseKernel(
        f"raw T x, raw T w, raw T b, bool has_bias, {sizes}",
        "T y",
        f"""
        long long column = i % columns, row = i / columns % rows, output = i / (columns * rows);
        long long filter = output % (channels * multiplier);
        long long plane = output / multiplier;
        long long first = (plane * height + row * sh) * width + column * sw;
        {sum_type} sum = has_bias ? ({sum_type})b[filter] : ({sum_type})0;
        for (long long k = 0; k < kh; ++k)
            for (long long l = 0; l < kw; ++l)
                sum += ({sum_type})x[first + k * dh * width + l * dw]
                    * ({sum_type})w[(filter * kh + k) * kw + l];
        y = sum;
        """,
        f"depthwise_convolution_{sum_type}",
    )


#: Type of the sum -> kernel, which compiles at its first use.
_DEPTHWISE: Final = {name: _depthwise_kernel(name) for name in ("float", "double")}


#: One thread for each element of the states; the gates are in ONNX's order: i, o, f, c.
_LSTM_CELL: Final = cupy.ElementwiseKernel(
    "raw T gates, raw T product, T c, int64 hidden",
    "T new_h, T new_c",
    """
    long long first = i / hidden * 4 * hidden + i % hidden;
    T gate[4];
    for (int k = 0; k < 4; ++k)
        gate[k] = gates[first + k * hidden] + product[first + k * hidden];
    T one_half = (T)0.5;
    T input = one_half * tanh(one_half * gate[0]) + one_half;
    T output = one_half * tanh(one_half * gate[1]) + one_half;
    T forget = one_half * tanh(one_half * gate[2]) + one_half;
    new_c = forget * c + input * tanh(gate[3]);
    new_h = output * tanh(new_c);
    """,
    "lstm_cell",
)


class MemoryPool:
    """Memory on the current device for the arrays of one program or one graph.

    `limit_nbytes`: largest size, 0 for no limit. `holds_graph`: free memory is in use too, because
    every launch of the graph writes to it.
    """

    def __init__(self, limit_nbytes: int, holds_graph: bool = False) -> None:
        self._pool = cupy.cuda.MemoryPool()
        self._pool.set_limit(size=limit_nbytes)
        self._holds_graph = holds_graph

    def activate(self) -> AbstractContextManager[None]:
        """Take this thread's new arrays from the pool in a `with` block."""
        context: AbstractContextManager[None] = cupy.cuda.using_allocator(self._pool.malloc)
        return context

    def used_nbytes(self) -> int:
        """Return the size of the memory in use on the current device."""
        pool = self._pool
        return int(pool.total_bytes() if self._holds_graph else pool.used_bytes())

    def free_nbytes(self) -> int:
        """Return the size that the pool may still take, at least 1 because 0 means no limit."""
        return max(1, int(self._pool.get_limit()) - int(self._pool.total_bytes()))


class CupyBackend(DeviceBackend):
    """CUDA devices, with the driver's numbers as ids."""

    def __init__(self) -> None:
        super().__init__("cupy", CupyNamespace())
        #: Streams by device, one set per thread: concurrent requests use separate streams, and
        #: CuPy's pool reuses memory only within the stream that freed it.
        self._thread = threading.local()
        self._pools: weakref.WeakSet[MemoryPool] = weakref.WeakSet()
        cupy.cuda.set_pinned_memory_allocator(self._allocate_pinned)

    def to_device(self, array: np.ndarray) -> Any:
        """Return a copy of a host array on the current device."""
        self._check_not_capturing(array.nbytes)
        copy = cupy.empty(array.shape, array.dtype)
        copy.set(array)
        return copy

    def to_host(self, array: Any) -> np.ndarray:
        """Wait for a device array, and return a copy of it on the host."""
        if array.nbytes < _SMALLEST_PINNED_NBYTES:
            small: np.ndarray = cupy.asnumpy(array)
            return small
        memory = cupy.cuda.alloc_pinned_memory(array.nbytes)
        host = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
        array.get(out=host)
        return host

    def device_ids(self) -> tuple[str, ...]:
        """Return the devices' numbers; none if the driver is missing or too old."""
        try:
            return tuple(map(str, range(cupy.cuda.runtime.getDeviceCount())))
        except cupy.cuda.runtime.CUDARuntimeError:
            return ()

    def describe(self, device_id: str) -> str:
        """Return the driver's name of the device."""
        return str(cupy.cuda.runtime.getDeviceProperties(int(device_id))["name"].decode())

    def fingerprint(self, device_id: str) -> str:
        """Return the device's compute capability, and the versions of CuPy, CUDA and driver."""
        runtime = cupy.cuda.runtime
        return (
            f"sm_{cupy.cuda.Device(int(device_id)).compute_capability} cupy {cupy.__version__} "
            f"cuda {runtime.runtimeGetVersion()} driver {runtime.driverGetVersion()}"
        )

    def total_nbytes(self, device_id: str) -> int:
        """Return the size of the device's memory."""
        return int(cupy.cuda.Device(int(device_id)).mem_info[1])

    def used_nbytes(self, device_id: str) -> int:
        """Return the size of this process's arrays in CuPy's memory pools."""
        with cupy.cuda.Device(int(device_id)):
            shared_nbytes = int(cupy.get_default_memory_pool().used_bytes())
            return shared_nbytes + sum(pool.used_nbytes() for pool in [*self._pools])

    def make_pool(self, device_id: str, limit_nbytes: int) -> MemoryPool:
        """Return a memory pool of CuPy."""
        with cupy.cuda.Device(int(device_id)):
            pool = MemoryPool(limit_nbytes)
        self._pools.add(pool)
        return pool

    def release_unused_memory(self, device_id: str) -> None:
        """Return the free blocks of CuPy's pool to the driver."""
        with cupy.cuda.Device(int(device_id)):
            cupy.get_default_memory_pool().free_all_blocks()

    def overwrite(self, array: Any, values: Any) -> None:
        """Copy a host or device array into a device array of its type and shape."""
        if isinstance(values, np.ndarray):
            array.set(values)
        else:
            array[...] = values

    def capture(self, run: Callable[[], Captured]) -> tuple[Captured, Callable[[], None]]:
        """Record the work that `run` starts on this thread's stream as a CUDA graph."""
        stream = cupy.cuda.get_current_stream()
        program_pool = getattr(self._thread, "pool", None)
        # Other arrays must not use the graph's memory, because every launch writes to it.
        pool = MemoryPool(program_pool.free_nbytes() if program_pool else 0, holds_graph=True)
        stream.begin_capture()
        self._thread.is_capturing = True
        try:
            with pool.activate():
                result = run()
        except BaseException:
            with suppress(cupy.cuda.runtime.CUDARuntimeError):
                stream.end_capture()
            raise
        finally:
            self._thread.is_capturing = False
        graph = stream.end_capture()
        self._pools.add(pool)

        def launch(pool: MemoryPool = pool) -> None:  # holds the memory of the graph
            graph.launch()

        return result, launch

    def _allocate_pinned(self, nbytes: int) -> Any:
        """Return pinned host memory, through which CuPy copies arrays to the device.

        A graph would copy from the same memory in every launch.
        """
        self._check_not_capturing(nbytes)
        return cupy.get_default_pinned_memory_pool().malloc(nbytes)

    def _check_not_capturing(self, nbytes: int) -> None:
        if getattr(self._thread, "is_capturing", False):
            raise RuntimeError(f"a copy of {nbytes} bytes from the host cannot be part of a graph")

    @contextmanager
    def activate(self, device_id: str, pool: MemoryPool | None = None) -> Iterator[None]:
        """Make a device, this thread's stream there and a pool current in a `with` block."""
        streams = self._thread.__dict__.setdefault("streams", {})
        with cupy.cuda.Device(int(device_id)):
            if device_id not in streams:
                streams[device_id] = cupy.cuda.Stream(non_blocking=True)
            self._thread.pool = pool
            with streams[device_id], pool.activate() if pool else nullcontext():
                yield

    def finish(self) -> None:
        """Wait for all work in the current stream."""
        cupy.cuda.get_current_stream().synchronize()
