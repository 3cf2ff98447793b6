"""Scheduler: runs plans of partitioned models on executors, on Ray or in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero.devices.request.response import Response, StageTiming
from hetero.scheduler.device.discovery import PluginSpec
from hetero.scheduler.executor import Deployment, Executor, Submission
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.inprocess import InProcessExecutor
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import (
    DeviceRequest,
    parse_device,
    resolve_device,
    resolve_name,
    split_name,
)
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.plan import Plan, Stage, Wire
from hetero.scheduler.types.request_record import StoryLine

__all__ = [
    "Deployment",
    "DeviceDescriptor",
    "DeviceRequest",
    "Executor",
    "InProcessExecutor",
    "Limits",
    "Plan",
    "PluginSpec",
    "Response",
    "Stage",
    "StageSource",
    "StageTiming",
    "StoryLine",
    "Submission",
    "Wire",
    "create_executor",
    "parse_device",
    "resolve_device",
    "resolve_name",
    "split_name",
]


def create_executor(
    kind: str = "ray",
    *,
    address: str | None = None,
    devices: Mapping[str, int] | None = None,
    plugins: Sequence[PluginSpec] = (),
    **options: Any,
) -> Executor:
    """Create an executor.

    Parameters
    ----------
    kind : {"ray", "inprocess"}
        Whether devices are actors of a Ray cluster, or run on threads of this process.
    address : str, optional
        Address of a running Ray cluster. Without one, a local Ray is started. Only for Ray.
    devices : mapping of str to int
        Plugin -> number of logical devices per node. Defaults to one device for each id of the
        plugin.
    plugins : sequence of str or type
        Plugins in addition to the installed ones: ``module:attr`` or classes.
    **options : object
        Additional arguments of the executor's class.

    Returns
    -------
    Executor
        The new executor, which the caller closes.

    Raises
    ------
    ValueError
        If the kind is unknown, or an address is passed to the in-process executor.
    ClusterError
        If Ray cannot start or be reached.
    """
    if kind == "inprocess":
        if address is not None:
            raise ValueError(f"the in-process executor takes no address; got {address!r}.")
        return InProcessExecutor(devices=devices, plugins=plugins, **options)
    if kind != "ray":
        raise ValueError(f"executor {kind!r}: expected 'ray' or 'inprocess'.")
    # Importing Ray takes half a second; the in-process executor does not need it.
    from hetero.scheduler.ray.executor import RayExecutor

    return RayExecutor(address=address, devices=devices, plugins=plugins, **options)
