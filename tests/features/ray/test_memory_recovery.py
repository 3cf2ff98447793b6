"""Devices on Ray that run out of memory although a plan fits are planned around."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hetero
from tests.support.products import WIDTH, products

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def core(local_ray):
    plugins = [f"tests.support.overfull_plugin:{name}Plugin" for name in ("Small", "Overfull")]
    with hetero.Core("ray", plugins=plugins) as core:
        yield core


@pytest.mark.parametrize("name", ["SMALL", "OVERFULL"])
def test_exhausted_device_is_planned_around(core, name):
    """SMALL runs out of memory when it compiles four products, OVERFULL when it runs them."""
    memory = {name: 4 * WIDTH * WIDTH * 4 + 2000, "CPU": 1_000_000_000}
    config = {"FIT_MEMORY": True, "DEVICE_MEMORY_NBYTES": memory, "VERIFY": "NO"}
    x = np.arange(WIDTH, dtype=np.float32)[None]
    with core.compile_model(products(4), f"HETERO:{name},CPU", config) as compiled:
        with ThreadPoolExecutor(3) as pool:
            for result in pool.map(lambda _: compiled({"v0": x})[0], range(3)):
                np.testing.assert_array_equal(result, x)
        assert [s.device for s in compiled.subgraphs] == [name, "CPU"]
        assert compiled.plan_report is not None
        sentences = compiled.plan_report.advice
        assert sum(f"{name} ran out of memory at" in sentence for sentence in sentences) == 1
