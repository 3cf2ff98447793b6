"""Thread budgets: distribution of a node's cores among the devices that a model uses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import split_name
from hetero.scheduler.types.placement import Placement
from hetero.scheduler.types.plan import Plan

THREADS = "INFERENCE_NUM_THREADS"


def thread_shares(
    devices: Iterable[DeviceDescriptor],
    user_threads: Mapping[str, int],
    work: Mapping[str, float] | None = None,
) -> dict[str, int]:
    """Return the number of threads for each device, in proportion to the devices' work.

    `devices`: the devices that run at the same time.
    `user_threads`: device name -> number of threads that the user set; 0 or absent: a share.
    `work`: device name -> estimated work per request; absent devices count as 1.
    Returns: the cores of each node, rounded by the largest remainder and at least one each. The
        numbers add up to more than the cores if some devices have less than half a core's work,
        or the user set such numbers. Of devices with equal work, the first get the remainder.
    """
    shares = {}
    nodes: dict[str, list[DeviceDescriptor]] = {}
    for device in devices:
        shares[device.name] = user_threads.get(device.name) or 1
        nodes.setdefault(device.node, []).append(device)
    for on_node in nodes.values():
        sharing = [d.name for d in on_node if d.num_threads > 1 and not user_threads.get(d.name)]
        user_sum = sum(user_threads.get(d.name, 0) for d in on_node)
        cores = max(0, max(d.num_threads for d in on_node) - user_sum)
        shares |= _divide(cores, {name: (work or {}).get(name, 1.0) for name in sharing})
    return shares


def _divide(cores: int, work: Mapping[str, float]) -> dict[str, int]:
    """Divide cores in proportion to the work, by the largest remainder; at least one each."""
    total = sum(work.values())
    quotas = {name: cores * (w / total if total else 1 / len(work)) for name, w in work.items()}
    shares = {name: int(quota) for name, quota in quotas.items()}
    by_remainder = sorted(work, key=lambda name: (shares[name] - quotas[name], -work[name]))
    for name in by_remainder[: cores - sum(shares.values())]:
        shares[name] += 1
    return {name: max(1, share) for name, share in shares.items()}


def plan_shares(
    placement: Placement,
    sources: Sequence[StageSource],
    descriptors: Sequence[DeviceDescriptor],
    other_devices: Collection[str] = (),
    *,
    requests_overlap: bool = True,
) -> dict[str, int]:
    """Return the number of threads for each device of a placement.

    `other_devices`: further devices that run at the same time.
    `requests_overlap`: whether several requests run at the same time. Otherwise stages that wait
        for each other never run at the same time, and each may use all cores.
    """
    working = {split_name(name) for name in (*placement.devices, *other_devices)}
    devices = {d.name: split_name(d.name) for d in descriptors if split_name(d.name) in working}
    user_threads = {
        split_name(stage.device): int(source.config.get(THREADS, 0))
        for stage, source in zip(placement.stages, sources, strict=True)
    }
    work = _work_by_device(placement)
    groups = [set(devices.values())]
    if not requests_overlap and not other_devices:
        groups = _concurrent_groups(placement)
    by_device: dict[tuple[str, str], int] = {}
    for group in groups:
        shares = thread_shares(
            [d for d in descriptors if devices.get(d.name) in group],
            {name: user_threads.get(device, 0) for name, device in devices.items()},
            {name: work[device] for name, device in devices.items() if device in work},
        )
        by_device |= {devices[name]: share for name, share in shares.items()}
    # A device whose node has left gets 1 here; loading its stages then reports the loss.
    return {name: by_device.get(split_name(name), 1) for name in placement.devices}


def _work_by_device(placement: Placement) -> dict[tuple[str, str], float]:
    """Return the mean work per request of each device, relative to the mean device."""
    work = {split_name(name): 0.0 for name in placement.devices}
    for route in placement.routes:
        for stage in route.plan.stages:
            work[split_name(stage.device)] += route.share * stage.work
    mean = sum(work.values()) / len(work) if work else 0.0
    return {device: w / mean for device, w in work.items()} if mean else {}


def _concurrent_groups(placement: Placement) -> list[set[tuple[str, str]]]:
    """Return the devices in groups: two whose stages one request may run at once share a group."""
    groups = [{split_name(name)} for name in placement.devices]
    for route in placement.routes:
        for a, b in _unordered_stages(route.plan):
            pair = {split_name(route.plan.stages[index].device) for index in (a, b)}
            merged = set().union(*(group for group in groups if group & pair))
            groups = [*(group for group in groups if not group & pair), merged]
    return groups


def _unordered_stages(plan: Plan) -> list[tuple[int, int]]:
    """Return the pairs of stages of which neither depends on the other."""
    ancestors: list[set[int]] = []
    for stage in plan.stages:
        producers = {plan.producers[t] for t in stage.inputs if t in plan.producers}
        ancestors.append(producers.union(*(ancestors[p] for p in producers)))
    indices = range(len(plan.stages))
    return [(a, b) for b in indices for a in range(b) if a not in ancestors[b]]
