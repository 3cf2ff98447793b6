"""Plans, request machines and executors: how a partitioned model runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hetero.devices.request.response import Response, StageTiming
from hetero.scheduler.device.probe import PluginSpec
from hetero.scheduler.executor import Deployment, Executor, Submission
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.inprocess import InProcessExecutor
from hetero.scheduler.vocabulary.limits import Limits
from hetero.scheduler.vocabulary.names import (
    DeviceRequest,
    parse_device,
    resolve_device,
    resolve_name,
    split_name,
)
from hetero.scheduler.vocabulary.plan import Plan, Stage, Wire
from hetero.scheduler.vocabulary.record import StoryLine
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

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
    """Make an executor.

    Parameters
    ----------
    kind : {"ray", "inprocess"}
        On a Ray cluster, or on threads of this process.
    address : str, optional
        A running cluster's; without one a local Ray is started. Ray only.
    devices : mapping of str to int
        Plugin -> how many logical devices each node offers; one for each of the plugin's ids by
        default.
    plugins : sequence of str or type
        Plugins besides the installed ones: ``module:attr`` or classes.
    **options : object
        More of `RayExecutor`'s.

    Raises
    ------
    ValueError
        For another kind, or an address where there is no cluster.
    ClusterError
        If Ray cannot start or be reached.
    """
    if kind == "inprocess":
        if address is not None:
            raise ValueError(f"the in-process executor takes no address; got {address!r}.")
        return InProcessExecutor(devices=devices, plugins=plugins, **options)
    if kind != "ray":
        raise ValueError(f"executor {kind!r}: wanted 'ray' or 'inprocess'.")
    # Ray takes half a second to import, which nobody who stays in process should pay.
    from hetero.scheduler.ray.executor import RayExecutor

    return RayExecutor(address=address, devices=devices, plugins=plugins, **options)
