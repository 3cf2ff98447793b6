"""The thread budget: the devices of a model share the cores of their node."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np
import pytest

import hetero
from hetero.devices.model.model import Model
from hetero.devices.null.plugin import NullPlugin
from hetero.devices.plugin.program import Payload, Program
from hetero.devices.plugin.properties import OPTIONAL_PROPERTIES, Config
from hetero.planning.cost.concurrent_load import measure_load
from hetero.planning.cost.profile_request import DeviceGroup, ProfileRequest, identify_device
from tests.support.models import branches

NUM_CORES = 8


class ThreadCountPlugin(NullPlugin):
    """Records the option INFERENCE_NUM_THREADS of each compilation and import."""

    name = "THREADS"
    automatic = True
    properties = NullPlugin.properties.extended(OPTIONAL_PROPERTIES["INFERENCE_NUM_THREADS"])
    num_threads: ClassVar[list[int]] = []

    def compile(self, model: Model, config: Config) -> Program:
        self.num_threads.append(config["INFERENCE_NUM_THREADS"])
        return super().compile(model, config)

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        self.num_threads.append(config["INFERENCE_NUM_THREADS"])
        return super().load(payload, model, config)


@pytest.fixture
def core(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(NUM_CORES)))
    ThreadCountPlugin.num_threads.clear()
    with hetero.Core("inprocess", devices={"THREADS": 3}, plugins=(ThreadCountPlugin,)) as core:
        yield core


def threads(core: hetero.Core, device: str, *arguments: Any, **options: Any) -> list[int]:
    ThreadCountPlugin.num_threads.clear()
    with core.compile_model(branches(), device, *arguments, **options):
        return ThreadCountPlugin.num_threads


def test_single_device_gets_all_cores(core):
    assert threads(core, "THREADS.1") == [NUM_CORES]
    # Devices without nodes do not reduce the budget.
    assert threads(core, "HETERO:THREADS.0,THREADS.1,CPU") == [NUM_CORES]


def test_devices_share_the_cores(core):
    pins = {"op:Neg": "THREADS.1"}
    shares = threads(core, "HETERO:THREADS.0,THREADS.1", affinity=pins)
    # THREADS.0 multiplies matrices; THREADS.1 negates a few numbers, and gets the least share.
    assert set(shares) == {1, NUM_CORES - 1}


def test_explicit_threads_reduce_the_budget_of_others(core):
    pins = {"op:Neg": "THREADS.1"}
    own_threads = {"DEVICE_PROPERTIES": {"THREADS.1": {"INFERENCE_NUM_THREADS": 6}}}
    assert set(threads(core, "HETERO:THREADS.0,THREADS.1", own_threads, affinity=pins)) == {2, 6}
    assert threads(core, "THREADS.0", {"INFERENCE_NUM_THREADS": 3}) == [3]


def test_cached_model_is_imported_with_its_share(core, tmp_path):
    config = {"CACHE_DIR": str(tmp_path)}
    assert threads(core, "THREADS.0", config) == [NUM_CORES]
    assert threads(core, "THREADS.0", config) == [NUM_CORES]
    # The number of threads is not part of the cache key.
    with core.compile_model(
        branches(), "THREADS.0", {**config, "INFERENCE_NUM_THREADS": 2}
    ) as compiled:
        assert compiled.get_property("LOADED_FROM_CACHE")
    assert ThreadCountPlugin.num_threads[-1] == 2


def test_replicas_share_the_cores(core):
    config = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "PROFILE_SECONDS": 0.3,
        "PLAN_SECONDS": 0.3,
        "NULL_NODE_TIME_US": 500,
    }
    device = "HETERO:THREADS.0,THREADS.1"
    with core.compile_model(branches(), device, config) as compiled:
        devices = {s.device for s in compiled.subgraphs}
        num_threads_of_plans = ThreadCountPlugin.num_threads[-len(compiled.subgraphs) :]
    assert set(num_threads_of_plans) == {NUM_CORES // len(devices)}


def test_costs_are_measured_with_all_and_shared_cores(
    core,
):
    model = core.read_model(branches())
    core.profile_model(model, "THREADS.0", seconds=0.2)
    assert set(ThreadCountPlugin.num_threads) == {NUM_CORES}
    ThreadCountPlugin.num_threads.clear()
    x = {"x": np.zeros((2, 3), np.float32)}
    descriptors = [d for d in core.device_descriptors if d.name in ("THREADS.0", "THREADS.1")]
    group = DeviceGroup(
        identify_device(descriptors[0], {}), descriptors, [model], run_times_s=[1.0]
    )
    measure_load(
        ProfileRequest(core.executor, model, x, tuple(descriptors), {}, {}, 0.1), [(group, x)], 0.0
    )
    assert ThreadCountPlugin.num_threads == [NUM_CORES // 2, NUM_CORES // 2]
