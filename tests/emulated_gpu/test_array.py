"""The emulated array rejects the operations that CuPy's arrays reject."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from hetero.devices.kernels import Kernel
from hetero.devices.kernels.registry import ALL
from tests.emulated_gpu.array import _METHODS, WAITS
from tests.emulated_gpu.backend import BACKEND, run_on_device
from tests.emulated_gpu.cupy_names import CUPY_NAMES, IN_PLACE_UFUNCS, MISSING_KEYWORDS
from tests.emulated_gpu.memory import MEMORY
from tests.emulated_gpu.namespace import DEVICE
from tests.support.rows import for_each_row

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@for_each_row(
    "use",
    [
        np.asarray,
        np.sum,
        lambda x: np.add(x, X),
        lambda x: x + X,
        lambda x: X + x,
        lambda x: x[np.array([0])],
        lambda x: DEVICE.add(x, X),
        lambda x: DEVICE.concatenate([x, X]),
        lambda x: x.flags.writeable,
        lambda x: x.flat,
        lambda x: DEVICE.max(x, initial=0),
        lambda x: DEVICE.fromiter(x),
        lambda x: DEVICE.multiply.at(x, 0, x),
        lambda x: x.astype(object),
        lambda x: DEVICE.repeat(x, DEVICE.arange(2)),
    ],
)
def test_array_rejects_unsupported_operations(use):
    with pytest.raises((TypeError, AttributeError, NotImplementedError, ValueError)):
        use(BACKEND.to_device(X))


def test_kernel_that_reads_elements_on_the_host_raises():
    def numpy_kernel(xp: Any, x: Any) -> Any:
        return np.maximum(x, 0)

    def undeclared_host_kernel(xp: Any, x: Any, axis: Any) -> Any:
        return xp.sum(x, axis=np.asarray(axis).item())

    def host_kernel(xp: Any, x: Any, axis: Any) -> Any:
        return xp.sum(x, axis=axis.item())

    with pytest.raises(TypeError):
        run_on_device(Kernel("own", "Careless", 1, numpy_kernel), [X], {})
    axis = np.array(1)
    with pytest.raises(TypeError, match="Implicit conversion"):
        run_on_device(Kernel("own", "Undeclared", 1, undeclared_host_kernel), [X, axis], {})
    (y,) = run_on_device(Kernel("own", "Declared", 1, host_kernel, host=(1,)), [X, axis], {})
    assert y.tolist() == [3, 12]
    (y,) = run_on_device(Kernel("own", "OnHost", 1, numpy_kernel, host=(ALL,)), [X], {})
    assert np.array_equal(y, X)


def test_waits_are_counted():
    x = BACKEND.to_device(X)
    WAITS.clear()
    y = DEVICE.exp(x) * 2 + x[0]
    y -= y.max()
    assert not WAITS
    assert bool((y <= 0).all())
    DEVICE.nonzero(x)
    x[x > 2].sum()
    y.tolist()
    assert dict(WAITS) == {"bool": 1, "nonzero": 1, "mask": 1, "tolist": 1}


def test_memory_is_counted_until_collection():
    before = BACKEND.used_nbytes("0")
    x = BACKEND.to_device(np.zeros(1000, np.float32))
    view = x.reshape(10, 100)
    assert BACKEND.used_nbytes("0") == before + 4000
    del x, view
    assert BACKEND.used_nbytes("0") == before


def test_array_of_another_device_raises():
    x = BACKEND.to_device(X)
    with MEMORY.activate(1), pytest.raises(ValueError, match="an array of device 0 on device 1"):
        x + x


def test_emulated_names_exist_in_cupy():
    cupy = pytest.importorskip("cupy", reason="needs hetero[gpu]")
    assert {name for name in CUPY_NAMES if not hasattr(cupy, name)} == set()
    assert {name for name in _METHODS if not hasattr(cupy.ndarray, name)} == set()
    assert {
        name for name in MISSING_KEYWORDS | dict.fromkeys(IN_PLACE_UFUNCS) if name not in CUPY_NAMES
    } == set()
    for name, keywords in MISSING_KEYWORDS.items():
        assert keywords.isdisjoint(inspect.signature(getattr(cupy, name)).parameters), name
