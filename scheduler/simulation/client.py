"""Simulated client: real deployments on simulated devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from hetero.devices.plugin.program import ExecutedNode, Payload
from hetero.scheduler.channels.channel import SharedChannel, has_lanes
from hetero.scheduler.client.deployment import Deployment
from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.remote_tensors import RemoteMemory
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.observe.observer import Observer
from hetero.scheduler.simulation.device import SimulatedCluster
from hetero.scheduler.simulation.simulator import Process, SimClock
from hetero.scheduler.types.events import ClientEvent, StageOpened
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.placement import Placement


class SimulatedDeployment(Deployment):
    """Deployment on simulated devices; `client`: its owner."""

    def __init__(self, client: SimulatedClient, key: str, placement: Placement, limits: Limits):
        self._client = client
        self.num_streams: dict[int, int] = {}
        devices = client.cluster.devices
        super().__init__(
            key,
            placement,
            {},
            limits,
            client.deployments,
            connect=partial(client.shared.connect, key),
            addresses={name: devices[name].address for name in placement.devices},
        )

    def notify(self, event: ClientEvent) -> None:
        """Apply an event of a device."""
        self._runner.handle(event)

    def opened_on(self, device: str) -> list[StageOpened]:
        """Return the messages that open the stages of a device."""
        stages = [stage.index for stage in self.placement.stages_by_device[device]]
        return [
            self.stage_description(i, self.num_streams[i]) for i in stages if i in self.num_streams
        ]

    def executed_nodes(self, stage: int) -> tuple[ExecutedNode, ...]:
        """Return the runtime model of a stage."""
        return self._host(stage).executed_nodes(self.key, stage)

    def export(self, stage: int) -> Payload:
        """Return a compiled stage as a payload of its device."""
        return self._host(stage).export(self.key, stage)

    def _host(self, stage: int) -> DeviceHost:
        return self._client.cluster.devices[self.placement.stages[stage].device].host

    def _unload(self) -> None:
        for name in self.placement.devices:
            device = self._client.cluster.devices[name]
            device.process.do(0.0, 0.0, device.unload, self.key)


class SimulatedClient:
    """Simulated client; `cost_s`: its processing time per received message, in seconds."""

    #: Class of its deployments.
    kind: ClassVar[type[SimulatedDeployment]] = SimulatedDeployment

    def __init__(
        self,
        cluster: SimulatedCluster,
        name: str,
        node: str,
        observers: Sequence[Observer] = (),
        *,
        cost_s: float = 0.0,
    ) -> None:
        self.cluster = cluster
        self.simulator = cluster.simulator
        self.process = Process(self.simulator, name, node, cluster.cores.get(node))
        self.clock = SimClock(self.process)
        self.shared = SharedChannel()
        channel = cluster.network.connect(self.process, name, cost_s, self.shared.receive)
        self.shared.channel = channel
        if has_lanes(channel):
            channel.receive_lane = self.shared.receive_lane
        self.address = channel.address
        self.memory = RemoteMemory(f"{name}-memory", self.shared.connect, self.clock, self.is_lost)
        self.deployments: Deployments[SimulatedDeployment] = Deployments(
            observers, self.memory, self.clock
        )
        self._count = 0

    def is_lost(self, address: str) -> bool:
        """Whether a device is lost: no running process has its address."""
        return self.cluster.find(address) is None

    def deploy(self, placement: Placement, limits: Limits | None = None) -> SimulatedDeployment:
        """Deploy a placement without delay."""
        self._count += 1
        key = f"{self.process.name}-{self._count}"
        deployment = self.kind(self, key, placement, limits or Limits())
        self.load(deployment, placement)
        deployment.use_lanes(self.shared)
        return deployment

    def load(self, deployment: SimulatedDeployment, placement: Placement) -> None:
        """Load the stages of a deployment that are not loaded yet."""
        devices = [self.cluster.devices[name] for name in placement.devices]
        for device in devices:
            deployment.set_address(device.name, device.address)
            for stage in deployment.placement.stages_by_device[device.name]:
                if stage.index not in deployment.num_streams:
                    streams = device.load(deployment.key, stage)
                    deployment.num_streams[stage.index] = streams
        for device in devices:
            device.open(deployment.opened_on(device.name))
