"""Devices on Ray unload models that are no longer referenced."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import ray

from tests.scheduler.endpoints import wait_for
from tests.support.models import branches

pytestmark = pytest.mark.ray


def test_models_in_reference_cycles_are_unloaded(core):
    executor: Any = core.executor
    keys = set()
    for _ in range(3):
        compiled = core.compile_model(branches(), "HETERO:CPU.0,CPU.1", affinity={"tanh": "CPU.1"})
        deployment: Any = compiled.deployment
        keys.add(deployment.key)
        cycle: list[Any] = [compiled]
        cycle.append(cycle)
        del compiled, deployment, cycle

    def are_closed() -> bool:
        gc.collect()
        return keys.isdisjoint(d.key for d in executor._deployments)

    wait_for(are_closed)
    actors = [executor._devices.device(name).actor for name in ("CPU.0", "CPU.1")]

    def are_unloaded() -> bool:
        return not any(ray.get([a.has_all.remote([key]) for a in actors for key in keys]))

    wait_for(are_unloaded)
