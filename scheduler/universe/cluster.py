"""A cluster of a world: its devices by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler.universe.device import PlayedDevice, Work
from scheduler.universe.network import Network
from scheduler.universe.world import Cores, World
from scheduler.vocabulary.events import Run


class PlayedCluster:
    """Devices by name.

    `nodes`: device -> its node.
    `cost_s`: seconds of a device's own that each message takes.
    `cores`: by node, where devices and clients share them.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        work: Work,
        nodes: dict[str, str],
        *,
        cost_s: float = 0.0,
        cores: Mapping[str, Cores] = {},
    ) -> None:
        self.world = world
        self.cores = cores
        self.network = network
        self.work = work
        self.nodes = nodes
        self._cost_s = cost_s
        #: Each device's present life.
        self.devices: dict[str, PlayedDevice] = {}
        #: Every life that there was.
        self.all: list[PlayedDevice] = []
        self.on_run: Callable[[PlayedDevice, Run], None] = lambda device, run: None
        for name in nodes:
            self._boot(name)

    def _boot(self, name: str, life: int = 1) -> PlayedDevice:
        device = PlayedDevice(
            self.world, self.network, self.work, name, self.nodes[name], life,
            cost_s=self._cost_s, cores=self.cores.get(self.nodes[name]),
        )  # fmt: skip
        device.on_run = lambda device, run: self.on_run(device, run)
        self.devices[name] = device
        self.all.append(device)
        return device

    def find(self, address: str) -> PlayedDevice | None:
        """Return the life of a device that has an address, if it is the present one."""
        return next((d for d in self.devices.values() if d.address == address), None)
