"""How the devices of a node share its cores: those that a model uses, and no others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.vocabulary.names import split_name
from hetero.scheduler.vocabulary.placement import Placement
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

THREADS = "INFERENCE_NUM_THREADS"


def thread_shares(devices: Iterable[DeviceDescriptor], given: Mapping[str, int]) -> dict[str, int]:
    """Return how many threads each device gets.

    `devices`: those that work at the same time.
    `given`: device name -> what the user wants; 0 or absent: a share.
    Returns: on each node they add up to its cores, unless the user wants otherwise or there are
        more devices than cores; the first get what is over.
    """
    shares = {}
    nodes: dict[str, list[DeviceDescriptor]] = {}
    for device in devices:
        shares[device.name] = given.get(device.name) or 1
        nodes.setdefault(device.node, []).append(device)
    for rows in nodes.values():
        sharing = [d.name for d in rows if d.num_threads > 1 and not given.get(d.name)]
        cores = max(d.num_threads for d in rows) - sum(given.get(d.name, 0) for d in rows)
        for place, name in enumerate(sharing):
            shares[name] = max(1, (cores + len(sharing) - 1 - place) // len(sharing))
    return shares


def plan_shares(
    placement: Placement,
    sources: Sequence[StageSource],
    rows: Sequence[DeviceDescriptor],
    company: Collection[str],
) -> dict[str, int]:
    """Return how many threads each device of a placement gets, beside devices that work with it."""
    working = {split_name(name) for name in (*placement.devices, *company)}
    devices = {row.name: split_name(row.name) for row in rows if split_name(row.name) in working}
    given = {
        split_name(stage.device): int(source.config.get(THREADS, 0))
        for stage, source in zip(placement.stages, sources, strict=True)
    }
    shares = thread_shares(
        [row for row in rows if row.name in devices],
        {name: given.get(device, 0) for name, device in devices.items()},
    )
    found = {devices[name]: share for name, share in shares.items()}
    # One whose node has left since it was placed is missed when it is asked to load its stages.
    return {name: found.get(split_name(name), 1) for name in placement.devices}
