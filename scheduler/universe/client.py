"""A client of a world: real deployments on its devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from hetero.devices.plugin.program import ExecutedNode, Payload
from hetero.scheduler.channels.channel import SharedChannel
from hetero.scheduler.client.deployment import Deployment
from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.remote_memory import RemoteMemory
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.observe.observer import Observer
from hetero.scheduler.universe.device import PlayedCluster
from hetero.scheduler.universe.world import Process, WorldClock
from hetero.scheduler.vocabulary.events import ClientEvent, StageOpened
from hetero.scheduler.vocabulary.limits import Limits
from hetero.scheduler.vocabulary.placement import Placement


class PlayedDeployment(Deployment):
    """A placement on a world's devices; `client`: whose it is."""

    def __init__(self, client: PlayedClient, key: str, placement: Placement, limits: Limits):
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

    def tell(self, event: ClientEvent) -> None:
        """Hand in what became of a device."""
        self._runner.handle(event)

    def opened_on(self, device: str) -> list[StageOpened]:
        """Return what a device is to know of its stages."""
        stages = [stage.index for stage in self.placement.on[device]]
        return [self.opened(i, self.num_streams[i]) for i in stages if i in self.num_streams]

    def executed_nodes(self, stage: int) -> tuple[ExecutedNode, ...]:
        """Return a stage's runtime model."""
        return self._host(stage).executed_nodes(self.key, stage)

    def export(self, stage: int) -> Payload:
        """Return a stage's device's own form of it."""
        return self._host(stage).export(self.key, stage)

    def _host(self, stage: int) -> DeviceHost:
        return self._client.cluster.devices[self.placement.stages[stage].device].host

    def _unload(self) -> None:
        for name in self.placement.devices:
            device = self._client.cluster.devices[name]
            device.process.do(0.0, 0.0, device.unload, self.key)


class PlayedClient:
    """One client; `cost_s`: seconds of its own that each message which comes takes."""

    #: What its deployments are.
    kind: ClassVar[type[PlayedDeployment]] = PlayedDeployment

    def __init__(
        self,
        cluster: PlayedCluster,
        name: str,
        node: str,
        observers: Sequence[Observer] = (),
        *,
        cost_s: float = 0.0,
    ) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.process = Process(self.world, name, node, cluster.cores.get(node))
        self.clock = WorldClock(self.process)
        self.shared = SharedChannel()
        channel = cluster.network.connect(self.process, name, cost_s, self.shared.receive)
        self.shared.channel = channel
        self.address = channel.address
        self.memory = RemoteMemory(f"{name}-memory", self.shared.connect, self.clock, self.is_lost)
        self.deployments: Deployments[PlayedDeployment] = Deployments(
            observers, self.memory, self.clock
        )
        self._count = 0

    def is_lost(self, address: str) -> bool:
        """Whether nothing is heard of a device."""
        return self.cluster.find(address) is None

    def deploy(self, placement: Placement, limits: Limits | None = None) -> PlayedDeployment:
        """Load a placement at once."""
        self._count += 1
        key = f"{self.process.name}-{self._count}"
        deployment = self.kind(self, key, placement, limits or Limits())
        self.load(deployment, placement)
        return deployment

    def load(self, deployment: PlayedDeployment, placement: Placement) -> None:
        """Load stages of a deployment that it has not yet."""
        devices = [self.cluster.devices[name] for name in placement.devices]
        for device in devices:
            deployment.move(device.name, device.address)
            for stage in deployment.placement.on[device.name]:
                if stage.index not in deployment.num_streams:
                    streams = device.load(deployment.key, stage)
                    deployment.num_streams[stage.index] = streams
        for device in devices:
            device.open(deployment.opened_on(device.name))
