"""Custom operators of the tests, in a module that devices' processes import."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np

from hetero import custom_operator
from hetero.devices.errors import DeviceLostError
from hetero.devices.model.tensor_spec import TensorSpec


@custom_operator("org.example::Squeak", infer=lambda x, **attributes: x)
def squeak(x: np.ndarray, *, loud: float = 1.0) -> np.ndarray:
    return np.sin(x) * np.float32(loud)


def halves(x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    rows, *rest = x.shape or ()
    size = rows // 2 if isinstance(rows, int) else None
    half = replace(x, shape=(size, *rest))
    return half, replace(half, type="tensor(double)")


@custom_operator("org.example::Halve", infer=halves)
def halve(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.split(x, 2)
    return first, second.astype(np.float64)


@custom_operator("org.example::Lie", infer=lambda x: x)
def lie(x: np.ndarray) -> Any:
    return x[:1].astype(np.float64)


@custom_operator("org.example::Late", infer=lambda x: x, since=3)
def late(x: np.ndarray) -> Any:
    return x


@custom_operator("org.example::Broken", infer=lambda x: x.nothing)
def broken(x: np.ndarray) -> Any:
    return x


def plain(x: np.ndarray) -> np.ndarray:
    return x


#: Set by `wait` when it runs; set by the test to let it return.
waiting, may_go_on = threading.Event(), threading.Event()


@custom_operator("org.example::Wait", infer=lambda x: x)
def wait(x: np.ndarray) -> np.ndarray:
    waiting.set()
    assert may_go_on.wait(60)
    return x.copy()


#: Number of device losses before `Doomed` runs.
doomed = [0]


@custom_operator("org.example::Doomed", infer=lambda x: x)
def lose(x: np.ndarray) -> np.ndarray:
    if doomed[0]:
        doomed[0] -= 1
        raise DeviceLostError("by design", device="CPU.1", node="local", attempt=1)
    return x.copy()
