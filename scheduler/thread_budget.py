"""Thread budgets: distribution of a node's cores among the devices that a model uses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import split_name
from hetero.scheduler.types.placement import Placement

THREADS = "INFERENCE_NUM_THREADS"


def thread_shares(
    devices: Iterable[DeviceDescriptor], user_threads: Mapping[str, int]
) -> dict[str, int]:
    """Return the number of threads for each device.

    `devices`: the devices that run at the same time.
    `user_threads`: device name -> number of threads that the user set; 0 or absent: an equal share.
    Returns: numbers that add up to the cores of each node, unless the user's numbers differ or a
        node has more devices than cores. The first devices get the remainder.
    """
    shares = {}
    nodes: dict[str, list[DeviceDescriptor]] = {}
    for device in devices:
        shares[device.name] = user_threads.get(device.name) or 1
        nodes.setdefault(device.node, []).append(device)
    for rows in nodes.values():
        sharing = [d.name for d in rows if d.num_threads > 1 and not user_threads.get(d.name)]
        cores = max(d.num_threads for d in rows) - sum(user_threads.get(d.name, 0) for d in rows)
        for place, name in enumerate(sharing):
            shares[name] = max(1, (cores + len(sharing) - 1 - place) // len(sharing))
    return shares


def plan_shares(
    placement: Placement,
    sources: Sequence[StageSource],
    rows: Sequence[DeviceDescriptor],
    company: Collection[str],
) -> dict[str, int]:
    """Return the number of threads for each device of a placement.

    `company`: other devices that run at the same time.
    """
    working = {split_name(name) for name in (*placement.devices, *company)}
    devices = {row.name: split_name(row.name) for row in rows if split_name(row.name) in working}
    user_threads = {
        split_name(stage.device): int(source.config.get(THREADS, 0))
        for stage, source in zip(placement.stages, sources, strict=True)
    }
    shares = thread_shares(
        [row for row in rows if row.name in devices],
        {name: user_threads.get(device, 0) for name, device in devices.items()},
    )
    by_device = {devices[name]: share for name, share in shares.items()}
    # A device whose node has left gets 1 here; loading its stages then reports the loss.
    return {name: by_device.get(split_name(name), 1) for name in placement.devices}
