"""Devices that a model uses share their node's cores: what reaches the plugins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
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

CORES = 8


class SeenPlugin(NullPlugin):
    """Remembers how many threads each compilation or import was given, by device."""

    name = "SEEN"
    automatic = True
    properties = NullPlugin.properties.extended(OPTIONAL_PROPERTIES["INFERENCE_NUM_THREADS"])
    seen: ClassVar[list[int]] = []

    def compile(self, model: Model, config: Config) -> Program:
        self.seen.append(config["INFERENCE_NUM_THREADS"])
        return super().compile(model, config)

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        self.seen.append(config["INFERENCE_NUM_THREADS"])
        return super().load(payload, model, config)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[hetero.Core]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(CORES)))
    SeenPlugin.seen.clear()
    with hetero.Core("inprocess", devices={"SEEN": 3}, plugins=(SeenPlugin,)) as core:
        yield core


def threads(core: hetero.Core, device: str, *arguments: Any, **options: Any) -> list[int]:
    SeenPlugin.seen.clear()
    with core.compile_model(branches(), device, *arguments, **options):
        return SeenPlugin.seen


def test_a_device_that_works_alone_gets_every_core(core: hetero.Core) -> None:
    assert threads(core, "SEEN.1") == [CORES]
    # Devices that could take part, and got no node, leave it theirs.
    assert threads(core, "HETERO:SEEN.0,SEEN.1,CPU") == [CORES]


def test_devices_that_a_model_uses_share_the_cores(core: hetero.Core) -> None:
    pins = {"op:Neg": "SEEN.1"}
    assert sum(threads(core, "HETERO:SEEN.0,SEEN.1", affinity=pins)[:2]) == CORES
    assert set(threads(core, "HETERO:SEEN.0,SEEN.1", affinity=pins)) == {CORES // 2}


def test_what_the_user_gives_one_device_is_not_left_for_the_other(core: hetero.Core) -> None:
    pins = {"op:Neg": "SEEN.1"}
    own = {"DEVICE_PROPERTIES": {"SEEN.1": {"INFERENCE_NUM_THREADS": 6}}}
    assert set(threads(core, "HETERO:SEEN.0,SEEN.1", own, affinity=pins)) == {2, 6}
    assert threads(core, "SEEN.0", {"INFERENCE_NUM_THREADS": 3}) == [3]


def test_a_cached_model_is_imported_with_its_share(core: hetero.Core, tmp_path: Path) -> None:
    config = {"CACHE_DIR": str(tmp_path)}
    assert threads(core, "SEEN.0", config) == [CORES]
    assert threads(core, "SEEN.0", config) == [CORES]
    # Threads are a matter of running: the same entry serves any number of them.
    with core.compile_model(
        branches(), "SEEN.0", {**config, "INFERENCE_NUM_THREADS": 2}
    ) as compiled:
        assert compiled.get_property("LOADED_FROM_CACHE")
    assert SeenPlugin.seen[-1] == 2


def test_replicas_share_the_cores(core: hetero.Core) -> None:
    config = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "MAX_VARIANTS": 2,
        "PROFILE_SECONDS": 0.3,
        "PLAN_SECONDS": 0.3,
        "NULL_NODE_TIME_US": 500,
    }
    device = "HETERO:SEEN.0,SEEN.1"
    with core.compile_model(branches(), device, config) as compiled:
        used = {s.device for s in compiled.subgraphs}
        last = SeenPlugin.seen[-len(compiled.subgraphs) :]
    assert set(last) == {CORES // len(used)}


def test_costs_are_measured_alone_with_every_core_and_in_company_with_the_share(
    core: hetero.Core,
) -> None:
    model = core.read_model(branches())
    core.profile_model(model, "SEEN.0", seconds=0.2)
    assert set(SeenPlugin.seen) == {CORES}
    SeenPlugin.seen.clear()
    x = {"x": np.zeros((2, 3), np.float32)}
    seen = [d for d in core.device_descriptors if d.name in ("SEEN.0", "SEEN.1")]
    kind = DeviceGroup(identify_device(seen[0], {}), seen, [model], run_times_s=[1.0])
    measure_load(
        ProfileRequest(core.executor, model, x, tuple(seen), {}, {}, 0.1), [(kind, x)], 0.0
    )
    assert SeenPlugin.seen == [CORES // 2, CORES // 2]
