"""INFERENCE_NUM_THREADS sets BLAS's threads; a model without it restores the default."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import helper
from threadpoolctl import threadpool_info

from hetero.devices.cpu.threads import use_threads
from tests.support.small_models import compile_cpu, make_model


def blas_threads() -> set[int]:
    """Return the limits of numpy's libraries; scipy may have loaded another library."""
    return {
        library["num_threads"]
        for library in threadpool_info()
        if library["user_api"] == "blas" and "scipy.libs" not in library["filepath"]
    }


@pytest.fixture(autouse=True)
def _as_before():
    use_threads(0)
    yield
    use_threads(0)


def test_each_model_runs_with_its_own_thread_count():
    started_with = blas_threads()
    x = np.ones((4, 4), np.float32)
    model = make_model([helper.make_node("MatMul", ["x", "x"], ["y"])], {"x": x}, ["y"])
    one = compile_cpu(model, INFERENCE_NUM_THREADS=1)
    two = compile_cpu(model, INFERENCE_NUM_THREADS=2)
    unset = compile_cpu(model)
    for compiled, expected in ((one, {1}), (two, {2}), (one, {1}), (unset, started_with)):
        compiled.run([x])
        assert blas_threads() == expected


def test_threads_set_the_limit_one_after_another():
    with ThreadPoolExecutor(1) as other:
        other.submit(use_threads, 2).result()
        assert blas_threads() == {2}
        use_threads(1)  # while the other thread still lives
        assert blas_threads() == {1}
