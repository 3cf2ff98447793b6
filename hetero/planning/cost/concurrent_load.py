"""Load measurement: many requests in flight on one device, and on all devices at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from hetero.devices.errors import ClusterError, DeviceError, HeteroError
from hetero.devices.plugin.program import Value
from hetero.planning.cost.calibration import LoadRound
from hetero.planning.cost.profile_request import DeviceGroup, ProfileRequest
from hetero.planning.cost.timing import (
    Workload,
    measure_latency,
    measure_throughput,
    temporary_deployment,
)

#: Requests in flight on each device.
JOBS: Final = 3
#: Number of measurements: load varies more with other processes than run times do.
ROUNDS: Final = 2
#: Runs of the slowest part in a measurement: the minimum, and the number to aim for.
MIN_RUNS: Final = 4
TARGET_RUNS: Final = 10
#: Maximum seconds of a measurement, unless `TARGET_RUNS` need more.
MAX_ROUND_S: Final = 0.5


def measure_load(
    request: ProfileRequest,
    parts: Sequence[tuple[DeviceGroup, Mapping[str, Value]]],
    seconds: float,
) -> None:
    """Measure devices under load, each with the largest part of its group.

    Each group first runs one request at a time, then many; then all devices run at once. A group
    whose part cannot be deployed gets an error. A device that fails later ends the measurement. If
    the time is too short for `MIN_RUNS`, nothing is measured.

    `parts`: each group, with the inputs of its largest part.
    `seconds`: time limit.
    """
    names = [device.name for device in request.devices]  # devices share their node's cores
    workloads: list[tuple[DeviceGroup, Workload]] = []
    with ExitStack() as stack:
        for group, inputs in parts:
            part = group.parts[0]
            try:
                for device in group.devices:
                    affinity = dict.fromkeys(part.node_names, device.name)
                    configs = {device.name: request.configs.get(device.name, {})}
                    deployment = temporary_deployment(
                        request.executor, part, affinity, configs, names
                    )
                    workloads.append((group, (stack.enter_context(deployment), inputs)))
            except (DeviceError, ClusterError) as error:
                group.error = f"{type(error).__name__}: {error}"
        slowest_s = max((group.run_times_s[0] for group, _ in workloads), default=0.0)
        round_s = seconds / ROUNDS / (1 + 2 * len(parts))
        if workloads and round_s >= MIN_RUNS * slowest_s:
            round_s = min(round_s, max(MAX_ROUND_S, TARGET_RUNS * slowest_s))
            with suppress(HeteroError):
                for _ in range(ROUNDS):
                    _measure_round(workloads, round_s)


def _measure_round(workloads: Sequence[tuple[DeviceGroup, Workload]], round_s: float) -> None:
    first_of_group = {group.name: (group, workload) for group, workload in reversed(workloads)}
    for group, workload in reversed(first_of_group.values()):
        group.latencies.append(latency := measure_latency(*workload, time.monotonic() + round_s))
        (load,) = measure_throughput([workload], JOBS, round_s)
        group.single_rounds.append(LoadRound(latency.run_s, sum(load.runs_s), load.period_s))
    loads = measure_throughput([workload for _, workload in workloads], JOBS, round_s)
    for (group, _), load in zip(workloads, loads, strict=True):
        group.concurrent_rounds.append(
            LoadRound(group.latencies[-1].run_s, sum(load.runs_s), load.period_s)
        )
